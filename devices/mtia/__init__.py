"""The device for Meta's accelerators (MTIA)."""
