"""Mutants of what torch.compile and its neighbours do for a device: a module for each kind. ``draw`` draws from all of them."""
