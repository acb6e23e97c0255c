"""A device to oneself: file locks that processes on one machine share, in this run and in others.

An item holds its device's lock shared while it runs; what needs the device alone holds it exclusively. A gate
before the lock keeps those that would share it from passing one that waits to be alone: ``flock`` is not fair.
Locks end with their process, however it ends.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: items of several workers are not kept apart there
    fcntl = None  # type: ignore[assignment]

from devices.cache import cache_root
from devices.errors import ConformError


class DeviceLock:
    """The lock of one device index. Raises ConformError where its files cannot be made."""

    def __init__(self, device: str, index: int, folder: Path | None = None) -> None:
        folder = folder or cache_root() / "locks"
        # A home folder may be shared between machines, and their devices are not.
        name = re.sub(r"[^\w.-]", "_", f"{platform.node()}-{device}-{index}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            self._gate = os.open(folder / f"{name}.gate", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ConformError(
                f"{folder}: cannot hold the locks of {device}:{index}: {error.strerror or error}. "
                "Set $TORCH_CONFORMANCE_CACHE to a folder that can be written"
            ) from None

    def share(self) -> None:
        """Wait until nobody has or wants the device alone."""
        if fcntl is not None:
            fcntl.flock(self._gate, fcntl.LOCK_SH)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def take(self) -> None:
        """Wait until the device is ours alone. What was shared before is given up first."""
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def release(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._lock)
        os.close(self._gate)
