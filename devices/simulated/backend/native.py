"""Loads the device's native library, and converts device arguments to indices."""

from __future__ import annotations

from typing import Any, Final

import torch

from devices.simulated.backend import build

#: As torch calls the device.
NAME: Final = "simulated"

#: The device's native library, which is built here if it is not in the cache.
library: Any = build.library()


def on(fault: str) -> bool:
    """Returns True if a planted fault is on."""
    return bool(library.fault_is_on(fault))


def index_of(which: Any) -> int:
    """Returns the index of a device that is given as a device, a number or None (the current device). Raises ValueError
    for another device type."""
    if which is None:
        return 0 if on("allocator.no_device_is_index_0") else int(library.current_device())
    if isinstance(which, int):
        return which
    found = torch.device(which)
    if found.type != NAME:
        raise ValueError(f"expected a {NAME} device, got {which!r}")
    return int(library.current_device()) if found.index is None else found.index
