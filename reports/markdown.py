"""Texts of a run in markdown (GitHub-flavoured): none of them can forge formatting, and names stay fit to be pasted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from reports.junit import one_line

_SPECIAL: Final = re.compile(r"([\\`*_\[\](){}|~#$!+@-])")
_NOT_PLAIN: Final = re.compile(r"[^\w ]")
_TICKS: Final = re.compile("`+")


def md(text: str) -> str:
    """Text that markdown shows as it is, in a table too."""
    entities = escape(one_line(text), quote=False)
    # A colon between slashes would be made a link.
    return _SPECIAL.sub(r"\\\1", entities).replace("://", "&#58;//")


def code(text: str) -> str:
    """Text as code, in backticks: not for tables, where a pipe would end the cell."""
    line = one_line(text)
    fence = "`" * (_longest(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") or not line.strip() else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def cell_code(text: str) -> str:
    """Text as code for the cell of a table: each character with a meaning is written as an entity."""
    entities = _NOT_PLAIN.sub(lambda found: f"&#{ord(found[0])};", one_line(text))
    return f"<code>{entities.replace('_', '&#95;')}</code>" if entities else ""


def block(lines: Iterable[str]) -> list[str]:
    """Lines as a block of code. Their indentation is kept."""
    shown = [_indented(line) for line in lines]
    fence = "`" * max(3, *(_longest(line) + 1 for line in shown), 3)
    return [f"{fence}text", *shown, fence]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> list[str]:
    """A table: ``texts`` columns of text, the others of numbers. The cells are markdown already."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return [f"| {' | '.join(row)} |" for row in (list(map(md, header)), rule, *rows)]


def _longest(line: str) -> int:
    """The length of the longest run of backticks."""
    return max(map(len, _TICKS.findall(line)), default=0)


def _indented(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" "))) + one_line(line)
