"""Meta's accelerators."""
