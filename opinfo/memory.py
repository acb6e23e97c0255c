"""What memory fresh from the CPU's allocator holds. Repro scripts carry these functions."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def fresh_memory(device: torch.device, byte: int) -> Iterator[None]:
    """What memory fresh from the allocator holds: ``byte`` everywhere. Only for the CPU over glibc, whose
    mallopt(3) can do it (M_PERTURB); nothing changes elsewhere.

    Raises ValueError for 0xFF, which mallopt(3) cannot do: its complement is the value that turns the filling off."""
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
    """The function of glibc; None elsewhere."""
    if platform.libc_ver()[0] != "glibc":
        return None
    function: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    return function
