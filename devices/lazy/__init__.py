"""torch's lazy tensors on the TorchScript backend."""
