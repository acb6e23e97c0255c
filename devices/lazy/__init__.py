"""The device for torch's lazy tensors on the TorchScript backend."""
