"""Fills new memory from the CPU's allocator with a known byte. Repro scripts contain copies of the functions."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def fresh_memory(device: torch.device, byte: int) -> Iterator[None]:
    """Within the context, new memory from the CPU's allocator is filled with ``byte``. The function uses mallopt(3) and
    M_PERTURB of glibc. It does nothing for other devices or other C libraries.

    Raises ValueError for 0xFF, because mallopt fills with the complement of its argument, and the argument 0 turns
    filling off.
    """
    if not 0 <= byte < 0xFF:
        raise ValueError(f"glibc fills fresh memory with a byte from 0 to 254, not with {byte}")
    perturb = mallopt() if device.type == "cpu" else None
    if perturb is None:
        yield
        return
    perturb(M_PERTURB, byte ^ 0xFF)
    try:
        yield
    finally:
        perturb(M_PERTURB, 0)


M_PERTURB = -6  # malloc.h; fresh memory is filled with the complement of the value, 0 turns it off


@cache
def mallopt() -> Callable[[int, int], int] | None:
    """Returns glibc's ``mallopt`` function; None with another C library."""
    if platform.libc_ver()[0] != "glibc":
        return None
    function: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    return function
