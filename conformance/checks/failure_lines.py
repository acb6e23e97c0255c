"""A failure in the first lines of a repro script: what was expected and what was found."""

from __future__ import annotations

import textwrap

from devices.failure import Failure

#: The width of a line, and the most lines of an expected or found value.
_WIDTH, _LINES = 100, 4


def expected_and_found(failure: Failure) -> list[str]:
    """Returns the lines that say what was expected and what was found."""
    if not failure.expected and not failure.found:
        return _wrapped("Found:    ", failure.message)
    rank = "" if failure.rank is None else f"rank {failure.rank}"
    lines = []
    if about := ", ".join(filter(None, (rank, failure.subject))):
        head = "Fault:    " if failure.check == "case" else "Of:       "
        lines += _wrapped(head, about)
    found = failure.found
    if (where := failure.where) is not None and where.count:
        first = f", the first at {list(where.first)}" if where.first else ""
        found += f"; {where.count} of {where.total} differ{first}"
    lines += _wrapped("Expected: ", failure.expected)
    return lines + _wrapped("Found:    ", "; ".join(filter(None, (found, failure.detail))))


def _wrapped(head: str, text: str) -> list[str]:
    if not text.strip():
        return []
    space = " " * len(head)
    given = {"width": _WIDTH, "max_lines": _LINES, "placeholder": " …"}
    return textwrap.wrap(text, initial_indent=head, subsequent_indent=space, **given)  # type: ignore[arg-type]


def in_docstring(text: str) -> str:
    """Returns a text with the characters replaced that would end a docstring or begin an escape."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
