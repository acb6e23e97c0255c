"""The device for AMD GPUs."""
