"""Having the device to oneself: cases that run out of memory, or read how much is free, among workers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DeviceLock:
    """A lock that all workers of a run hold together, or one of them alone.

    Whoever waits to be alone keeps newcomers out meanwhile, so that it is not passed over for ever.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT
        self._door = os.open(folder / "device.door", flags)
        self._room = os.open(folder / "device.room", flags)

    @contextmanager
    def held(self, *, alone: bool) -> Iterator[None]:
        """Use the device for a block: with the others, or alone."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
