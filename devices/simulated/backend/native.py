"""Access to the device's library once the package has loaded it, and to the index that an argument names."""

from __future__ import annotations

from typing import Any, Final

import torch

#: As torch calls the device.
NAME: Final = "simulated"

library: Any = None


def on(fault: str) -> bool:
    """Whether a planted fault is on."""
    return bool(library.fault_is_on(fault))


def index_of(which: Any) -> int:
    """The index that a device, a number or None names. Raises ValueError for another device type."""
    if which is None:
        return int(library.current_device())
    if isinstance(which, int):
        return which
    found = torch.device(which)
    if found.type != NAME:
        raise ValueError(f"expected a {NAME} device, got {which!r}")
    return int(library.current_device()) if found.index is None else found.index
