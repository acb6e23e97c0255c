"""The file format of a recording: JSON lines. The first line is a :class:`Header`, and each other line is a
:class:`RecordedCall`. This module does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import frexp, isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.errors import ConformError
from devices.files import write_whole

#: The name of the format, which is the first word of every recording.
FORMAT: Final = "torch-conformance-recording"

#: Raised when a reader of the older format would misread a file.
VERSION: Final = 1


class RecordingError(ConformError):
    """The error for a file that is not a recording, or that is damaged."""


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of a recording. ``lacks`` lists what is missing in the recording: calls that could not be
    recorded, or properties such as ``strides`` that the original format did not have."""

    format: str
    version: int
    torch: str = ""
    command: str = ""
    lacks: tuple[str, ...] = ()


class Values(msgspec.Struct, frozen=True, omit_defaults=True):
    """The range of a tensor's elements: the smallest and the largest finite one, and whether there are NaN or infinite
    elements. ``repeats`` is True if an integer tensor has the same element twice."""

    low: int | float | None = None  # None: there is no finite element, or it is unknown
    high: int | float | None = None
    nan: bool = False
    infinite: bool = False
    repeats: bool = True


class RecordedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor among the arguments of a call. ``stride`` and ``offset`` count elements. Tensors of the call with the
    same number ``storage`` share their memory. ``elements`` are the elements as :mod:`opinfo.encoding` writes them;
    None if they were not recorded."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None  # None: unknown, the format has no strides
    offset: int = 0
    storage: int = 0
    device: str = ""
    requires_grad: bool = False
    parameter: bool = False
    values: Values = Values()
    elements: Any = None


#: The largest size, stride and offset that torch has.
_LARGEST: Final = 2**63 - 1


def geometry_fault(tensor: RecordedTensor) -> str:
    """Returns the reason why a recorded geometry is impossible for a tensor; an empty string if it is possible."""
    strides = tensor.stride if tensor.stride is not None else tensor.shape
    numbers = (*tensor.shape, *strides, tensor.offset)
    if any(type(each) is not int or not 0 <= each <= _LARGEST for each in numbers):
        return f"no tensor has the sizes {numbers}"
    if len(strides) != len(tensor.shape):
        return f"{len(strides)} strides of a tensor of {len(tensor.shape)} dimensions"
    return ""


#: Multiples of one half up to this number are compared exactly.
_EXACT: Final = 16.0


def number_key(number: float) -> tuple[Any, ...]:
    """Returns a key that two floating-point arguments share if calls that differ only in them count as one call.

    An optimizer may pass another step size in each step, so numbers of the same sign and order of magnitude share a
    key. Small multiples of one half do not: kernels treat an exponent of 0.5, 2 or 3, or a factor of 1, in their own
    ways."""
    if abs(number) <= _EXACT and (2 * number).is_integer():
        return float, number
    return (float, number < 0, frexp(number)[1]) if isfinite(number) else (float, repr(number))


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place in the program where a call is made: the path of the innermost module, such as ``Net.layers.0``, and
    the source line. An unknown part is empty."""

    module: str = ""
    line: str = ""  # as ``file.py:12``


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A distinct call of an op's overload. ``args`` and ``kwargs`` are encoded by :mod:`opinfo.encoding`; a tensor is
    encoded as ``{"tensor": N}``, where N is its index in ``tensors``. ``places`` lists where in the program the call is
    made (module and source line), with the number of calls for each."""

    op: str  # such as ``aten.addmm.default``
    args: list[Any]
    kwargs: dict[str, Any]
    tensors: tuple[RecordedTensor, ...]
    count: int = 1
    phase: str = ""  # forward, backward or optimizer; empty if unknown
    autocast: str = ""  # the dtype of the autocast region; empty outside such a region
    places: tuple[tuple[Place, int], ...] = ()

    @property
    def digest(self) -> str:
        """Six hexadecimal digits of a hash of the call without the values of its tensors, its counts and its source
        lines. The same call in two recordings of a program has the same digits."""
        known = [
            (each.dtype, each.shape, each.stride, each.offset, each.storage)
            for each in self.tensors
        ]
        text = msgspec.json.encode((self.op, self.args, self.kwargs, known))
        return hashlib.blake2b(text, digest_size=3).hexdigest()

    @property
    def name(self) -> str:
        """The name of the call in a run, such as ``addmm.default~3fa2c1``. The namespace ``aten`` is left out."""
        return f"{self.op.removeprefix('aten.')}~{self.digest}"

    @property
    def dtype(self) -> str:
        """The dtype under which a run lists the call: that of its first floating-point or complex tensor or, if there
        is none, of its first tensor; ``float32`` for a call without tensors."""
        names = [each.dtype for each in self.tensors]
        inexact = (each for each in names if each.startswith(("float", "bfloat", "complex")))
        return next(inexact, names[0] if names else "float32")

    @property
    def place(self) -> Place:
        """The module and source line of the program that make the call most often."""
        return max(self.places, key=lambda each: each[1], default=(Place(), 0))[0]

    @property
    def where(self) -> str:
        """The module and source line of the program that make the call most often, as text such as ``file.py:12
        (Net.layers.0)``."""
        place = self.place
        return f"{place.line} ({place.module})" if place.module else place.line


