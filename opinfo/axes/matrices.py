"""The axis of larger matrices: more rows, columns and batches, for ops whose inputs must keep properties such as
definiteness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice, product

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.compare import Arguments
from opinfo.samples import Sample

#: Matrices are made larger than these extents: a tile and half a tile.
_TILE, _HALF = 128, 64
#: The number of columns of a second operand, of matrices in a long batch (a multiple of 64), and of those in a short batch.
_COLUMNS, _BATCH, _FEW = 1024, 1088, 3
#: The number of different factors of copies; larger than the number of blocks in a matrix.
_FACTORS = 79
#: The most elements of a batch.
_MOST = 110_000


def _grown(basis: Basis) -> Variations:
    """Yields calls with matrices composed of blocks. Each block is scaled by a different factor, so that triangular,
    definite and regular matrices keep these properties. Then it yields calls with more columns in other operands, with
    long and short batches, and with single rows and columns."""
    seen: set[str] = set()
    blocks = (partial(_blocks, extent=_TILE), partial(_blocks, extent=_HALF))
    many, few = (partial(_batches, count=count) for count in (_BATCH, _FEW))
    for way in (*blocks, _columns, many, few, partial(_thin, dim=-2), partial(_thin, dim=-1)):
        for base in sorted(basis.bases, key=_smallness)[:2]:
            calls = [*way(base, basis)]
            tried = chain(calls, (_milder(basis, call) for call in calls))
            call = next(filter(None, (_firm(basis, call) for call in tried)), None)
            if call is None:
                continue
            sign = str([t.shape for t in call.tensors])
            if (
                sign not in seen
            ):  # a square matrix gives the same call for its first row and its first column
                seen.add(sign)
                yield base, call
            break


def _smallness(base: Sample) -> tuple[bool, bool, int]:
    """Returns the key by which basis samples are sorted: samples with a matrix come first, then samples with a single
    row or column, then samples without a matrix. Within each of these groups, small samples come first."""
    vectors = all(t.dim() < 2 for t in base.tensors)
    thin = any(not t.numel() or min(t.shape[-2:]) < 2 for t in base.tensors if t.dim() > 1)
    return vectors, thin, base.numel


def _milder(basis: Basis, call: Arguments) -> Arguments:
    """Returns the call with smaller numbers in its tensors, because results that increase fast with the matrix, such
    as exponentials, lose precision for large numbers."""
    return basis.rebound(call, [t / 16 if t.dtype == basis.kind else t for t in call.tensors])


def _firm(basis: Basis, call: Arguments) -> Arguments | None:
    return basis.accepted(call) if basis.settled(call) else None


def _matrices(base: Sample, basis: Basis) -> list[int]:
    return [
        p
        for p, t in enumerate(base.tensors)
        if t.dim() > 1 and t.dtype == basis.kind and t.numel() and max(t.shape[-2:]) > 1
    ]


def _blocks(base: Sample, basis: Basis, extent: int) -> Iterator[Arguments]:
    """Yields copies of a sample's call in which the first matrix is repeated along its diagonal. The other matrices are
    repeated along their diagonals, repeated as rows, or left unchanged."""
    places = _matrices(base, basis)
    if not places or min(base.tensors[places[0]].shape[-2:]) < 2:
        return
    first, *others = places
    rows = base.tensors[first].shape[-2]
    count = (extent // rows + 1) | 1
    for how in islice(product((_on_diagonal, _repeated_rows, None), repeat=len(others)), 9):
        tensors = {first: _on_diagonal(base.tensors[first], count)}
        tensors |= {p: grow(base.tensors[p], count) for p, grow in zip(others, how) if grow}
        for p, t in enumerate(base.tensors):
            if p not in places and t.dim() and t.shape[-1] == rows:
                tensors[p] = _repeated_ends(t, count)
        yield basis.rebuilt(base, tensors)


def _columns(base: Sample, basis: Basis) -> Iterator[Arguments]:
    for place in _matrices(base, basis)[1:]:
        given = base.tensors[place]
        count = (_COLUMNS // given.shape[-1] + 1) | 1
        yield basis.rebuilt(base, {place: _repeated_rows(given.mT, count).mT.contiguous()})


def _batches(base: Sample, basis: Basis, count: int) -> Iterator[Arguments]:
    held = [t for t in base.tensors if t.dim()]
    if held and sum(t.numel() for t in held) <= _MOST // count:
        if count == _BATCH:  # so that the first operand has more than 65,536 elements
            count = max(count, (2**16 // held[0].numel() // 64 + 1) * 64)
        yield basis.rebuilt(
            base, {p: _scaled(t, count) for p, t in enumerate(base.tensors) if t.dim()}
        )


def _thin(base: Sample, basis: Basis, dim: int) -> Iterator[Arguments]:
    """Yields copies of a sample's call with only the first row or column of the first matrix, or only its first element
    (for ops whose matrix must be square). The other operands are cut to size 1 in one, both or none of their last two
    dimensions, but only in dimensions as long as dimension ``dim`` of the matrix."""
    places = _matrices(base, basis)
    if not places or min(base.tensors[places[0]].shape[-2:]) < 2:
        return
    whole = base.tensors[places[0]].shape[dim]

    def cut(t: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        for d in dims:
            if t.dim() >= -d and t.shape[d] == whole:
                t = t.narrow(d, 0, 1)
        return t.contiguous()

    for mine, theirs in product(([dim], [-2, -1]), ([-1], [-2], [-2, -1], [])):
        yield basis.rebuilt(
            base,
            {p: cut(t, mine if p == places[0] else theirs) for p, t in enumerate(base.tensors)},
        )


def _scaled(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Returns copies of a tensor along a new leading dimension. Each copy is scaled by a different factor, so that a
    matrix composed of the copies has no eigenvalue twice."""
    copies = tensor.expand(count, *tensor.shape).clone(memory_format=torch.contiguous_format)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return copies
    factors = 1 + (torch.arange(count) % _FACTORS).reshape(count, *[1] * tensor.dim()) / 32
    return (copies * factors).to(tensor.dtype)


def _on_diagonal(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Returns a block-diagonal matrix of ``count`` scaled copies of a matrix."""
    m, n = tensor.shape[-2:]
    found = tensor.new_zeros((*tensor.shape[:-2], m * count, n * count))
    for number, each in enumerate(_scaled(tensor, count)):
        found[..., number * m : (number + 1) * m, number * n : (number + 1) * n] = each
    return found


def _repeated_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([*_scaled(tensor, count)], dim=-2)


def _repeated_ends(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Returns a vector that belongs to a matrix, repeated ``count`` times, once for each block of the larger matrix.
    Integers are row numbers, so for each block they are increased by the number of rows that precede the block."""
    copies = [*_scaled(tensor, count)]
    if not (tensor.is_floating_point() or tensor.is_complex()):
        copies = [each + n * tensor.shape[-1] for n, each in enumerate(copies)]
    return torch.cat(copies, dim=-1)


GROWN = Axis(
    number=15,
    name="grown",
    finds="A kernel of linear algebra that is wrong for matrices of more than one tile, for many columns, for a long batch, or for a single row or column.",
    bugs=("pytorch/pytorch#79191",),
    budget=8,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: basis.keeps_values and not basis.free and basis.dtype == "float32",
    vary=_grown,
)
