"""An axis of what calls leave out: arguments that upstream's samples never give another value than their default."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch

from opinfo.axes.basis import Axis, Basis, Variations
from opinfo.catalog import Op
from opinfo.compare import Call, difference
from opinfo.samples import Sample

#: Arguments that say something of the operands that need not be so of a sample's, or after which the answer is open: the
#: order of equal elements, which vectors complete a basis, what counts as zero. And two that no kernel is given.
_LEFT_ALONE = frozenset(
    ("hermitian", "assume_unique", "sorted", "some", "rcond", "atol", "rtol", "inplace", "implicit")
)
#: Values that are tried, by the type of the default, until one makes a difference.
_FLOATS = (0.3, -1.5, 2.5, 12.5)
_INTS = (2, 1, 0, -1)
#: What elementwise ops are given besides, as an argument may be about these alone.
_SPECIAL = (math.nan, math.inf, -math.inf, -0.0)
#: Calls with different values of one argument, at most.
_VALUES = 2
#: What schemas and Python call a number that need not be whole.
_NUMBERS = ("number", "float")


def _defaults(basis: Basis) -> Variations:
    """For each such argument a call, and of numbers two, in which it has another value, and the answer is another."""
    for name, argument in arguments_of(basis.op).items():
        if not any(argument.given_to(sample.call, name) for sample in basis.upstream):
            yield from islice(_telling(basis, name, argument), _VALUES)


def _telling(basis: Basis, name: str, argument: Argument) -> Variations:
    """With each of the values the first call that it makes a difference to."""
    for value in argument.others:
        for base, call in _bases(basis, argument.tensors):
            before = basis.answer(call)
            changed = argument.changed(call, name, value)
            answer = basis.answer(changed) if before is not None else None
            if before is None or answer is None or difference(before, answer, {}) is None:
                continue  # refused; or ignoring it would not show
            if (basis.elementwise or basis.settled(changed)) and basis.taken(changed) is not None:
                yield base, changed
                break


def _bases(basis: Basis, most: float) -> Iterator[tuple[Sample, Call]]:
    """The calls of so many tensors at most, and those of elementwise ops with NaN, infinities and -0 among the first."""
    for base in basis.bases:
        if len(base.tensors) > most:
            continue
        yield base, base.call
        first = base.tensors[0]
        if basis.elementwise and first.is_floating_point() and first.numel() > len(_SPECIAL):
            held = first.clone(memory_format=torch.contiguous_format)
            held.view(-1)[: len(_SPECIAL)] = torch.tensor(_SPECIAL)
            yield base, basis.rebuilt(base, {0: held})


class Argument(NamedTuple):
    """An argument that has a default: its place among all, if it may be given by place, and other values."""

    place: int | None
    default: Any
    others: tuple[Any, ...]
    tensors: float = math.inf  # that its overload takes: a 0-d one would pass for a number

    def given_to(self, call: Call, name: str) -> bool:
        """Whether a call gives it another value than the default."""
        value = call.kwargs.get(name, self.default)
        if self.place is not None and len(call.args) > self.place:
            value = call.args[self.place]
        return bool(type(value) is not type(self.default) or value != self.default)

    def changed(self, call: Call, name: str, value: Any) -> Call:
        if self.place is None or len(call.args) <= self.place:
            return Call(call.args, {**call.kwargs, name: value})
        before, after = call.args[: self.place], call.args[self.place + 1 :]
        return Call((*before, value, *after), call.kwargs)


def arguments_of(op: Op) -> dict[str, Argument]:
    """The numbers and flags with a default that an op may be called with, by name. From the signature of a function in
    Python; of others from the schemas of their names."""
    try:
        found = _of_signature(inspect.signature(op.function))
    except (TypeError, ValueError):  # a builtin
        # Of overloads with an argument of one name, the one that takes most tensors.
        found = iter(sorted(_of_schemas(op), key=lambda each: each[1].tensors))
    return {name: each for name, each in found if name[0] != "_" and name not in _LEFT_ALONE}


def _of_signature(signature: inspect.Signature) -> Iterator[tuple[str, Argument]]:
    for place, each in enumerate(signature.parameters.values()):
        positional = each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        others = _others(type(each.default).__name__, each.default)
        if others:
            yield each.name, Argument(place if positional else None, each.default, others)


def _of_schemas(op: Op) -> Iterator[tuple[str, Argument]]:
    for schema in op.schemas:
        kinds = [str(each.type) for each in schema.arguments if not each.is_out]
        lists = any("List[" in kind and "Tensor" in kind for kind in kinds)
        tensors = math.inf if lists else sum("Tensor" in kind for kind in kinds)
        for place, each in enumerate(schema.arguments):
            kind = str(each.type).removeprefix("Optional[").removesuffix("]")
            if each.has_default_value() and (others := _others(kind, each.default_value)):
                place_given = None if each.kwarg_only else place
                yield each.name, Argument(place_given, each.default_value, others, tensors)


def _others(kind: str, default: Any) -> tuple[Any, ...]:
    """Values of a type, as Python or a schema names it, other than the default."""
    if kind == "bool" and isinstance(default, bool):
        return (not default,)
    among = _INTS if kind == "int" and type(default) is int else _FLOATS if kind in _NUMBERS else ()
    return tuple(value for value in among if value != default)


DEFAULTS = Axis(
    number=20,
    name="defaults",
    finds="A kernel that ignores an argument which is hardly ever given, or is wrong where it has another value than its default.",
    bugs=("pytorch/pytorch#94348",),
    budget=6,
    layouts=("contiguous", "transposed+step_outer+offset"),
    writes=1,
    applies=lambda basis: not basis.free,
    vary=_defaults,
)
