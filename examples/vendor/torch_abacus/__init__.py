"""A tiny PyTorch backend in Python: importing it gives torch a device called "abacus"."""

from torch_abacus.backend import register

__version__ = "0.1"

register()
