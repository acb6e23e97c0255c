"""Calls and programs as plain JSON data, and back: what a pinned example holds.

Each type of argument has a tag of its own. An argument of any other type cannot be pinned: NotEncodable.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.cases.cases import Case
from conformance.checks.cases.drawing import Program
from conformance.search.minimise.subject import Candidate
from devices.errors import ConformError
from opinfo.catalog import dtype_name
from opinfo.compare import Call
from opinfo.layouts import parse_layout
from opinfo.samples import Sample

#: Tensors up to this many elements are written as lists of numbers, larger ones compressed.
_READABLE = 32

_ENUMS = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}


class NotEncodable(ConformError):
    """An argument that plain data cannot hold."""


class NotRebuilt(ConformError):
    """Data that is not a call or a program: written by another version, or edited."""


def encode(candidate: Candidate) -> tuple[dict[str, Any], dict[str, str]]:
    """The call and the layouts of a candidate. Raises NotEncodable."""
    sample = candidate.sample
    numbers = {id(t): n for n, t in enumerate(sample.tensors)}
    call = {
        "sample": sample.index,
        "args": [_encode(a, numbers) for a in sample.call.args],
        "kwargs": {name: _encode(v, numbers) for name, v in sample.call.kwargs.items()},
        "tensors": [_tensor(t) for t in sample.tensors],
    }
    layouts = {
        "first": candidate.first.id,
        "rest": candidate.rest.id,
        "target": candidate.target.id,
    }
    return call, layouts


def decode(
    call: dict[str, Any], layouts: dict[str, str], drawn: Sequence[Sample] = ()
) -> Candidate:
    """The candidate back. Raises NotRebuilt.

    ``drawn`` are the database's samples. The one that the example came from knows what is not unique about the
    op's outputs (signs, phases), which data cannot hold.
    """
    try:
        tensors = [_tensor_back(t) for t in call["tensors"]]
        args = tuple(_decode(a, tensors) for a in call["args"])
        kwargs = {str(name): _decode(v, tensors) for name, v in call["kwargs"].items()}
        index = int(call["sample"])
        process = next((s.process for s in drawn if s.index == index), _as_it_is)
        sample = Sample(index, Call(args, kwargs), process)
        return Candidate(
            sample,
            parse_layout(layouts["first"]),
            parse_layout(layouts["rest"]),
            parse_layout(layouts["target"]),
        )
    except (
        *(KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError),
        *(zlib.error, RecursionError),
    ) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None


def _as_it_is(result: Any) -> Any:
    return result


def _encode(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": numbers[id(value)]}
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int:
        return value
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, slice):
        return {"slice": [_encode(v, numbers) for v in (value.start, value.stop, value.step)]}
    if type(value) is list:
        return [_encode(v, numbers) for v in value]
    if type(value) is tuple:
        return {"tuple": [_encode(v, numbers) for v in value]}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, torch.device):
        return {"device": True}
    for name, kind in _ENUMS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise NotEncodable(
        f"an argument of type {type(value).__name__} cannot be written down: {value!r:.80}"
    )


def _decode(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    if tag == "tensor":
        return tensors[inner]
    if tag == "float":
        return float(inner)
    if tag == "complex":
        return complex(float(inner[0]), float(inner[1]))
    if tag == "ellipsis":
        return Ellipsis
    if tag == "slice":
        return slice(*(_decode(v, tensors) for v in inner))
    if tag == "tuple":
        return tuple(_decode(v, tensors) for v in inner)
    if tag == "size":
        return torch.Size(inner)
    if tag == "device":
        return torch.device("cpu")  # exchanged for the device under test when the call is made
    if tag in _ENUMS:
        found = getattr(torch, inner)
        if not isinstance(found, _ENUMS[tag]):
            raise ValueError(f"torch.{inner} is not a {tag}")
        return found
    raise ValueError(f"unknown tag {tag!r}")


def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.layout != torch.strided:
        raise NotEncodable(f"a tensor of layout {tensor.layout} cannot be written down")
    flat = tensor.contiguous().view(-1)
    document: dict[str, Any] = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
    if flat.numel() <= _READABLE and tensor.dtype in (torch.bool, torch.int64, torch.int32):
        return {**document, "values": flat.tolist()}
    if flat.numel() <= _READABLE and tensor.dtype in (torch.float32, torch.float64):
        return {**document, "values": [repr(v) for v in flat.tolist()]}
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
    """A program as plain JSON data. Raises NotEncodable."""
    return [_plain(each) for each in program]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if type(value) in (int, bool, str):
        return value
    raise NotEncodable(f"a {type(value).__name__} in a program cannot be written down: {value!r}")


def decode_program(case: Case, program: Sequence[Any]) -> Program:
    """The program back. Raises NotRebuilt if the case does not draw such a program."""
    if case.drawn is None:
        raise NotRebuilt(f"{case.clause}::{case.name} no longer draws programs")
    found = tuple(_literal(each) for each in program)
    try:
        case.drawn.validate(*found)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None
    return found


def _literal(value: Any) -> Any:
    return tuple(map(_literal, value)) if isinstance(value, list) else value
