"""One process' journal: a small file, mapped into memory, that says which cell runs. It survives SIGKILL.

A cell is named before it starts, with the seconds that it may take, and un-named after. Within a cell the
call that is about to be made may be named too. Nothing is synced to disk: a file's pages outlive their
process, and a machine that loses power loses the run anyway.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devices.cell import CellKey

# number, pid, limit in seconds, length of the cell's name
_HEAD: Final = struct.Struct("<QQdI")
_NUMBER: Final = struct.Struct("<Q")
_LENGTH: Final = struct.Struct("<I")
_CELL: Final = 64
_CALL: Final = 2048
_SIZE: Final = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """What a journal says. ``number`` rises with each cell that is begun or ended; an odd one was being
    written. A cell without a clause is an item outside of its cells: samples are being drawn. ``call`` names
    the call that was about to be made, where that is known."""

    number: int
    pid: int
    limit: float
    cell: CellKey | None
    call: str = ""


class Journal:
    """The writing side. Raises OSError where the file cannot be made."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path_of(folder, worker), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._number = 0
        self._pid = os.getpid()
        self._write(b"", 0.0)

    def begin(self, cell: CellKey, limit: float) -> None:
        """Name the cell that is about to run, and the seconds that it may take."""
        self._write("\t".join(cell).encode(), limit)

    def call(self, name: str) -> None:
        """Name the call that is about to be made in this cell. It shares the cell's time."""
        text = name.encode()[: _SIZE - _CALL - _LENGTH.size]
        self._map[_CALL : _CALL + 4 + len(text)] = _LENGTH.pack(len(text)) + text

    def end(self) -> None:
        """Nothing runs."""
        self._write(b"", 0.0)

    def close(self) -> None:
        self._map.close()

    def _write(self, text: bytes, limit: float) -> None:
        text = text[: _CALL - _CELL]
        number = self._number + 2
        # Odd while it is written: a reader of a process that died in here sees that.
        _NUMBER.pack_into(self._map, 0, number - 1)
        _LENGTH.pack_into(self._map, _CALL, 0)
        self._map[_CELL : _CELL + len(text)] = text
        _HEAD.pack_into(self._map, 0, number - 1, self._pid, limit, len(text))
        _NUMBER.pack_into(self._map, 0, number)
        self._number = number


def path_of(folder: Path, worker: str) -> Path:
    """Where a worker's journal is."""
    return folder / f"{worker}.cur"


def read_entry(folder: Path, worker: str) -> Entry | None:
    """What a worker's journal says; None where there is none. One that was being written names no cell."""
    try:
        raw = path_of(folder, worker).read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < _SIZE:
        return None
    number, pid, limit, length = _HEAD.unpack_from(raw)
    cell = None
    if length and not number % 2:
        parts = raw[_CELL : _CELL + length].decode(errors="replace").split("\t")
        if len(parts) == 3:
            cell = CellKey(*parts)
    (said,) = _LENGTH.unpack_from(raw, _CALL)
    call = raw[_CALL + 4 : _CALL + 4 + said].decode(errors="replace") if cell else ""
    return Entry(number, pid, limit, cell, call)
