"""Axes of arguments: numbers and flags at their ends, operands of another dtype, 0-d tensors and Python scalars."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from opinfo.axes.basis import Axis, Basis, Variations, asking
from opinfo.axes.shapes import MAIN
from opinfo.compare import Call
from opinfo.samples import Sample


def _ends(basis: Basis) -> Variations:
    known = {basis.arguments(s) for s in basis.drawn}
    for base in basis.bases:
        for call in _other(base):
            changed = repr_of(basis, base, call)
            if changed not in known and basis.taken(call) is not None:
                known.add(changed)
                yield base, call


def repr_of(basis: Basis, base: Sample, call: Call) -> str:
    """The arguments of a call that are no tensors."""
    return basis.arguments(Sample(0, call, base.process))


def _other(base: Sample) -> Iterator[Call]:
    """The call with one argument changed: a flag turned, a number at an end of a dimension, 0 or negative."""
    args, kwargs = base.call.args, base.call.kwargs
    extents = sorted({n for t in base.tensors for n in t.shape}, reverse=True)
    for place, value in enumerate(args):
        for other in _values(value, extents):
            yield Call((*args[:place], other, *args[place + 1 :]), dict(kwargs))
    for name, value in kwargs.items():
        for other in _values(value, extents):
            yield Call(args, {**kwargs, name: other})


def _values(value: Any, extents: list[int]) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (each for each in dict.fromkeys((*extents[:2], 0, -1, 1)) if each != value)
    elif isinstance(value, float):
        yield from (each for each in (0.0, 2.0, -1.5) if each != value)


ENDS = Axis(
    number=7,
    name="arguments",
    finds="A kernel that ignores an argument, or that is wrong where it is 0, negative, or as large as a dimension.",
    bugs=("pytorch/pytorch#189664",),
    budget=4,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: not basis.free and not basis.keeps_values,
    vary=_ends,
)


# -- operands of another kind


def _operands(basis: Basis) -> Variations:
    for base in basis.bases:
        args = base.call.args
        if len(args) < 2 or not all(isinstance(each, torch.Tensor) for each in args[:2]):
            continue
        first, number = basis.fill(base, 0, MAIN), basis.pool(base, 1)[0]
        for other in _kinds(basis, number):
            for pair in ((first, other), (basis.fill(base, 0, ()), basis.fill(base, 1, MAIN))):
                call = Call((*pair, *args[2:]), dict(base.call.kwargs))
                if basis.taken(call) is not None:
                    yield base, call
                if pair[1] is not other:
                    break
        return


def _kinds(basis: Basis, number: torch.Tensor) -> Iterator[Any]:
    yield number.clone()
    if basis.op.takes_python_scalar:
        yield number.item()
    for kind in (torch.int64, torch.float32, torch.bool):
        if kind != basis.kind and not (kind == torch.int64 and basis.dtype == "bool"):
            yield (basis.choice(3, MAIN) + 1).to(kind)


OPERANDS = Axis(
    number=8,
    name="operands",
    finds="A kernel that reads a 0-d operand, a Python scalar or an operand of another dtype wrongly.",
    bugs=("ROCm/legacy-rocm-build#1432", "pytorch/pytorch#84364"),
    budget=5,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: basis.op.ufunc == "binary" and "axes.loops" not in basis.families,
    vary=_operands,
)


# -- calls that are refused


def _refused(basis: Basis) -> Variations:
    for base in basis.bases[:2]:
        for call in islice(_misfit(base), _MISFITS):
            error = basis.refusal(call)
            if error is None:
                continue
            documented = isinstance(error, IndexError) and "Dimension out of range" in str(error)
            if documented or (_meta(basis, base.call) and not _meta(basis, call)):
                yield base, call
                return


#: Calls that are tried for one that is refused.
_MISFITS = 5


def _misfit(base: Sample) -> Iterator[Call]:
    """The call with an operand that does not fit the others, or a number that no dimension has."""
    tensors, args, kwargs = base.tensors, base.call.args, base.call.kwargs
    for place, tensor in enumerate(tensors if len(tensors) > 1 else ()):
        if tensor.dim() and tensor.shape[-1] > 1:
            longer = torch.cat([tensor, tensor[..., :2]], dim=-1)
            changed = [longer if n == place else each for n, each in enumerate(tensors)]
            yield Call(*base.call.bind(changed))
    for place, value in enumerate(args):
        if type(value) is int:
            yield Call((*args[:place], _FAR, *args[place + 1 :]), dict(kwargs))
    for name, value in kwargs.items():
        if type(value) is int:
            yield Call(args, {**kwargs, name: _FAR})
    if tensors:
        yield Call(*base.call.bind([tensors[0].new_zeros(()), *tensors[1:]]))
        yield Call(*base.call.bind([tensors[0].new_zeros([1] * 7), *tensors[1:]]))


#: No tensor has as many dimensions.
_FAR = 70


def _meta(basis: Basis, call: Call) -> bool:
    """Whether meta tensors, which have no kernels, take the call: they refuse what every device has to refuse."""
    args, kwargs = call.on([each.to("meta") for each in call.tensors], torch.device("meta"))
    with asking():
        try:
            basis.op.function(*args, **kwargs)
        except Exception:  # of any type: some have no kernel, and refuse the unchanged call too
            return False
    return True


REFUSED = Axis(
    number=11,
    name="refused",
    finds="A kernel that does not check its arguments, or whose error is lost.",
    bugs=("pytorch/pytorch#170507", "intel/torch-xpu-ops#5233"),
    budget=1,
    layouts=("contiguous",),
    applies=lambda basis: basis.dtype == ("float32" if "float32" in basis.op.dtypes else "int64"),
    vary=_refused,
)
