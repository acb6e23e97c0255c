"""The file format of a recording: JSON lines, of which the first is a :class:`Header` and each other one is a
:class:`RecordedCall`. The module does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
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
    """The first line of a recording. ``lacks`` lists what the recorder, or the format from which the recording was
    read, does not know of a call, such as ``strides``."""

    format: str
    version: int
    torch: str = ""
    command: str = ""
    lacks: tuple[str, ...] = ()


class Values(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the elements of a tensor were: the smallest and the largest finite one, and which special ones occur.
    ``repeats`` is True if an element of a tensor of integers occurs twice."""

    low: float | None = None  # None: there is no finite element, or it is unknown
    high: float | None = None
    nan: bool = False
    infinite: bool = False
    repeats: bool = True


class RecordedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor among the arguments of a call. ``stride`` and ``offset`` count elements. Tensors of the call with the same
    number ``storage`` share their memory. ``elements`` are the elements as :mod:`opinfo.encoding` writes them; None if
    they were not recorded."""

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


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a program makes a call: the path of the innermost module, such as ``Net.layers.0``, and the source line. A
    part that is unknown is empty."""

    module: str = ""
    line: str = ""  # as ``file.py:12``


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A distinct call of an overload of an op. ``args`` and ``kwargs`` are written as :mod:`opinfo.encoding` writes
    arguments; a tensor is ``{"tensor": N}``, where N is its number in ``tensors``. ``places`` has the number of calls at
    each place; a place is listed once."""

    op: str  # such as ``aten.addmm.default``
    args: Any
    kwargs: Any
    tensors: tuple[RecordedTensor, ...]
    count: int = 1
    phase: str = ""  # forward, backward or optimizer; empty if unknown
    autocast: str = ""  # the dtype of the autocast region; empty outside such a region
    places: tuple[tuple[Place, int], ...] = ()

    @property
    def digest(self) -> str:
        """Six hexadecimal digits of a hash of the call without its values, counts and places: two recordings of one
        program give a call the same digits."""
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
        """The dtype by which a run lists the call: that of the first floating-point or complex tensor, otherwise that of
        the first tensor; ``float32`` for a call without tensors."""
        names = [each.dtype for each in self.tensors]
        inexact = (each for each in names if each.startswith(("float", "bfloat", "complex")))
        return next(inexact, names[0] if names else "float32")

    @property
    def where(self) -> str:
        """The place at which the program makes most of the calls, as ``file.py:12 (Net.layers.0)``."""
        if not self.places:
            return ""
        place, _ = max(self.places, key=lambda each: each[1])
        return f"{place.line} ({place.module})" if place.module else place.line


class Recording(msgspec.Struct, frozen=True):
    """A recording: its header and its distinct calls in the order of their first occurrence."""

    header: Header
    calls: tuple[RecordedCall, ...]

    @property
    def count(self) -> int:
        """The number of calls that the program made."""
        return sum(call.count for call in self.calls)

    def named(self) -> Mapping[str, RecordedCall]:
        """Returns the calls by name. Calls that differ only in what the name does not cover, such as the autocast region,
        get one entry, with the sum of their counts."""
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
            f"{path} has version {header.version} of the format; this version of conform reads version {VERSION}"
        )
    decoder, calls = msgspec.json.Decoder(RecordedCall), []
    for number, line in enumerate(rest, 2):
        try:
            calls.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise RecordingError(f"{path}, line {number}: {error}") from None
    return Recording(header, tuple(calls))
