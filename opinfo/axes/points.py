"""The axis of handwritten values: the few values at which a kernel, or a formula of a gradient, takes a path of its own,
and which random values do not meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.extreme_options import by_arguments
from opinfo.compare import Arguments
from opinfo.samples import Sample

#: A function that yields the calls of an op. The sample is one of the database's, for values in the domain of the op.
Make = Callable[[Basis, Sample], Iterator[Arguments]]

#: The most calls for an op and dtype.
_BUDGET = 6


def _points(basis: Basis) -> Variations:
    make = _maker(basis.subject.id)
    assert make is not None
    for base in by_arguments(basis)[:1]:
        for call in make(basis, base):
            if basis.accepted(call) is not None:
                yield base, call


def _maker(op: str) -> Make | None:
    return next((make for name, make in _MAKERS.items() if fnmatchcase(op, name)), None)


def _with_zeros(basis: Basis, base: Sample) -> torch.Tensor:
    """Returns a matrix whose first row has only zeros, and whose other rows have none, one, two, three and four zeros."""
    found = basis.fill(base, 0, (6, 5))
    found[found == 0] = 1
    found[0] = 0
    for row in range(2, 6):
        found[row, 6 - row :] = 0
    return found


# -- where the formula of a gradient divides by zero. What torch documents there is the gradient of least norm.


def _norms(order: str, basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Norms of rows, one of which is zero, and of a tensor of zeros. ``order`` is the name of the order of the norm."""
    for each in (2, 1, 3):
        yield Arguments((_with_zeros(basis, base),), {order: each, "dim": [-1]})
    yield Arguments((torch.zeros(3, 2, dtype=basis.kind),), {})


def _normalized(basis: Basis, base: Sample) -> Iterator[Arguments]:
    yield Arguments((_with_zeros(basis, base),), {})


def _deviations(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Standard deviations of rows, one of which has no variance."""
    yield Arguments((_with_zeros(basis, base),), {"dim": -1})


def _products(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Products of rows with several zeros, and of a whole tensor with two."""
    rows = _with_zeros(basis, base)
    yield Arguments((rows,), {"dim": -1})
    yield Arguments((rows[3].clone(),), {})


def _cumulative_products(basis: Basis, base: Sample) -> Iterator[Arguments]:
    yield Arguments((_with_zeros(basis, base), -1), {})


def _distances(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Distances between vectors of which two are equal, and others are equal in some places."""
    first = basis.whole_numbers((5, 3), basis.kind)
    second = first[:4] + basis.whole_numbers((4, 3), basis.kind)
    second[0] = first[1]
    second[2, 0] = first[2, 0]
    for p in (1.0, 2.0, 3.0):
        yield Arguments((first, second), {"p": p})


def _distance(basis: Basis, base: Sample) -> Iterator[Arguments]:
    given = basis.whole_numbers((5, 3), basis.kind)
    for p in (2, 1):
        yield Arguments((given, given.clone(), p), {})


# -- values that an option treats apart


def _with_nan(basis: Basis) -> torch.Tensor:
    """Returns a matrix of different numbers with one NaN in each row and column; an empty one for a dtype without NaN."""
    if not basis.kind.is_floating_point:
        return torch.empty(0, dtype=basis.kind)
    found = basis.distinct((7, 7))
    return found.masked_fill(torch.eye(7, dtype=torch.bool), math.nan)


def _ordered(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Numbers of which one in a row is NaN, in either order."""
    if (given := _with_nan(basis)).numel():
        yield from (Arguments((given, -1, each), {}) for each in (True, False))


def _some_ordered(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """The largest and the smallest of numbers of which one in a row is NaN."""
    if (given := _with_nan(basis)).numel():
        yield from (Arguments((given, 4), {"dim": -1, "largest": each}) for each in (False, True))
        yield Arguments((given, 4), {"dim": 0, "largest": False})


def _numbered(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """The smallest numbers but ``k``, of rows of which one number is NaN."""
    if (given := _with_nan(basis)).numel():
        yield from (Arguments((given, k, -1), {}) for k in (1, 7))


# -- operands of other shapes


def _accumulated(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Values of fewer elements than there are indices are added where indices occur several times. Some indices count from the
    end."""
    index = torch.tensor([1, 4, 1, 0, 6, 1, 4])
    others = torch.tensor([3, 0, 3, 2, 2, 3, 0])
    for indices, shape in (
        ((index,), (1,)), ((index,), ()), ((index,), (5,)), ((index,), (7, 1)),
        ((index, others - 5), (1,)), ((index[:3, None] - 7, others[:4]), (4,)),
    ):  # fmt: skip
        call = basis.fill(base, 0, (7, 5)), indices, basis.fill(base, 0, shape)
        yield Arguments(call, {"accumulate": True})


def _averaged(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Windows of which the last one of a row ends behind the padding, which no average counts."""
    dimensions = int(basis.subject.id[-2])
    for padding, counts in ((1, True), (1, False), (0, True)):
        given = basis.fill(base, 0, (2, 3, *(6, 8, 6)[:dimensions]))
        yield Arguments((given, 3, 2, padding, True, counts), {})


#: By op (with wildcards): the function that makes its calls.
_MAKERS: dict[str, Make] = {
    "norm": partial(_norms, "p"),
    "linalg.norm": partial(_norms, "ord"),
    "linalg.vector_norm": partial(_norms, "ord"),
    "nn.functional.normalize": _normalized,
    "std": _deviations,
    "prod": _products,
    "cumprod": _cumulative_products,
    "cdist": _distances,
    "dist": _distance,
    "topk": _some_ordered,
    "sort": _ordered,
    "argsort": _ordered,
    "kthvalue": _numbered,
    "index_put": _accumulated,
    "nn.functional.avg_pool[123]d": _averaged,
}


def has_points(op: str) -> bool:
    """Returns True if the axis has calls of an op."""
    return _maker(op) is not None


POINTS = Axis(
    number=25,
    name="points",
    finds="A kernel, or the formula of a gradient, that is wrong at single values: it divides by a norm, a distance or a product that is zero, orders NaN by an option, or repeats a value that an index names several times.",
    bugs=("pytorch/pytorch#37154", "pytorch/pytorch#94348"),
    budget=_BUDGET,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: has_points(basis.subject.id) and bool(basis.drawn),
    vary=_points,
    keeps_shapes=True,
)
