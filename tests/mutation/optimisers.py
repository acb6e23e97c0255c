"""Mutants of optimisers: of foreach ops, of fused steps, and of the gradients and moments between them."""
