"""How a check ends other than by passing."""

from __future__ import annotations

from typing import Any


class CheckFailed(AssertionError):
    """The device did not do what the clause says."""


class NotShown(Exception):
    """What must have happened before anything could be judged did not: an error of the cell."""


class NotInFlight(NotShown):
    """Work was to be in flight, and was not any more. The case is tried again with more of it."""


def shown(value: Any) -> str:
    """A value in a message: short, and never asking a broken device for more than its text."""
    try:
        text = repr(value)
    except Exception as error:  # printing a tensor runs kernels
        text = f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}…"
