"""The device for NVIDIA GPUs."""
