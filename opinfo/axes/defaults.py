"""The axis of default values: varies arguments that every database sample leaves at their default."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.compare import Arguments, difference
from opinfo.samples import Sample
from opinfo.subject import Subject

#: Arguments that are left at their default: they assert a property that the sample's operands may lack, or leave the result
#: open (the order of equal elements, which vectors complete a basis, what counts as zero), or never reach a kernel.
LEFT_ALONE = frozenset(
    ("hermitian", "assume_unique", "sorted", "some", "rcond", "atol", "rtol", "inplace", "implicit")
)
#: Values to try, by the type of the default, until one changes the result.
_FLOATS = (0.3, -1.5, 2.5, 12.5)
_INTS = (2, 1, 0, -1)
#: Elements that are added for elementwise ops, because an argument may concern only these.
_SPECIAL = (math.nan, math.inf, -math.inf, -0.0)
#: The most calls for one argument, each with another value.
_VALUES = 2
#: The names that schemas and Python have for the type of real numbers.
_NUMBERS = ("number", "float")


def _defaults(basis: Basis) -> Variations:
    """Yields, for each argument that every database sample leaves at its default, up to two calls with another value
    that changes the result."""
    for name, argument in arguments_of(basis.subject).items():
        if not any(argument.given_to(sample.call, name) for sample in basis.upstream):
            yield from islice(_telling(basis, name, argument), _VALUES)


def _telling(basis: Basis, name: str, argument: Argument) -> Variations:
    """Yields, for each value of an argument other than the default, the first call whose result changes with that
    value."""
    for value in argument.others:
        for base, call in _bases(basis, argument.tensors):
            before = basis.answer(call)
            changed = argument.changed(call, name, value)
            answer = basis.answer(changed) if before is not None else None
            if before is None or answer is None or difference(before, answer, {}) is None:
                continue  # the CPU rejects the call, or a kernel that ignores the argument would pass
            if (basis.elementwise or basis.settled(changed)) and basis.accepted(
                changed
            ) is not None:
                yield base, changed
                break


def _bases(basis: Basis, most: float) -> Iterator[tuple[Sample, Arguments]]:
    """Yields the basis samples with at most ``most`` tensors, and their calls. For elementwise ops, it also yields
    calls with NaN, infinities and -0 among the elements, since an argument may affect only such elements."""
    for base in basis.bases:
        if len(base.tensors) > most:
            continue
        yield base, base.call
        yield from with_special_values(basis, base)


def with_special_values(basis: Basis, base: Sample) -> Iterator[tuple[Sample, Arguments]]:
    """Yields the call of a sample of an elementwise op with NaN, infinities and -0 among the elements, if the first tensor
    has room for them."""
    first = base.tensors[0]
    if basis.elementwise and first.is_floating_point() and first.numel() > len(_SPECIAL):
        held = first.clone(memory_format=torch.contiguous_format)
        held.view(-1)[: len(_SPECIAL)] = torch.tensor(_SPECIAL)
        yield base, basis.rebuilt(base, {0: held})


class Argument(NamedTuple):
    """An argument with a default: the position of the argument (if it may be passed by position), the default, and
    other values to try."""

    place: int | None
    default: Any
    others: tuple[Any, ...]
    tensors: float = math.inf  # the most tensors that its overload takes

    def given_to(self, call: Arguments, name: str) -> bool:
        """Returns True if a call passes a value for the argument ``name`` that is not the default."""
        value = call.kwargs.get(name, self.default)
        if self.place is not None and len(call.args) > self.place:
            value = call.args[self.place]
        return bool(type(value) is not type(self.default) or value != self.default)

    def changed(self, call: Arguments, name: str, value: Any) -> Arguments:
        if self.place is None or len(call.args) <= self.place:
            return Arguments(call.args, {**call.kwargs, name: value})
        before, after = call.args[: self.place], call.args[self.place + 1 :]
        return Arguments((*before, value, *after), call.kwargs)


def arguments_of(op: Subject) -> dict[str, Argument]:
    """Returns the arguments of an op that are numbers or flags and have a default, by name. They are read from the
    signature of the op's function or, if the function has no signature, from the schemas of the op's overloads."""
    try:
        found = _of_signature(inspect.signature(op.reference))
    except (TypeError, ValueError):  # a builtin function has no signature
        # Of several overloads with an argument of this name, the one with the most tensors comes last and wins.
        found = iter(sorted(_of_schemas(op), key=lambda each: each[1].tensors))
    return {name: each for name, each in found if name[0] != "_" and name not in LEFT_ALONE}


def _of_signature(signature: inspect.Signature) -> Iterator[tuple[str, Argument]]:
    for place, each in enumerate(signature.parameters.values()):
        positional = each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        others = _others(type(each.default).__name__, each.default)
        if others:
            yield each.name, Argument(place if positional else None, each.default, others)


def _of_schemas(op: Subject) -> Iterator[tuple[str, Argument]]:
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
    """Returns values other than the default. ``kind`` is the name of the argument's type in Python or in a schema."""
    if kind == "bool" and isinstance(default, bool):
        return (not default,)
    among = _INTS if kind == "int" and type(default) is int else _FLOATS if kind in _NUMBERS else ()
    return tuple(value for value in among if value != default)


DEFAULTS = Axis(
    number=20,
    name="defaults",
    finds="A kernel that ignores a rarely used argument, or that is wrong if the argument differs from its default.",
    bugs=("pytorch/pytorch#94348",),
    budget=6,
    layouts=("contiguous", "transposed+step_outer+offset"),
    writes=1,
    applies=lambda basis: not basis.free,
    vary=_defaults,
)
