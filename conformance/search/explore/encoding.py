"""Converts calls and programs to plain JSON data and back, for pinned examples.

Each type of argument has its own tag. Arguments of other types cannot be pinned and raise NotEncodable.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from conformance.checks.cases.cases import Case
from conformance.checks.cases.drawing import Program
from conformance.search.minimise.candidates import Candidate
from devices.errors import ConformError
from opinfo.catalog import dtype_name
from opinfo.compare import Call
from opinfo.layouts import parse_layout
from opinfo.samples import Sample

#: Tensors with up to this many elements are written as lists of numbers; larger ones are compressed.
_READABLE = 32
_NUMBERS = (torch.bool, torch.int64, torch.int32, torch.float32, torch.float64)
#: The parts of a call that have a layout.
_PLACES = ("first", "rest", "target")


class NotEncodable(ConformError):
    """The exception raised if an argument cannot be written as plain JSON data."""


class NotRebuilt(ConformError):
    """The exception raised if the data is not a valid call or program, because another version wrote it or somebody edited it."""


def encode(candidate: Candidate) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a call and the layouts of its tensors as plain JSON data. Raises NotEncodable if an argument cannot be
    written."""
    sample = candidate.sample
    numbers = {id(t): n for n, t in enumerate(sample.tensors)}
    call = {
        "sample": sample.drawn,
        "args": [_encode(a, numbers) for a in sample.call.args],
        "kwargs": {name: _encode(v, numbers) for name, v in sample.call.kwargs.items()},
        "tensors": [_tensor(t) for t in sample.tensors],
    }
    return call, {place: getattr(candidate, place).id for place in _PLACES}


def decode(
    call: dict[str, Any], layouts: dict[str, str], drawn: Sequence[Sample] = ()
) -> Candidate:
    """Returns the call that the data of a pinned example describes. Raises NotRebuilt if the data is not valid.

    ``drawn`` are the samples of the database. The sample from which the example was made has the function that removes
    the arbitrary parts (signs, phases) of the op's outputs. This function is used, because data cannot contain one.
    """
    try:
        tensors = [_tensor_back(t) for t in call["tensors"]]
        args = tuple(_decode(a, tensors) for a in call["args"])
        kwargs = {str(name): _decode(v, tensors) for name, v in call["kwargs"].items()}
        index = int(call["sample"])
        process = next((s.process for s in drawn if s.index == index), lambda result: result)
        sample = Sample(index, Call(args, kwargs), process)
        return Candidate(sample, *(parse_layout(layouts[place]) for place in _PLACES))
    except (
        *(KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError),
        *(zlib.error, RecursionError),
    ) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None


class _Kind(NamedTuple):
    """A type of argument, with the functions that convert a value to JSON data and back."""

    type: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _constants(kind: type) -> _Kind:
    """Returns the conversion for constants of torch, such as dtypes."""

    def read(name: str) -> Any:
        found = getattr(torch, name)
        if not isinstance(found, kind):
            raise ValueError(f"torch.{name} is not a {kind.__name__}")
        return found

    return _Kind(kind, lambda value: str(value).removeprefix("torch."), read)


#: The kinds by tag. JSON has no infinities and NaN, so floats are written as strings. A device is replaced by
#: the one under test when the call is made.
_KINDS = {
    "float": _Kind(float, repr, float),
    "complex": _Kind(
        complex, lambda z: [repr(z.real), repr(z.imag)], lambda z: complex(*map(float, z))
    ),
    "ellipsis": _Kind(type(Ellipsis), lambda _: True, lambda _: Ellipsis),
    "slice": _Kind(slice, lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
    "tuple": _Kind(tuple, list, tuple),
    "size": _Kind(torch.Size, list, torch.Size),
    "device": _Kind(torch.device, lambda _: True, lambda _: torch.device("cpu")),
    "dtype": _constants(torch.dtype),
    "memory_format": _constants(torch.memory_format),
    "layout": _constants(torch.layout),
}
_TAGS = {kind.type: tag for tag, kind in _KINDS.items()}


def _encode(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": numbers[id(value)]}
    if value is None or type(value) is int or isinstance(value, (bool, str)):
        return value
    if type(value) is list:
        return [_encode(each, numbers) for each in value]
    if (tag := _TAGS.get(type(value))) is not None:
        return {tag: _encode(_KINDS[tag].write(value), numbers)}
    raise NotEncodable(
        f"an argument of type {type(value).__name__} cannot be pinned: {value!r:.80}"
    )


def _decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    if tag == "tensor":
        return tensors[inner]
    if tag not in _KINDS:
        raise ValueError(f"unknown tag {tag!r}")
    return _KINDS[tag].read(_decode(inner, tensors))


def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.layout != torch.strided:
        raise NotEncodable(f"a tensor of layout {tensor.layout} cannot be pinned")
    flat = tensor.contiguous().view(-1)
    document: dict[str, Any] = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
    if flat.numel() <= _READABLE and tensor.dtype in _NUMBERS:
        values = flat.tolist()
        return {**document, "values": [*map(repr, values)] if flat.is_floating_point() else values}
    raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return {**document, "data": base64.b64encode(zlib.compress(raw, 9)).decode()}


def _tensor_back(document: dict[str, Any]) -> torch.Tensor:
    dtype, shape = getattr(torch, document["dtype"]), tuple(document["shape"])
    if "values" in document:
        numbers = [float(v) if isinstance(v, str) else v for v in document["values"]]
        return torch.tensor(numbers, dtype=dtype).reshape(shape)
    raw = bytearray(zlib.decompress(base64.b64decode(document["data"], validate=True)))
    if not raw:
        return torch.empty(shape, dtype=dtype).reshape(shape)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


# -- programs


def encode_program(program: Sequence[Any]) -> list[Any]:
    """Returns a program as plain JSON data. Raises NotEncodable if a part cannot be written."""
    return [_plain(each) for each in program]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return encode_program(value)
    if type(value) in (int, bool, str):
        return value
    raise NotEncodable(f"a {type(value).__name__} in a program cannot be pinned: {value!r}")


def decode_program(case: Case, program: Sequence[Any]) -> Program:
    """Returns the program that encoded data describes. Raises NotRebuilt if it is not a valid program of the case."""
    if case.drawn is None:
        raise NotRebuilt(f"{case.clause}::{case.name} no longer draws programs")
    found: Program = _literal(list(program))
    try:
        case.drawn.validate(*found)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None
    return found


def _literal(value: Any) -> Any:
    return tuple(map(_literal, value)) if isinstance(value, list) else value
