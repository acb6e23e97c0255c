"""Functions that write the texts of a run as GitHub-flavoured markdown. Texts from a run cannot add formatting, and
names can be copied unchanged from the rendered page."""

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
    """Returns a string escaped so that markdown shows its characters literally, even inside a table."""
    entities = escape(one_line(text), quote=False)
    # A colon between slashes would be made a link.
    return _SPECIAL.sub(r"\\\1", entities).replace("://", "&#58;//")


def code(text: str) -> str:
    """Returns a text as inline code in backticks. Use ``cell_code`` in a table, because a pipe in the text would end
    the cell of the table."""
    line = one_line(text)
    fence = "`" * (_longest(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") or not line.strip() else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def cell_code(text: str) -> str:
    """Returns a text as inline code for a table cell. Every character that could have a meaning in markdown is written
    as an HTML entity."""
    entities = _NOT_PLAIN.sub(lambda found: f"&#{ord(found[0])};", one_line(text))
    return f"<code>{entities.replace('_', '&#95;')}</code>" if entities else ""


def block(lines: Iterable[str]) -> list[str]:
    """Returns lines as a fenced code block. The indentation of the lines is kept."""
    shown = [_indented(line) for line in lines]
    fence = "`" * max(3, *(_longest(line) + 1 for line in shown), 3)
    return [f"{fence}text", *shown, fence]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> list[str]:
    """Returns the lines of a table. The first ``texts`` columns are aligned left, for texts, and the other columns
    right, for numbers. The header is escaped; the rows must already be markdown."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return [f"| {' | '.join(row)} |" for row in (list(map(md, header)), rule, *rows)]


def _longest(line: str) -> int:
    """Returns the length of the longest run of consecutive backticks in a text."""
    return max(map(len, _TICKS.findall(line)), default=0)


def _indented(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" "))) + one_line(line)
