"""The files through which the processes of a judgement talk: the planned calls, their memory, and the answers of the
kernel. The calls and the memory are written before the kernel's process starts, and its answers are read after it has
ended."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.errors import ConformError

#: The names of the files in the folder of a judgement.
REQUEST, CALLS, MEMORY = "request.json", "calls.msgpack", "memory.bin"
ANSWERS, PROGRESS, LOADED = "answers.bin", "progress", "loaded.json"
VERDICT, REFUSAL = "judgement.msgpack", "refusal.json"

#: The length of the progress file: the number of the step that has begun.
STEP_BYTES: Final = 12

_LENGTH: Final = struct.Struct("<QQ")


class Region(msgspec.Struct, frozen=True):
    """The memory of one storage: ``nbytes`` bytes that begin ``lead`` bytes after position ``at`` of the memory file.
    From ``at`` on, ``mapped`` bytes (whole pages) are mapped."""

    at: int
    nbytes: int
    mapped: int
    lead: int


class View(msgspec.Struct, frozen=True):
    """A tensor argument: the number of its storage among those of the call, its dtype, its geometry and its bits."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False


class PlannedCall(msgspec.Struct, frozen=True):
    """A call that the kernel is to get. ``arguments`` are the positional and keyword arguments as data, with numbers in
    place of tensors. ``key`` identifies equal calls. ``held`` is True if the call gets the tensors of the call before,
    whose memory holds other values. ``watched`` calls are not judged: while they run, the kernel's own calls are
    recorded."""

    key: bytes
    arguments: Any
    tensors: tuple[View, ...]
    storages: tuple[Region, ...]
    held: bool = False
    watched: bool = False


class Output(msgspec.Struct, frozen=True):
    """A tensor of a result. ``kind`` and ``device`` are its class and its device type. ``storage`` is the number of the
    argument's storage in which its first element lies, at element ``offset`` of that storage; None for a tensor in
    memory of its own. ``span`` bytes of its memory follow the answer's header, from its first element on."""

    kind: str
    device: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    conj: bool = False
    neg: bool = False
    storage: int | None = None
    span: int = 0
    outside: bool = False  # it extends past its storage, so it was not read


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the kernel did with one call: the structure of its result with numbers in place of tensors, or the exception
    that it raised, as (type, text). ``moved`` has the geometry of each argument that the call gave another one.
    ``calls`` are the aten ops and functions of a watched call."""

    call: int
    result: Any = None
    outputs: tuple[Output, ...] = ()
    raised: tuple[str, str] | None = None
    moved: dict[int, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
    calls: tuple[str, ...] = ()
    late: bool = False  # a later call changed the result
    ended: str = ""  # how the process ended in this call


class Loaded(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the kernel's process reports beside the answers: why the kernel could not be loaded, the names of torch and of
    Python that it replaced, and the results of further checks. ``timed`` has the arguments of the call that was timed."""

    error: str = ""
    replaced: tuple[str, ...] = ()
    opcheck: dict[str, str] = {}
    kernel_us: float = 0.0
    replaced_us: float = 0.0
    timed: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request cannot be judged, and the exit code for that."""

    why: str
    exit_code: int


_encode = msgspec.msgpack.Encoder().encode


def write(path: Path, value: Any) -> None:
    path.write_bytes(_encode(value))


def read(path: Path, kind: Any) -> Any:
    """Returns the content of a file as ``kind``. Raises ConformError if the kernel's process left a damaged file."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConformError(f"{path.name}: {error}") from error


def packed(answer: Answer, blobs: list[bytes]) -> bytes:
    """Returns an answer and the bytes of its outputs as one record of the answers file."""
    head, body = _encode(answer), b"".join(blobs)
    return _LENGTH.pack(len(head), len(body)) + head + body


def answers_in(path: Path) -> Iterator[tuple[Answer, memoryview]]:
    """Yields each answer of an answers file with the bytes of its outputs. A last record that is not whole, because the
    process ended while it wrote, is left out."""
    data = memoryview(path.read_bytes() if path.exists() else b"")
    decoder = msgspec.msgpack.Decoder(Answer)
    while len(data) >= _LENGTH.size:
        head, body = _LENGTH.unpack(data[: _LENGTH.size])
        end = _LENGTH.size + head + body
        if end > len(data):
            return
        try:
            answer = decoder.decode(data[_LENGTH.size : _LENGTH.size + head])
        except msgspec.DecodeError:
            return
        yield answer, data[_LENGTH.size + head : end]
        data = data[end:]
