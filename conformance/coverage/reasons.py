"""The reasons why the suite does not judge some overloads that have a kernel on the CPU, read from a file."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

REASONS_FILE: Final = Path(__file__).with_name("reasons.toml")


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Overloads that the suite does not judge, and the reason for that.

    ``users`` is True if a public function of torch calls the overloads with strided tensors. It is False if they are
    called only through the dispatcher's own interface (``torch.ops``, C++) or with other kinds of tensors.
    """

    why: str
    users: bool
    overloads: tuple[str, ...]  # globs

    def covers(self, overload: str) -> bool:
        return any(fnmatchcase(overload, glob) for glob in self.overloads)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: tuple[Reason, ...]


@cache
def reasons() -> tuple[Reason, ...]:
    """Returns all reasons, in the order of the file."""
    return msgspec.toml.decode(REASONS_FILE.read_bytes(), type=_File).reason


def reason_for(overload: str) -> Reason | None:
    """Returns the first reason whose globs match an overload; None if none does."""
    return next((each for each in reasons() if each.covers(overload)), None)
