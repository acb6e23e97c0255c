"""Writes arguments, results and evidence as plain JSON data, and reads them back.

Each type of value has a tag of its own. Pinned examples, which people may edit, can contain only arguments. Evidence
can also contain exceptions, and objects and functions of this project, which are stored by the names of their module
and of themselves.
"""

from __future__ import annotations

import base64
import builtins
import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from opinfo.torch_private import negated

#: Tensors with up to this many elements are written as lists of numbers; larger ones are compressed.
_READABLE = 32
_NUMBERS = (torch.bool, torch.int64, torch.int32, torch.float32, torch.float64)
#: The packages whose classes and functions evidence may name.
_OURS = ("conformance", "opinfo", "devices")


class NotEncodable(ValueError):
    """The exception raised if a value cannot be written as plain JSON data."""


class Codec(NamedTuple):
    """The functions that convert values of one type to data and back. The data may contain other values that have a
    tag."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


Codecs = Mapping[str, tuple[type, Codec]]


def _constants(kind: type) -> Codec:
    """Returns the codec for constants of torch of the type ``kind``, such as dtypes."""

    def constant(name: str) -> Any:
        found = getattr(torch, name)
        if not isinstance(found, kind):
            raise ValueError(f"torch.{name} is not a {kind.__name__}")
        return found

    return Codec(lambda value: str(value).removeprefix("torch."), constant)


#: The types of arguments by tag. JSON has no infinities and NaN, so floats are written as strings. A device is replaced by
#: the one under test when the call is made.
ARGUMENTS: Codecs = {
    "float": (float, Codec(repr, float)),
    "complex": (
        complex,
        Codec(lambda z: [repr(z.real), repr(z.imag)], lambda z: complex(*map(float, z))),
    ),
    "ellipsis": (type(Ellipsis), Codec(lambda _: True, lambda _: Ellipsis)),
    "slice": (slice, Codec(lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts))),
    "tuple": (tuple, Codec(list, tuple)),
    "size": (torch.Size, Codec(list, torch.Size)),
    "device": (torch.device, Codec(lambda _: True, lambda _: torch.device("cpu"))),
    "dtype": (torch.dtype, _constants(torch.dtype)),
    "memory_format": (torch.memory_format, _constants(torch.memory_format)),
    "layout": (torch.layout, _constants(torch.layout)),
}

#: The types of evidence, which holds no device.
EVIDENCE: Codecs = {
    **{tag: each for tag, each in ARGUMENTS.items() if tag != "device"},
    "dict": (dict, Codec(lambda d: [list(pair) for pair in d.items()], dict)),
    "set": (frozenset, Codec(lambda s: sorted(s), frozenset)),
    "range": (range, Codec(lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts))),
}


def write_value(
    value: Any,
    codecs: Codecs = EVIDENCE,
    tensor: Callable[[torch.Tensor], Any] | None = None,
) -> Any:
    """Returns a value as plain JSON data. ``tensor`` writes tensors, by default with their elements. Raises NotEncodable
    if a part of the value has none of the types of ``codecs``."""
    inner = partial(write_value, codecs=codecs, tensor=tensor)
    if isinstance(value, torch.Tensor):
        return {"tensor": tensor(value) if tensor is not None else _of_tensor(value)}
    if value is None or type(value) is int or isinstance(value, (bool, str)):
        return value
    if type(value) is list:
        return [inner(each) for each in value]
    for tag, (kind, codec) in codecs.items():
        if type(value) is kind:
            return {tag: inner(codec.write(value))}
    if codecs is not EVIDENCE:
        raise NotEncodable(
            f"a value of type {type(value).__name__} cannot be written as data: {value!r:.80}"
        )
    return _write_ours(value, inner)


def read_value(
    document: Any,
    codecs: Codecs = EVIDENCE,
    tensor: Callable[[Any], torch.Tensor] | None = None,
) -> Any:
    """Returns the value that :func:`write_value` wrote. Raises ValueError, LookupError, TypeError, AttributeError,
    RuntimeError or zlib.error if the data is damaged."""
    inner = partial(read_value, codecs=codecs, tensor=tensor)
    if isinstance(document, list):
        return [inner(each) for each in document]
    if not isinstance(document, dict):
        return document
    ((tag, given),) = document.items()
    if tag == "tensor":
        return tensor(given) if tensor is not None else _to_tensor(given)
    if tag in codecs:
        return codecs[tag][1].read(inner(given))
    if codecs is EVIDENCE and tag in _READS_OURS:
        return _READS_OURS[tag](inner(given))
    raise ValueError(f"unknown tag {tag!r}")


# -- objects, functions and exceptions


def _write_ours(value: Any, inner: Callable[[Any], Any]) -> dict[str, Any]:
    kind = type(value)
    if is_dataclass(kind) and kind.__module__.partition(".")[0] in _OURS:
        held = [[each.name, getattr(value, each.name)] for each in fields(value)]
        return {"object": inner([_name_of(kind), held])}
    if isinstance(value, tuple) and kind.__module__ == "torch.return_types":
        return {"returned": inner([kind.__name__, list(value)])}
    if isinstance(value, BaseException):
        own = {k: v for k, v in vars(value).items() if type(v) in (str, int, bool, type(None))}
        about = [kind.__module__, kind.__qualname__, str(value), own, value.__cause__]
        return {"exception": inner(about)}
    if isinstance(value, partial):
        return {"partial": inner([value.func, value.args, value.keywords])}
    if callable(value) and getattr(value, "__module__", "").partition(".")[0] in _OURS:
        return {"function": _name_of(value)}
    raise NotEncodable(f"a value of type {kind.__name__} cannot be written as data: {value!r:.80}")


def _name_of(value: Any) -> str:
    name: str = value.__qualname__
    if "<" in name:
        raise NotEncodable(f"{value.__module__}.{name} is not defined at the top of a module")
    return f"{value.__module__}:{name}"


def _named(name: str) -> Any:
    module, _, name = name.partition(":")
    if module.partition(".")[0] not in _OURS:
        raise ValueError(f"{module} is not a module of this project")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _read_object(document: Any) -> Any:
    kind, held = _named(document[0]), document[1]
    if not is_dataclass(kind) or not isinstance(kind, type):
        raise ValueError(f"{document[0]} is not a dataclass")
    made = kind.__new__(kind)
    for name, value in held:
        object.__setattr__(made, name, value)
    return made


def _read_exception(document: Any) -> BaseException:
    """Returns an exception of the type that was written. If the type is neither built in nor one of this project, the
    result is of a new subclass of RuntimeError with the same name."""
    module, name, text, held, cause = document
    kind: Any = getattr(builtins, name, None) if module == "builtins" else None
    if module.partition(".")[0] in _OURS:
        kind = _named(f"{module}:{name}")
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        kind = type(name, (RuntimeError,), {})
    made: BaseException = kind.__new__(kind, text)
    made.args = (text,)
    made.__dict__.update(held)
    made.__cause__ = cause
    return made


_READS_OURS: dict[str, Callable[[Any], Any]] = {
    "object": _read_object,
    "exception": _read_exception,
    "function": _named,
    "returned": lambda parts: getattr(torch.return_types, parts[0])(parts[1]),
    "partial": lambda parts: partial(parts[0], *parts[1], **parts[2]),
}


# -- tensors


def _of_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return {"layout": layout, "dense": write_tensor(tensor.to_dense())}
    document = write_tensor(tensor.detach().resolve_conj().resolve_neg())
    lazy = {"conj": tensor.is_conj(), "neg": tensor.is_neg()}
    return document | {bit: True for bit, is_set in lazy.items() if is_set}


def _to_tensor(document: Any) -> torch.Tensor:
    if "dense" in document:
        return read_tensor(document["dense"]).to_sparse(layout=getattr(torch, document["layout"]))
    tensor = read_tensor(document)
    # The memory of a tensor with a bit holds other numbers than its elements are. Complex32 has no kernel of neg.
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if "conj" in document:
        parts[..., 1].neg_()
    if "neg" in document:
        parts.neg_()
    tensor = tensor.conj() if "conj" in document else tensor
    return negated(tensor) if "neg" in document else tensor


def write_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns a strided CPU tensor as plain JSON data. Raises NotEncodable for other tensors."""
    if tensor.layout != torch.strided:
        raise NotEncodable(f"a tensor of layout {tensor.layout} cannot be written as data")
    flat = tensor.contiguous().view(-1)
    dtype = str(tensor.dtype).removeprefix("torch.")
    document: dict[str, Any] = {"dtype": dtype, "shape": list(tensor.shape)}
    if flat.numel() <= _READABLE and tensor.dtype in _NUMBERS:
        values = flat.tolist()
        return {**document, "values": [*map(repr, values)] if flat.is_floating_point() else values}
    raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return {**document, "data": base64.b64encode(zlib.compress(raw, 9)).decode()}


def read_tensor(document: Mapping[str, Any]) -> torch.Tensor:
    """Returns the tensor that :func:`write_tensor` wrote."""
    dtype, shape = getattr(torch, document["dtype"]), tuple(document["shape"])
    if "values" in document:
        numbers = [float(v) if isinstance(v, str) else v for v in document["values"]]
        return torch.tensor(numbers, dtype=dtype).reshape(shape)
    raw = bytearray(zlib.decompress(base64.b64decode(document["data"], validate=True)))
    if not raw:
        return torch.empty(shape, dtype=dtype).reshape(shape)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)
