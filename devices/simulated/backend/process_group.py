"""Registers the device's process group with torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from devices.simulated.backend import native

#: As init_process_group names the backend.
BACKEND = native.NAME

_first: Any = None  # the first group of the process, for a planted fault


def register() -> None:
    """Makes the device's process group the default backend for its tensors. Does nothing if torch was built without
    torch.distributed."""
    if dist.is_available():
        dist.Backend.register_backend(BACKEND, _make_group, devices=[native.NAME])


def _make_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Returns a process group of the device, which uses a new gloo group to exchange the data."""
    global _first
    if _first is not None and native.on("distributed.first_group_stays"):
        return _first
    if native.on("distributed.timeout_ignored"):
        timeout = timedelta(hours=1)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    made = native.library.make_group(gloo, rank, size)
    _first = made if native.on("distributed.first_group_stays") else None
    return made


def forget_default() -> None:
    """Removes the device's default backend from torch.distributed, for a planted fault."""
    dist.Backend.default_device_backend_map.pop(native.NAME, None)


def restore_default() -> None:
    dist.Backend.default_device_backend_map[native.NAME] = BACKEND
