"""The results of ``conform locate`` as data, and the file in which they are stored. The module does not import
torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import msgspec

from conformance.recordings.wire import Place
from devices.errors import ConformError
from devices.files import write_whole

FORMAT: Final = "torch-conformance-located"


class LocateError(ConformError):
    """The error for a program whose calls cannot be judged, or for a damaged file."""


class LocatedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of the program. ``number`` counts the program's calls on the device from 1, ``place`` is its source line
    and module, ``phase`` is forward, backward or optimizer, ``inputs`` describe its tensors, and ``call`` is the call
    as Python text."""

    number: int
    op: str
    place: Place = Place()
    phase: str = ""
    inputs: tuple[str, ...] = ()
    call: str = ""

    @property
    def where(self) -> str:
        """The source line and the module of the call, such as ``train.py:12 (Net.layers.0)``."""
        line, module = self.place.line, self.place.module
        return f"{line} ({module})" if line and module else line or module or "an unknown line"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first wrong call, and ``message``, which says what is wrong. ``script`` is the path of the repro script.
    ``with_calls`` has all calls of its window, if results were read back only after several calls."""

    call: LocatedCall
    message: str
    script: str = ""
    with_calls: tuple[LocatedCall, ...] = ()


class Growth(msgspec.Struct, frozen=True):
    """The call that adds most to the error of the program: the relative error of its inputs (``before``) and that of
    its outputs (``after``), both against a copy of the program in float64."""

    call: LocatedCall
    before: float
    after: float


class _Grown(Protocol):
    @property
    def before(self) -> float: ...
    @property
    def after(self) -> float: ...


def growth_of(each: _Grown) -> float:
    """Returns ``each.after`` minus ``each.before``, the relative errors after and before a call, where an error above 1
    counts as 1."""
    return min(each.after, 1.0) - min(each.before, 1.0)


class Located(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one run of a program: the first wrong call, and how many calls were judged."""

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
    """Writes the result of a run to a file. Raises OSError."""
    write_whole(path, msgspec.json.encode(located) + b"\n")


def read_located(path: Path) -> Located:
    """Returns the result of a run from a file. Raises LocateError if the file cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Located)
    except (OSError, msgspec.MsgspecError) as error:
        raise LocateError(f"{path} cannot be read: {error}") from None
