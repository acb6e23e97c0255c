"""Apple GPUs."""
