"""The device for Apple GPUs."""
