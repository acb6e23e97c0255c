"""An axis for ops whose arguments must fit each other, which the CPU does not check: calls of other sizes, written for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from opinfo.axes.basis import Axis, Basis, Variations
from opinfo.compare import Call
from opinfo.samples import Sample

Shape = tuple[int, ...]


def _fitting(basis: Basis) -> Variations:
    written = _written(basis)
    most = max((len(base.tensors) for base in basis.bases), default=0)
    bases = [base for base in basis.bases if len(base.tensors) == most]
    for number, (sizes, make) in enumerate(written):
        for base in (*bases[number % len(bases) :], *bases[: number % len(bases)]):
            call = make(basis, base, *sizes)
            if basis.taken(call) is not None and basis.steady(call):
                yield base, call
                break


#: What makes a call of a sample with these sizes.
Make = Callable[..., Call]


def _written(basis: Basis) -> list[tuple[Any, Make]]:
    for pattern, (make, sizes) in _WRITTEN.items():
        if fnmatchcase(basis.op.id, pattern):
            return [(each, make) for each in sizes]
    return []


def _picked(basis: Basis, base: Sample, place: int, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of this shape of values that upstream gives to this tensor: fractions, where ``fill`` has whole numbers."""
    pool = basis.pool(base, place)
    return pool[basis.choice(len(pool), shape)].contiguous()


def _normalised(basis: Basis, base: Sample, *shape: int) -> Call:
    """Batch norm of an input of this shape; the other tensors have an element for each channel."""
    shapes = dict.fromkeys(range(1, len(base.tensors)), (shape[1],))
    made = {place: _picked(basis, base, place, each) for place, each in shapes.items()}
    return basis.rebuilt(base, {0: basis.fill(base, 0, shape), **made})


def _segments(basis: Basis, base: Sample, shape: Shape, axis: int, count: int) -> Call:
    """Segments of random lengths, some of them empty, along a dimension of data."""
    size = shape[axis]
    batch = shape[:axis]
    ends = basis.choice(size + 1, (*batch, count - 1)).sort(-1).values
    first, last = torch.zeros(*batch, 1).long(), torch.full((*batch, 1), size)
    offsets = torch.cat([first, ends, last], -1)
    given = base.call.kwargs
    index = offsets if given.get("offsets") is not None else offsets.diff(dim=-1)
    call = basis.rebuilt(base, {0: _picked(basis, base, 0, shape), 1: index})
    return Call(call.args, {**call.kwargs, "axis": axis})


def _sampled(basis: Basis, base: Sample, shape: Shape, grid: Shape) -> Call:
    places = (_picked(basis, base, 0, shape), _picked(basis, base, 1, (*grid, len(grid) - 1)))
    return basis.rebuilt(base, dict(enumerate(places)))


