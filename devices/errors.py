"""The base class of errors that users see as one line, without a traceback, and functions that write parts of
messages."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class ConformError(Exception):
    """An error that the user can fix. Its text says what was expected, what was found, and what to do.

    ``exit_code`` is the exit code of a command that ends with this error: 4 (usage) unless a subclass sets another
    code.
    """

    exit_code: int = 4


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's text, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]


def in_a_line(error: BaseException) -> str:
    """Returns an exception as one line: its type and the first line of its text. If the text is empty, the line says
    where the exception was raised."""
    name, line = type(error).__name__, first_line(error)
    if line:
        return f"{name}: {line}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name


def with_cause(error: BaseException) -> str:
    """Returns an exception as one line. If other exceptions caused it, the line also names the first of them."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return in_a_line(error) + (f" (from {in_a_line(first)})" if first is not error else "")


def listing(names: Iterable[str]) -> str:
    """Returns the given names sorted, quoted and joined by commas; 'none' if no name is given."""
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns a suggestion for a misspelled word, such as "; did you mean 'x' or 'y'?". The text is empty if no known
    name is similar."""
    near = get_close_matches(word, sorted(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
