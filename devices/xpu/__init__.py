"""The device for Intel GPUs."""
