"""Runs a command on a pseudo-terminal, and returns what a person would see there."""

from __future__ import annotations

import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
ROWS, COLUMNS = 25, 120
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")

#: The commands as users type them, for a checkout that is not installed.
_PROLOGUE = "\n".join(
    f'{name}() {{ {shlex.quote(sys.executable)} -m {module} "$@"; }}'
    for name, module in (("conform", "conformance.cli"), ("pytest", "pytest"))
)


@dataclass(frozen=True, slots=True)
class Screen:
    """What a command printed, line by line as the terminal leaves them, and its exit status."""

    command: str
    status: int
    lines: tuple[str, ...]

    @property
    def last(self) -> str:
        """The last screenful."""
        return "\n".join(self.lines[-ROWS:])

    def __str__(self) -> str:
        return "\n".join([f"$ {self.command}", *self.lines, f"[exit status {self.status}]"])


def run_on_terminal(command: str, folder: Path, environment: dict[str, str]) -> Screen:
    """Run a line of bash in ``folder`` on a terminal of 25 rows and 120 columns, and wait for its end."""
    reader, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    child = subprocess.Popen(
        ["bash", "-c", f"{_PROLOGUE}\n{command}"],
        cwd=folder,
        env={**environment, "TERM": "xterm-256color", "PYTHONPATH": str(CHECKOUT)},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    printed = bytearray()
    while piece := _read(reader):
        printed += piece
    os.close(reader)
    return Screen(command, child.wait(), _lines(printed.decode(errors="replace")))


def _read(reader: int) -> bytes:
    """The next bytes; none once every process has closed the terminal, which Linux reports as EIO."""
    try:
        return os.read(reader, 65536)
    except OSError:
        return b""


def _lines(text: str) -> tuple[str, ...]:
    """Lines as they stay on the screen: a carriage return overwrites the line from its start."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in plain.split("\n"))
    return tuple(lines)[: -1 if plain.endswith("\n") else None]
