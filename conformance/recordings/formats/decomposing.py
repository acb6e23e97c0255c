"""Replaces calls of composite ops and of torch's Python functions by the calls of aten ops that they lead to. To find
these, torch makes the calls on fake tensors, which have a geometry and no memory."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.recordings.formats.collecting import NOWHERE, CallCollector, Unknown
from conformance.recordings.formats.schemas import (
    Constant,
    Schema,
    Unreadable,
    overloads_of,
    schema_by_name,
    to_argument,
)
from conformance.recordings.wire import Place, RecordedTensor, Values
from devices.errors import in_a_line
from opinfo.catalog import dtype_name
from opinfo.compare import tensors_of
from opinfo.torch_private import FakeTensorMode, storage_id


@dataclass(frozen=True)
class CallFacts:
    """What a file states about a call besides its arguments: how often it is made, where in the program, and which of
    its properties the file does not store."""

    count: int = 1
    place: Place = NOWHERE
    unknown: frozenset[Unknown] = frozenset()


def add_overload(
    calls: CallCollector, schema: Schema, arguments: Mapping[str, Any], facts: CallFacts
) -> None:
    """Adds a call of an overload to ``calls``. If the op is composite, adds the calls that torch makes to compute it
    instead."""
    if not schema.is_composite:
        calls.add(schema, arguments, count=facts.count, place=facts.place, unknown=facts.unknown)
        return
    space, packet, overload = schema.op.split(".")
    function = getattr(getattr(getattr(torch.ops, space), packet), overload)
    try:
        given = {
            each.name: to_argument(arguments[each.name], each)
            for each in schema.arguments
            if each.name in arguments
        }
    except Unreadable as reason:
        calls.leave_out(f"{schema.op}: {reason}", facts.count)
        return
    known = {each.name: each for each in schema.arguments}
    named = {name: _constants(value, known[name].kind) for name, value in given.items()}
    unknown = facts.unknown | {Unknown.COMPOSITES}
    facts = CallFacts(facts.count, facts.place, unknown)
    add_function(calls, schema.op, function, (), named, facts)


def add_function(
    calls: CallCollector,
    name: str,
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    facts: CallFacts,
    gradients: Sequence[RecordedTensor] | None = None,
) -> None:
    """Adds to ``calls`` the calls of aten ops that torch makes when it calls a Python function with these arguments.
    ``gradients`` describes the gradients of the function's outputs; if given, the calls of its backward pass are added
    too. If torch cannot make the call on fake tensors, it is counted as left out."""
    fakes = _Fakes()
    forward, backward = _Listing(fakes), _Listing(fakes)
    try:
        # FakeTensor lets the ops that need no fake tensor, such as factories, make one too
        with FakeTensorMode():
            made_args = [fakes.build(each) for each in args]
            made_kwargs = {key: fakes.build(each) for key, each in kwargs.items()}
            with forward:
                outputs = function(*made_args, **made_kwargs)
            if gradients is not None:
                _differentiate(tensors_of(outputs), gradients, fakes, backward)
    except Exception as error:  # a file may ask for anything; whatever torch answers is a reason
        calls.leave_out(
            f"{name}: torch cannot make the call on fake tensors ({in_a_line(error):.200})",
            facts.count,
        )
        return
    for phase, listing in (("forward", forward), ("backward", backward)):
        for schema, values in listing.found:
            calls.add(
                schema,
                values,
                count=facts.count,
                phase=phase if gradients is not None else "",
                place=facts.place,
                unknown=facts.unknown,
            )
        for why in listing.failed:
            calls.leave_out(f"{name}: {why}", facts.count)


def _differentiate(
    outputs: Iterable[torch.Tensor],
    gradients: Sequence[RecordedTensor],
    fakes: _Fakes,
    listing: _Listing,
) -> None:
    """Runs the backward pass from the outputs with fake gradients, while ``listing`` lists the ops that this calls."""
    outputs = [each for each in outputs if each.requires_grad]
    given = [fakes.build(each) for each in gradients[: len(outputs)]]
    inputs = [each for each in fakes.built if each.requires_grad]
    if outputs and len(given) == len(outputs) and inputs:
        with listing:
            torch.autograd.grad(outputs, inputs, given, allow_unused=True)


def _constants(value: Any, kind: str) -> Any:
    """Returns an argument in which the name of a torch constant, such as a dtype, is replaced by the constant. ``kind``
    is the type in the schema."""
    if isinstance(value, Constant):
        return torch.device("cpu") if kind == "Device" else getattr(torch, value.name)
    return value


class _Fakes:
    """Converts descriptions of tensors to fake tensors, and fake tensors to descriptions."""

    def __init__(self) -> None:
        self.built: list[torch.Tensor] = []
        self._buffers: dict[tuple[int, str], torch.Tensor] = {}
        self._values: dict[int, Values] = {}

    def build(self, value: Any) -> Any:
        """Returns a value in which descriptions of tensors are replaced by fake tensors."""
        if isinstance(value, RecordedTensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.build, value))
        return value

    def _tensor(self, tensor: RecordedTensor) -> torch.Tensor:
        dtype = getattr(torch, tensor.dtype)
        strides = tensor.stride
        if strides is None:
            strides = torch.empty(tensor.shape, dtype=dtype).stride()
        extent = tensor.offset + 1
        extent += sum((size - 1) * step for size, step in zip(tensor.shape, strides) if size)
        buffer = self._buffers.get((tensor.storage, tensor.dtype))
        if buffer is None or buffer.numel() < extent:
            buffer = torch.empty(extent, dtype=dtype)
        self._buffers[tensor.storage, tensor.dtype] = buffer
        found = buffer.as_strided(tensor.shape, strides, tensor.offset).detach()
        found.requires_grad_(tensor.requires_grad)
        self.built.append(found)
        self._values[storage_id(found)] = tensor.values
        return found

    def describe(self, value: Any) -> Any:
        """Returns a value in which fake tensors and torch constants are replaced by their descriptions. Raises
        Unreadable if a part of the value cannot be described."""
        if isinstance(value, torch.Tensor):
            number = storage_id(value)
            return RecordedTensor(
                dtype=dtype_name(value.dtype),
                shape=tuple(map(_size, value.shape)),
                stride=tuple(map(_size, value.stride())),
                offset=_size(value.storage_offset()),
                storage=number,
                requires_grad=value.requires_grad,
                values=self._values.get(number, Values()),
            )
        if isinstance(value, (list, tuple)):
            return [self.describe(each) for each in value]
        if isinstance(value, torch.device):
            return Constant("device")
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return Constant(str(value).removeprefix("torch."))
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Unreadable("a size depends on the elements of a tensor")
        return value


def _size(size: Any) -> int:
    if type(size) is not int:
        raise Unreadable("a size depends on the elements of a tensor")
    return size


#: The most tensors into which a file may have a tensor divided.
_MOST_PARTS: Final = 100_000


class _Listing(TorchDispatchMode):
    """Lists the calls of aten ops that are made while this dispatch mode is active."""

    def __init__(self, fakes: _Fakes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Schema, dict[str, Any]]] = []
        self.failed: list[str] = []
        self._fakes = fakes
        self._alive: list[Any] = []  # a freed storage could give its number to another

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question about a fake tensor, such as its device
            return func(*args, **kwargs)
        self._alive.append((args, kwargs))
        schema = schema_by_name(func.name())
        if _parts(func.name(), *args) > _MOST_PARTS:
            raise ValueError("a dimension is too large to be divided into tensors")
        try:
            if schema is not None:
                described = [self._fakes.describe(each) for each in args]
                named = {name: self._fakes.describe(each) for name, each in kwargs.items()}
                defaults = {
                    each.name: each.default for each in schema.arguments if each.has_default
                }
                self.found.append((schema, defaults | schema.bind(described, named)))
        except Unreadable as reason:
            self.failed.append(str(reason))
        return func(*args, **kwargs)


def _parts(name: str, tensor: Any = None, size: int = 0, dim: int = 0, *_: Any) -> int:
    """Returns the number of tensors into which the op ``name``, such as ``aten::split.Tensor``, divides its first
    argument; 0 for ops that do not divide it. The other parameters are the op's arguments."""
    if name == "aten::unbind.int":
        return int(tensor.shape[size])  # its second argument is the dimension
    if name in ("aten::split.Tensor", "aten::unsafe_split.Tensor"):
        return int(tensor.shape[dim]) // max(1, size)
    return 0