class Recording(msgspec.Struct, frozen=True):
    """A recording: its header, and its distinct calls in the order in which they first occurred."""

    header: Header
    calls: tuple[RecordedCall, ...]

    @property
    def count(self) -> int:
        """The number of calls that the program made."""
        return sum(call.count for call in self.calls)

    def named(self) -> Mapping[str, RecordedCall]:
        """Returns the calls by name. Calls that have the same name, because they differ only in the autocast region or
        the like, are merged into one with the sum of their counts."""
        found: dict[str, RecordedCall] = {}
        for call in self.calls:
            before = found.get(call.name)
            found[call.name] = call if before is None else _joined(before, call)
        return found


def _joined(one: RecordedCall, other: RecordedCall) -> RecordedCall:
    places = dict(one.places)
    for place, count in other.places:
        places[place] = places.get(place, 0) + count
    return msgspec.structs.replace(one, count=one.count + other.count, places=tuple(places.items()))


def encode_recording(recording: Recording) -> bytes:
    """Returns the content of the file of a recording."""
    lines = [msgspec.json.encode(each) for each in (recording.header, *recording.calls)]
    return b"\n".join(lines) + b"\n"


def write_recording(path: Path, recording: Recording) -> None:
    """Writes a recording. Raises OSError."""
    write_whole(path, encode_recording(recording))


def read_recording(path: Path) -> Recording:
    """Returns the recording in a file. Raises RecordingError if the file cannot be read, is not a recording or is
    damaged."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
    return _read_lines(path, lines)


def _read_lines(path: Path, lines: Iterable[bytes]) -> Recording:
    rest = iter(lines)
    try:
        header = msgspec.json.decode(next(rest, b""), type=Header)
    except msgspec.MsgspecError:
        header = None
    if header is None or header.format != FORMAT:
        raise RecordingError(
            f"{path} is not a recording: its first line must be the header that `conform record` writes"
        )
    if header.version != VERSION:
        raise RecordingError(
            f"{path}: expected version {VERSION} of the recording format, found version "
            f"{header.version}"
        )
    decoder, calls = msgspec.json.Decoder(RecordedCall), []
    for number, line in enumerate(rest, 2):
        try:
            call = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise RecordingError(f"{path}, line {number}: {error}") from None
        except RecursionError:
            raise RecordingError(f"{path}, line {number}: nested too deeply") from None
        if why := next(filter(None, map(geometry_fault, call.tensors)), ""):
            raise RecordingError(f"{path}, line {number}: {why}")
        calls.append(call)
    return Recording(header, tuple(calls))
