"""The ways in which a check ends without passing."""

from __future__ import annotations

from typing import Any

from devices.errors import in_a_line
from devices.failure import Failure, Kind


class CheckFailed(AssertionError):
    """The device did not do what the clause says: ``failure`` says how, as data."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def of(cls, kind: Kind, subject: str, *, expected: str = "", found: str = "") -> CheckFailed:
        """What must hold is the ``subject``, a sentence."""
        return cls(Failure(kind=kind, subject=subject, expected=expected, found=found))


class NotShown(Exception):
    """A precondition of the check did not hold: an error of the cell."""


class NotDeclared(NotShown):
    """The check takes something that the descriptor does not declare: the cell is unsupported by declaration."""


class Blocked(NotShown):
    """The device does not do what the check stands on: the clause ``by`` says what that is, and must hold first."""

    def __init__(self, by: str, text: str) -> None:
        super().__init__(text)
        self.by = by


class NotInFlight(Blocked):
    """Work that should have been in flight was already done. The case is tried again with more of it."""

    def __init__(self, text: str) -> None:
        super().__init__("streams.query", text)


def failure_of(error: BaseException) -> Failure:
    """What an exception says of the device: its own failure, or that it was raised."""
    if isinstance(error, CheckFailed):
        return error.failure
    name = type(error).__name__
    detail = f"raised {in_a_line(error)}"
    return Failure(kind=Kind.RAISED, detail=detail, raises=name, said=str(error))


def shown(value: Any) -> str:
    """A value in a message: short, and never asking a broken device for more than its text."""
    try:
        text = repr(value)
    except Exception as error:  # printing a tensor runs kernels
        text = f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}…"