# -- torch's Python functions by their names in a file


class NoFunction(Unreadable):
    """The error for a name that is not the name of a function of torch, or that names a function which a file must not
    call."""


#: Methods of tensors that do something outside of torch.
_OUTSIDE: Final = frozenset({"share_memory_", "register_hook", "pin_memory", "storage", "numpy"})


@cache
def _overridable() -> Mapping[Any, frozenset[int]]:
    """Returns, for each namespace, the ids of its public functions that take tensors."""
    found = torch.overrides.get_overridable_functions()
    return {space: frozenset(map(id, functions)) for space, functions in found.items()}


def function_of(spaces: Iterable[Any], name: str) -> Any:
    """Returns the function called ``name`` from the first of the namespaces, such as ``torch.nn.functional``, that has
    it. Raises NoFunction unless it is a public function that computes on tensors or creates one. Other functions may
    read files or run code, so a file must not be able to call them."""
    operators = (name, name.replace("__r", "__", 1))  # __radd__ is add with its operands exchanged
    is_operator = name.startswith("__") and any(each in vars(operator) for each in operators)
    hidden = name in _OUTSIDE or (name.startswith("_") and not is_operator)
    for space in () if hidden else spaces:
        found = getattr(space, name, None)
        if found is None:
            continue
        if id(found) in _overridable().get(space, frozenset()) or _makes_tensors(found, name):
            return found
    raise NoFunction(f"{name!r:.40} is not a function of torch for tensors")


def _makes_tensors(function: Any, name: str) -> bool:
    """Returns True for a function implemented in C++ that creates a tensor from sizes and numbers, such as
    ``torch.arange`` or ``Tensor.new_ones``."""
    if type(function) not in (type(len), type(str.join)):
        return False
    schemas = overloads_of(f"aten::{name}")
    kinds = {argument.kind for each in schemas for argument in each.arguments}
    return any(each.makes_tensors for each in schemas) and "str" not in kinds
