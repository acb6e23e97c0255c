"""The axis that puts special values into one operand of a product, opposite zeros in the other operands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.shapes import starting_at
from opinfo.compare import DEFAULT_TOLERANCES, Arguments
from opinfo.samples import Sample
from opinfo.torch_private import schema_of

#: The operands of a call that get special values in turn; the last ones, because the first may be added to the product.
_OPERANDS = 3


def _opposite(basis: Basis) -> Variations:
    """Yields calls in which the first or last slice of one operand is NaN or infinite, and the elements of all other
    operands are zero: all of them, or the first half.

    A whole slice is special, so that each affected element of the result is NaN for every algorithm, also for one that
    transforms whole tiles, as Winograd's does.
    """
    yield from islice(_ignored(basis), 2)
    turns = product((math.nan, math.inf), (True, False))
    for turn, (value, whole) in enumerate(turns):
        seen: set[int] = set()
        for base in starting_at(basis.bases, turn):
            for place in _factors(basis, base)[-_OPERANDS:]:
                if place in seen:
                    continue
                call = basis.rebuilt(base, dict(_tensors(basis, base, place, value, whole)))
                if basis.settled(call) and basis.accepted(call) is not None:
                    seen.add(place)
                    yield base, call


def _ignored(basis: Basis) -> Variations:
    """Yields calls with NaN in the operand that is added to the product, and with ``beta=0``, which says that this operand
    is ignored: NaN in it must not reach the result."""
    if not any(
        each.name == "beta" for schema in basis.subject.schemas for each in schema.arguments
    ):
        return
    for base in basis.bases:
        made = {0: torch.full_like(base.tensors[0], math.nan)}
        for place in _factors(basis, base)[-2:]:
            made.setdefault(place, basis.fill(base, place, base.tensors[place].shape))
        call = basis.rebuilt(base, made)
        call = Arguments(call.args, {**call.kwargs, "beta": 0})
        if len(base.tensors) > 2 and basis.settled(call) and basis.accepted(call) is not None:
            yield base, call


def _factors(basis: Basis, base: Sample) -> list[int]:
    """Returns the positions of the operands of a call that have the dtype under test and several elements; an empty
    list unless there are two or more."""
    found = [
        place
        for place, tensor in enumerate(base.tensors)
        if tensor.dtype == basis.kind and tensor.numel() > 1
    ]
    return found if len(found) > 1 else []


def _tensors(
    basis: Basis, base: Sample, place: int, value: float, whole: bool
) -> Iterator[tuple[int, torch.Tensor]]:
    for other in _factors(basis, base):
        made = basis.fill(base, other, base.tensors[other].shape)
        if other == place:
            made[0 if whole else -1] = value
        else:
            flat = made.view(-1)
            flat[: len(flat) if whole else (len(flat) + 1) // 2] = 0.0
        yield other, made


#: The ops of products, and ops that may follow or precede one in somebody's own reference. For others, such as torch's
#: attention on the CPU, the result for NaN may be no NaN.
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution"})
_BESIDE = frozenset({"add", "mul", "clone", "copy_", "_to_copy"})


class _Ops(TorchDispatchMode):
    """Lists the ops that are called and that compute something, other than views."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called = set[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        schema = schema_of(function)
        aliases = [each.alias_info for each in schema.returns]
        if not any(each is not None and not each.is_write for each in aliases):
            self.called.add(schema.name.removeprefix("aten::"))
        return function(*args, **(kwargs or {}))


def _is_product(basis: Basis) -> bool:
    """Returns True for the ops of matrix products and convolutions, and for a function without a schema, which is
    somebody's own reference, if it only calls such ops."""
    if basis.subject.schemas or not basis.bases:
        return basis.multiplies
    args, kwargs = basis.bases[0].call.bind([t.clone() for t in basis.bases[0].tensors])
    with torch.no_grad(), _Ops() as ops:
        basis.subject.reference(*args, **kwargs)
    return bool(ops.called & _PRODUCTS) and ops.called <= _PRODUCTS | _BESIDE


OPPOSITE = Axis(
    number=29,
    name="opposite zeros",
    finds="A product that skips the zeros of one operand, and so loses NaN and infinities that are opposite them in the other operand, or that multiplies an operand by 0 that ``beta=0`` says to ignore.",
    bugs=("tenstorrent/tt-metal#22517", "pytorch/pytorch#187521"),
    budget=12,
    layouts=("contiguous", "transposed+step_outer+offset"),
    keeps_shapes=True,
    applies=lambda basis: (
        basis.kind.is_floating_point
        and basis.dtype in DEFAULT_TOLERANCES
        and not basis.free
        and not basis.keeps_values
        and _is_product(basis)
    ),
    vary=_opposite,
)
