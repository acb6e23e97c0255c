"""What locating a fault found, as data. The module does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import msgspec

from conformance.recordings.wire import Place
from devices.errors import ConformError
from devices.files import write_whole

FORMAT: Final = "torch-conformance-located"


class LocateError(ConformError):
    """The error for a program in which nothing can be located, or for a damaged file."""


class LocatedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of the program. ``number`` counts the calls on the device from 1, ``inputs`` describe its tensors."""

    number: int
    op: str
    place: Place = Place()
    phase: str = ""
    inputs: tuple[str, ...] = ()
    call: str = ""

    @property
    def where(self) -> str:
        """The line and the module, as ``train.py:12 (Net.layers.0)``."""
        line, module = self.place.line, self.place.module
        return f"{line} ({module})" if line and module else line or module or "an unknown line"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """A wrong call. ``with_calls`` are the calls of its window, if more than one call was made without reading back."""

    call: LocatedCall
    message: str
    script: str = ""
    with_calls: tuple[LocatedCall, ...] = ()


class Growth(msgspec.Struct, frozen=True):
    """The call after which the error of the program grows most: the relative error of its inputs before, and of its
    outputs after it, both against the program in float64."""

    call: LocatedCall
    before: float
    after: float


class _Grown(Protocol):
    @property
    def before(self) -> float: ...
    @property
    def after(self) -> float: ...


def growth_of(each: _Grown) -> float:
    """Returns by how much an error grows from ``before`` a call to ``after`` it; an error above 1 counts as 1."""
    return min(each.after, 1.0) - min(each.before, 1.0)


class Located(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run of a program found."""

    device: str
    calls: int = 0
    judged: int = 0
    window: int = 1
    fault: Fault | None = None
    wrong: int = 0  # all wrong calls
    wrong_ops: tuple[tuple[str, int], ...] = ()
    growth: Growth | None = None
    error: float | None = None  # of the program's last result
    unjudged: tuple[tuple[str, int], ...] = ()  # reasons, with the number of calls
    ended: str = ""  # the exception with which the program ended
    elsewhere: int = 0  # calls on other devices
    format: str = FORMAT


def write_located(path: Path, located: Located) -> None:
    """Writes what was found. Raises OSError."""
    write_whole(path, msgspec.json.encode(located) + b"\n")


def read_located(path: Path) -> Located:
    """Returns what was found. Raises LocateError if the file is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Located)
    except (OSError, msgspec.MsgspecError) as error:
        raise LocateError(f"{path} cannot be read: {error}") from None
