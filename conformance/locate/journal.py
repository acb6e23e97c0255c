"""A file that names the call that is being made, so that a call that ends the process is known. The module does not import
torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from conformance.locate.wire import LocatedCall

_SIZE: Final = 2048


class Journal:
    """The file, which is overwritten before each call."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, call: LocatedCall) -> None:
        """Names the call that is made next."""
        os.pwrite(self._file, msgspec.json.encode(call)[:_SIZE].ljust(_SIZE), 0)


def read_journal(path: Path) -> LocatedCall | None:
    """Returns the call that was being made; None if none was made."""
    try:
        return msgspec.json.decode(path.read_bytes().strip(), type=LocatedCall)
    except (OSError, msgspec.MsgspecError):
        return None
