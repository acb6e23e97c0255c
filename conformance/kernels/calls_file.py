"""The files through which the processes of a judgement exchange data: the planned calls, the memory of their tensors,
and the kernel's answers. The calls and the memory are written before the kernel's process starts, and the answers are
read after it has ended."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from devices.errors import ConformError
from opinfo.compare import replace_tensors

#: The names of the files in the folder of a judgement.
REQUEST, CALLS, MEMORY = "request.json", "calls.msgpack", "memory.bin"
ANSWERS, PROGRESS, LOADED = "answers.bin", "progress", "loaded.json"
VERDICT, REFUSAL = "judgement.msgpack", "refusal.json"
#: The folder with what the judge's process found out about the reference in one round and needs in the next ones.
FINDINGS: Final = "findings"

#: The length of the progress file: the number of the step that has begun.
STEP_BYTES: Final = 12

#: The steps of a kernel's process after its last call, as numbers that are added to the number of calls.
FINISHING, OPCHECKING, TIMING, ENDED = 1, 2, 3, 4

#: The name of the folder of the first round, in which opcheck is run and times are measured.
FIRST_ROUND: Final = "round-0"

#: The most rounds of calls: in each, the kernel gets calls that follow from wrong results of earlier ones. The judgement
#: after the last round counts further calls as calls without an answer.
ROUNDS: Final = 6

#: The result of opcheck if the kernel answered no call, so that there are no arguments.
NOT_RUN: Final = "not run: the kernel answered no call"

_LENGTH: Final = struct.Struct("<QQ")


class Region(msgspec.Struct, frozen=True):
    """The memory of one storage in the memory file. Whole pages, ``mapped`` bytes from position ``at``, are mapped into
    the kernel's process. The storage is the ``nbytes`` bytes that begin ``lead`` bytes after ``at``."""

    at: int
    nbytes: int
    mapped: int
    lead: int


class View(msgspec.Struct, frozen=True):
    """A tensor argument of a call: the number of its storage (among the storages of the call), its dtype, shape,
    strides and offset, and its conjugate and negative bits."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool = False
    neg: bool = False


class PlannedCall(msgspec.Struct, frozen=True):
    """A call that the kernel's process must make. ``arguments`` are the positional and keyword arguments as data, with
    numbers in place of tensors. ``key`` is the same for equal calls. If ``held`` is True, the call gets the same tensor
    objects as the previous call, with new values in their memory."""

    key: bytes
    arguments: Any
    tensors: tuple[View, ...]
    storages: tuple[Region, ...]
    held: bool = False


class Output(msgspec.Struct, frozen=True):
    """A tensor in the result of a call. ``kind`` is its class and ``device`` its device type. If it lies in the storage
    of an argument, ``storage`` is the number of that storage, and ``offset`` is its storage offset in elements.
    Otherwise ``storage`` is None, and the ``span`` bytes of memory that begin with its first element are stored after
    the answer's header."""

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
    """The outcome of one call of the kernel: the structure of its result, with numbers in place of tensors, or the type
    and message of the exception that it raised. ``moved`` has the new shape, strides and offset of each argument that
    the call restrided or resized. ``calls`` are the names of the aten ops that the kernel called, and "reference" if it
    called its reference."""

    call: int
    result: Any = None
    outputs: tuple[Output, ...] = ()
    raised: tuple[str, str] | None = None
    moved: dict[int, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
    calls: tuple[str, ...] = ()
    late: bool = False  # a later call changed the result
    timed: bool = (
        False  # the result of one more call with the same arguments, whose time was measured
    )
    ended: str = ""  # how the process ended in this call


class Loaded(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the kernel's process reports besides its answers: the error if the kernel could not be loaded, the names of
    torch and Python that the kernel replaced, the results of opcheck, and the measured times. ``timed`` describes the
    arguments of the call that was timed, and ``untimed`` says why no time was measured."""

    error: str = ""
    replaced: tuple[str, ...] = ()
    opcheck: dict[str, str] = {}
    kernel_us: float = 0.0
    replaced_us: float = 0.0
    timed: str = ""
    untimed: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a request cannot be judged, and the exit code with which the command then ends."""

    why: str
    exit_code: int


_encode = msgspec.msgpack.Encoder().encode


def write(path: Path, value: Any) -> None:
    path.write_bytes(_encode(value))


def read(path: Path, kind: Any) -> Any:
    """Returns the content of a file, decoded as the type ``kind``. Raises ConformError if the kernel's process damaged
    the file."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConformError(f"{path.name}: {error}") from error


def packed(answer: Answer, blobs: list[bytes]) -> bytes:
    """Returns an answer and the bytes of its outputs as one record of the answers file."""
    head, body = _encode(answer), b"".join(blobs)
    return _LENGTH.pack(len(head), len(body)) + head + body


def answers_in(path: Path) -> Iterator[tuple[Answer, memoryview]]:
    """Yields each answer in an answers file, with the bytes of its outputs. If the process ended while it wrote the
    last answer, the incomplete answer is skipped."""
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


def arguments_text(args: Any, kwargs: Any) -> str:
    """Returns the arguments of a call as one line, with the dtype and shape of each tensor."""

    def shown(tensor: torch.Tensor) -> Any:
        return f"{str(tensor.dtype)[6:]}{[*tensor.shape]}"

    args, kwargs = replace_tensors((args, kwargs), shown)
    return ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())])
