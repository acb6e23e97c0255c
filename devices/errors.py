"""Errors that are shown to people in one line, without a traceback, and the wording they share."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class ConformError(Exception):
    """Something the user can act on: what was expected, what came, what to do.

    ``exit_code`` is what the command line exits with where the error ends it; 4 (usage) unless a
    subclass says otherwise.
    """

    exit_code: int = 4


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, at most 300 characters."""
    return (str(error).strip().splitlines() or [""])[0][:300]


def in_a_line(error: BaseException) -> str:
    """An exception in a line: its type and the first line of its text, or where it was raised if it has none."""
    name, line = type(error).__name__, first_line(error)
    if line:
        return f"{name}: {line}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else name


def with_cause(error: BaseException) -> str:
    """The same, with the first exception of those that led to it."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return in_a_line(error) + (f" (from {in_a_line(first)})" if first is not error else "")


def listing(names: Iterable[str]) -> str:
    """The names sorted, quoted and joined by commas; 'none' where there are none."""
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"


def suggestion(word: str, known: Iterable[str]) -> str:
    """What may have been meant by ``word``: "; did you mean 'x' or 'y'?", or nothing."""
    near = get_close_matches(word, sorted(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
