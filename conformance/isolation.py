"""What is known of a worker that died: the journal that names the cell which was running.

Before a group of clauses starts, the worker writes item and clause to a small file of its own; the write
survives SIGKILL (it needs no fsync for that). The controller reads it when xdist reports the death.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec


class Journal:
    """One worker's file. ``begin`` names the cell that is about to run, ``end`` that none is."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / f"{worker}.cur", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def begin(self, op: str, dtype: str, clause: str) -> None:
        self._write(msgspec.json.encode([op, dtype, clause]))

    def end(self) -> None:
        self._write(b"")

    def _write(self, text: bytes) -> None:
        # Length and content in one pwrite, so that no reader sees half of it.
        os.pwrite(self._file, len(text).to_bytes(4, "little") + text, 0)


def last_entry(folder: Path, worker: str) -> tuple[str, str, str] | None:
    """The (op, dtype, clause) that a worker was in when it died, or None."""
    try:
        raw = (folder / f"{worker}.cur").read_bytes()
    except FileNotFoundError:
        return None
    size = int.from_bytes(raw[:4], "little")
    if not size or len(raw) < 4 + size:
        return None
    op, dtype, clause = msgspec.json.decode(raw[4 : 4 + size])
    return str(op), str(dtype), str(clause)


def ended(process: subprocess.Popen[bytes], seconds: float = 10) -> int | None:
    """The status of a process whose pipe has closed: the kernel may still be writing its core."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def death_of(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None:
        return "its end was not seen"
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"exited with status {returncode}"