def _aligned(basis: Basis, base: Sample, times: int, batch: int, classes: int, most: int) -> Call:
    """The loss of ``batch`` sequences of at most ``most`` labels, each of which has a path."""
    pool = basis.pool(base, 0)
    scores = pool[basis.choice(len(pool), (times, batch, classes))].double().log_softmax(-1)
    labels = 1 + basis.choice(classes - 1, (batch, most))
    ends = (times - basis.choice(times // 3, (batch,)), most - basis.choice(most, (batch,)))
    args: list[Any] = [scores.to(basis.kind), labels]
    for given, lengths in zip(base.call.args[2:4], ends):
        held = isinstance(given, torch.Tensor)
        args.append(lengths.to(given.dtype) if held else lengths.tolist())
    return Call((*args, *base.call.args[4:]), base.call.kwargs)


def _dominant(basis: Basis, base: Sample, shape: Shape, turned: bool = True) -> torch.Tensor:
    """Matrices whose rows, in some order, have one large element each in a column of its own: factors are steady, with
    pivots."""
    *_, rows, columns = shape
    made = _picked(basis, base, 0, shape)
    order = basis.permutation(rows) if turned else torch.arange(rows)
    for column, row in enumerate(order[:columns].tolist()):
        made[..., row, column] = 2 * (rows + columns) + 1 + column % 3
    return made


def _factored(basis: Basis, base: Sample, *shape: int) -> Call:
    return basis.rebuilt(base, {0: _dominant(basis, base, shape)})


def _unpacked(basis: Basis, base: Sample, *shape: int) -> Call:
    """Factors with pivots of which each names a row that is not done."""
    *batch, rows, columns = shape
    steps = torch.arange(min(rows, columns))
    further = basis.choice(2**20, (*batch, len(steps))) % (rows - steps)
    pivots = (steps + 1 + further).to(torch.int32)
    return basis.rebuilt(base, {0: basis.fill(base, 0, shape), 1: pivots})


def _symmetric(basis: Basis, base: Sample, batch: Shape, rows: int, columns: int) -> Call:
    """Right-hand sides for the factors of symmetric matrices, half of which have pivots in pairs."""
    hermitian = bool(base.call.kwargs.get("hermitian"))
    made = _dominant(basis, base, (*batch, rows, rows), turned=False)
    made = made.flip(-1) if rows % 2 else made
    made = made + (made.mH if hermitian else made.mT)
    factors, pivots = torch.linalg.ldl_factor(made, hermitian=hermitian)
    right = basis.fill(base, 2, (*batch, rows, columns))
    return basis.rebuilt(base, {0: factors.contiguous(), 1: pivots, 2: right})


def _systems(basis: Basis, base: Sample, *shape: int) -> Call:
    """A tensor that is regular as a matrix, whose right-hand side has this shape."""
    size = torch.Size(shape).numel()
    matrix = _dominant(basis, base, (size, size)).view(*shape, size)
    call = basis.rebuilt(base, {0: matrix, 1: basis.fill(base, 1, shape)})
    return Call(call.args, {**call.kwargs, "dims": None})


_BATCH_NORMS = (
    (5, 3, 2, 3, 4),
    (517, 3),
    (2, 131, 17),
    (1, 2, 4099),
    (65, 33, 33),
    (8, 4, 2),
    (1, 19),
)
_LU = (
    (331, 3, 2),
    (129, 131),
    (2, 3, 1030),
    (1, 7),
    (17, 1),
    (2, 3, 1, 5, 4),
    (3, 33, 17),
    (300, 300),
)
#: By op: what makes a call, and the sizes that it is made of.
_WRITTEN: dict[str, tuple[Make, Sequence[Any]]] = {
    "*native_batch_norm*": (_normalised, _BATCH_NORMS),
    "_batch_norm_with_update": (_normalised, _BATCH_NORMS),
    "_segment_reduce.*": (
        _segments,
        (
            ((1025,), 0, 7),
            ((37, 3, 2), 0, 17),
            ((3, 130), 1, 9),
            ((331, 2), 0, 300),
            ((5, 17, 1), 1, 5),
            ((2, 33, 65), 1, 3),
            ((1, 19), 0, 2),
        ),
    ),
    "grid_sampler_2d": (
        _sampled,
        (
            ((1, 3, 4, 65), (1, 2, 33)),
            ((2, 2, 17, 19), (2, 19, 17)),
            ((1, 1, 300, 3), (1, 5, 1)),
            ((3, 4, 5, 131), (3, 1, 17)),
            ((2, 3, 37, 41), (2, 37, 41)),
            ((1, 1, 2, 1), (1, 1, 1)),
        ),
    ),
    "grid_sampler_3d": (
        _sampled,
        (
            ((1, 3, 2, 4, 65), (1, 2, 3, 17)),
            ((2, 2, 7, 9, 5), (2, 5, 7, 9)),
            ((1, 1, 300, 1, 3), (1, 5, 1, 1)),
            ((3, 2, 5, 3, 17), (3, 1, 1, 37)),
            ((1, 2, 17, 19, 13), (1, 13, 17, 19)),
        ),
    ),
    "nn.functional.ctc_loss": (
        _aligned,
        ((37, 3, 5, 7), (300, 1, 33, 17), (17, 331, 3, 2), (9, 2, 1030, 3), (19, 17, 9, 1)),
    ),
    "linalg.lu": (_factored, _LU),
    "lu_unpack": (_unpacked, _LU),
    "linalg.ldl_solve": (
        _symmetric,
        (((), 65, 3), ((331,), 3, 2), ((), 130, 17), ((2,), 5, 1030), ((3, 2), 4, 1), ((), 1, 7)),
    ),
    "linalg.tensorsolve": (_systems, ((5, 13), (2, 129), (3, 11, 1), (17,))),
}


FITTING = Axis(
    number=19,
    name="fitting",
    finds="What size, extent, rank and matrices find, in ops whose arguments must fit each other.",
    bugs=("pytorch/pytorch#27442", "pytorch/pytorch#1059", "pytorch/pytorch#36921"),
    budget=8,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: bool(_written(basis)) and bool(basis.bases),
    vary=_fitting,
    keeps_shapes=True,
    family="axes.keep_shapes",
)
