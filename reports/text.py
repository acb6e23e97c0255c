"""Text for people: without what could forge output, quoted for the shell, escaped for markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from reports.junit import clean
from reports.model import CellResult


def repro_command(folder: Path, result: CellResult) -> str | None:
    """The command that shows the fault again, to be run from here."""
    if result.repro is None:
        return None
    return f"python {shlex.quote(str(folder / result.repro))}"


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which could forge output."""
    spaced = re.sub(r"\s+", " ", clean(text)).strip()
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in spaced)


_MD = re.compile(r"([\\`*_\[\](){}|~#$!+@-])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def md(text: str) -> str:
    """Text that markdown shows as it is, in a table too."""
    entities = re.sub("[&<>]", lambda match: _HTML[match.group()], one_line(text))
    # A colon between slashes would be made a link.
    return _MD.sub(r"\\\1", entities).replace("://", "&#58;//")


def table_row(cells: Iterable[str], *, escaped: bool = True) -> str:
    return "| " + " | ".join(md(cell) if escaped else cell for cell in cells) + " |"
