"""The device for Intel Gaudi accelerators."""
