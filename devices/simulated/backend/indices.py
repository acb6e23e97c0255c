"""Which device an argument names."""

from __future__ import annotations

from typing import Any

import torch

from devices.simulated.backend import native


def index_of(which: Any) -> int:
    """The index that a device, a number or None names. Raises ValueError for another device type."""
    if which is None:
        return int(native.library.current_device())
    if isinstance(which, int):
        return which
    found = torch.device(which)
    if found.type != native.NAME:
        raise ValueError(f"expected a {native.NAME} device, got {which!r}")
    return int(native.library.current_device()) if found.index is None else found.index
