"""Where repro scripts lie in a results folder."""

from __future__ import annotations

import re
from pathlib import Path

from devices.cell import CellKey


def write_repro(folder: Path, cell: CellKey, text: str) -> str:
    """Write a cell's repro script into a results folder; returns its path from there."""
    name = f"{cell.op}-{cell.dtype}" if cell.dtype else cell.op
    return write_script(folder, Path("repro") / cell.clause, name, text)


def write_script(folder: Path, inside: Path, name: str, text: str) -> str:
    """Write a script under a name that is harmless as a file name; returns its path from ``folder``."""
    path = folder / inside / (re.sub(r"[^A-Za-z0-9_.-]", "_", name) + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path.relative_to(folder).as_posix()
