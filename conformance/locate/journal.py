"""A file that names the call that is being made, so that a call that ends the process is known. The module does not import
torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from conformance.locate.wire import LocatedCall

_SIZE: Final = 8192


class Entry(msgspec.Struct, frozen=True):
    """The newest call. ``is_done`` is True if the call has returned and was judged."""

    call: LocatedCall
    is_done: bool = False


class Journal:
    """The file, which is overwritten before and after each call."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, call: LocatedCall, *, is_done: bool = False) -> None:
        """Names the call that is made next, or that is done."""
        data = msgspec.json.encode(Entry(call, is_done))
        os.pwrite(self._file, data[:_SIZE].ljust(_SIZE), 0)


def read_journal(path: Path) -> Entry | None:
    """Returns the newest call; None if none was made."""
    try:
        return msgspec.json.decode(path.read_bytes().strip(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None
