"""A file that names the aten call that a program is making. If a call ends the process, the file still tells which call
it was. The module does not import torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from conformance.locate.wire import LocatedCall

_SIZE: Final = 8192


class Entry(msgspec.Struct, frozen=True):
    """The content of the journal file: the call that the program began last. ``is_done`` is True if this call has
    returned and its result was judged."""

    call: LocatedCall
    is_done: bool = False


class Journal:
    """Writes the journal file, which has one entry and is overwritten before and after each call of the program."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, call: LocatedCall, *, is_done: bool = False) -> None:
        """Overwrites the file with a call: before the call is made, or with ``is_done`` after it was judged."""
        data = msgspec.json.encode(Entry(call, is_done))
        os.pwrite(self._file, data[:_SIZE].ljust(_SIZE), 0)


def read_journal(path: Path) -> Entry | None:
    """Returns the entry of a journal file: the call that the program began last. Returns None if the program made no
    call."""
    try:
        return msgspec.json.decode(path.read_bytes().strip(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None
