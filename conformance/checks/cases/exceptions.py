"""The exceptions that end a check which does not pass."""

from __future__ import annotations

from typing import Any

from devices.errors import in_a_line
from devices.failure import Failure, Kind


class CheckFailed(AssertionError):
    """The exception raised if the device broke the clause. ``failure`` describes the failure as data."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def of(cls, kind: Kind, subject: str, *, expected: str = "", found: str = "") -> CheckFailed:
        """Builds the exception from a ``subject``, a sentence that says what is wrong."""
        return cls(Failure(kind=kind, subject=subject, expected=expected, found=found))


class NotShown(Exception):
    """The exception raised if a precondition of the check was not met, so nothing was judged. The outcome of the cell
    is an error."""


class NotDeclared(NotShown):
    """The exception raised if the check needs something that the descriptor does not declare. The outcome of the cell
    is "unsupported by declaration"."""


class Blocked(NotShown):
    """The exception raised if the check cannot be made because the device breaks the clause ``by``, on which the check
    depends."""

    def __init__(self, by: str, text: str) -> None:
        super().__init__(text)
        self.by = by


class NotInFlight(Blocked):
    """The exception raised if queued work finished before the check could observe it. The case is tried again with
    longer work."""

    def __init__(self, text: str) -> None:
        super().__init__("streams.query", text)


def failure_of(error: BaseException) -> Failure:
    """Returns the failure of a CheckFailed; for any other exception, a new failure that says which exception was
    raised."""
    if isinstance(error, CheckFailed):
        return error.failure
    name = type(error).__name__
    detail = f"raised {in_a_line(error)}"
    return Failure(kind=Kind.RAISED, detail=detail, raises=name, said=str(error))


def short_repr(value: Any) -> str:
    """Returns a value as short text for a message. Never raises, although repr() of a tensor runs kernels of a device
    that may be broken."""
    try:
        text = repr(value)
    except Exception as error:  # printing a tensor runs kernels
        text = f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}…"
