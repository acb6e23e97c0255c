"""The axis of handwritten calls. The calls are for ops of which the other axes make few calls, because the arguments
must fit each other or because the result is reliable only for some values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.shapes import starting_at
from opinfo.compare import UNSIGNED, Arguments
from opinfo.samples import Sample

Shape = tuple[int, ...]
#: A function that makes a call from a sample and sizes; it returns None if it cannot use the sample.
Make = Callable[..., Arguments | None]


def _written(basis: Basis) -> Variations:
    """Yields one call for each handwritten size. The call is made from the first sample for which the CPU accepts the
    call and the result is numerically stable; stability is not tested for functions in ``_EXACT``. For each size, the
    search starts three samples after the sample at which the search for the previous size started."""
    bases = _by_arguments(basis)
    for number, (make, sizes) in enumerate(recipes(basis.subject.id)):
        for base in starting_at(bases, 3 * number):
            call = make(basis, base, *sizes)
            if call is None or basis.accepted(call) is None:
                continue
            if make in _EXACT or basis.steady(call):
                yield base, call
                break


def recipes(op: str) -> Iterator[tuple[Make, Sequence[Any]]]:
    """Yields a pair for each handwritten recipe of an op: the function that makes a call, and the sizes with which to
    call that function."""
    for of_pattern in (_FIRST_RECIPES, _RECIPES):
        for pattern, (make, sizes) in of_pattern.items():
            if fnmatchcase(op, pattern):
                yield from ((make, each) for each in sizes)
                break


def _by_arguments(basis: Basis) -> list[Sample]:
    """Returns, for each combination of tensor ranks and other arguments, one sample of the database; only samples
    with the most tensors are used."""
    held = [base for base in basis.drawn if base.numel]
    most = max((len(base.tensors) for base in held), default=0)
    return [*{basis.arguments(s): s for s in held if len(s.tensors) == most}.values()]


def _picked(basis: Basis, base: Sample, place: int, shape: Sequence[int]) -> torch.Tensor:
    """Returns a tensor of the given shape. Its elements are picked at random from the values that the database uses for
    tensor number ``place`` of a call. Unlike ``fill``, the function does not replace fractions by whole numbers."""
    pool = basis.pool(base, place)
    return pool[basis.choice(len(pool), shape)].contiguous()


# -- normalisation, segments, sampling, losses


def _normalised(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call of batch norm with an input of the given shape. The other tensors have one element for each
    channel."""
    others = range(1, len(base.tensors))
    made = {place: _picked(basis, base, place, shape[1:2]) for place in others}
    return basis.rebuilt(base, {0: basis.fill(base, 0, shape), **made})


def _grouped(basis: Basis, base: Sample, groups: int, *shape: int) -> Arguments:
    made = {place: _picked(basis, base, place, shape[1:2]) for place in (1, 2)}
    call = basis.rebuilt(base, {0: basis.fill(base, 0, shape), **made})
    sizes = (*shape[:2], math.prod(shape[2:]), groups)
    return Arguments((*call.args[:3], *sizes, *call.args[7:]), call.kwargs)


def _segments(basis: Basis, base: Sample, shape: Shape, axis: int, count: int) -> Arguments:
    """Returns a call with segments of random lengths, some of them empty, along a dimension of the data."""
    size, batch = shape[axis], shape[:axis]
    ends = basis.choice(size + 1, (*batch, count - 1)).sort(-1).values
    first, last = torch.zeros(*batch, 1).long(), torch.full((*batch, 1), size)
    offsets = torch.cat([first, ends, last], -1)
    index = offsets if "offsets" in base.call.kwargs else offsets.diff(dim=-1)
    call = basis.rebuilt(base, {0: _picked(basis, base, 0, shape), 1: index})
    return Arguments(call.args, {**call.kwargs, "axis": axis})


def _sampled(basis: Basis, base: Sample, shape: Shape, grid: Shape) -> Arguments:
    places = (_picked(basis, base, 0, shape), _picked(basis, base, 1, (*grid, len(grid) - 1)))
    return basis.rebuilt(base, dict(enumerate(places)))


def _unpooled(basis: Basis, base: Sample, sides: Shape, *shape: int) -> Arguments:
    """Returns a max-unpooling call with the results of a max pooling: the maxima of windows that do not overlap, and
    their indices."""
    pool = _POOLS[len(sides) - 1]
    whole = basis.distinct(shape) if basis.kind.is_floating_point else basis.fill(base, 0, shape)
    highest, places = pool(whole.float(), sides)
    given = {"kernel_size": sides, "stride": None, "padding": 0, "output_size": torch.Size(shape)}
    return Arguments((highest.to(basis.kind), places), {**base.call.kwargs, **given})


#: The max-pooling ops for 1, 2 and 3 dimensions.
_POOLS = [getattr(torch.ops.aten, f"max_pool{count}d_with_indices") for count in (1, 2, 3)]


def _aligned(
    basis: Basis, base: Sample, times: int, batch: int, classes: int, most: int
) -> Arguments:
    """Returns a call of CTC loss with ``batch`` sequences of at most ``most`` labels, each with at least one valid
    alignment."""
    scores = _picked(basis, base, 0, (times, batch, classes)).double().log_softmax(-1)
    labels = 1 + basis.choice(classes - 1, (batch, most))
    ends = (times - basis.choice(times // 3, (batch,)), most - basis.choice(most, (batch,)))
    args: list[Any] = [scores.to(basis.kind), labels]
    for given, lengths in zip(base.call.args[2:4], ends):
        held = isinstance(given, torch.Tensor)
        args.append(lengths.to(given.dtype) if held else lengths.tolist())
    return Arguments((*args, *base.call.args[4:]), base.call.kwargs)


def _labelled(basis: Basis, base: Sample, batch: int, classes: int) -> Arguments:
    """Returns a call with rows of distinct class labels, each row ended by -1, for a loss with several labels per
    sample."""
    labels = torch.stack([basis.permutation(classes) for _ in range(batch)])
    labels[:, classes // 3] = -1
    return basis.rebuilt(base, {0: _picked(basis, base, 0, (batch, classes)), 1: labels})


def _of_rows(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call of layer norm with rows of tiny numbers, whose variance is far below eps."""
    call = _like_rows(basis, base, shape[-1:])
    tiny = _picked(basis, base, 0, shape) / 2**14
    return Arguments((tiny, *call.args[1:]), {**call.kwargs, "eps": 1e-5})


def _like_matrices(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call that normalises the last two dimensions, with a weight and a bias."""
    last = shape[-2:]
    made = [basis.fill(base, place, last) for place in (1, 2)[: len(base.tensors) - 1]]
    # With a large eps, rows of equal numbers have a reliable result.
    return Arguments((basis.fill(base, 0, shape), last, *made), {"eps": 0.5})


def _like_rows(basis: Basis, base: Sample, row: Shape) -> Arguments:
    weights = {place: _picked(basis, base, place, row) for place in range(1, len(base.tensors))}
    call = basis.rebuilt(base, weights)
    return Arguments((call.args[0], row, *call.args[2:]), call.kwargs)


def _filtered(
    basis: Basis, base: Sample, image: Shape, weight: Shape, channels: int, options: dict[str, Any]
) -> Arguments | None:
    """Returns a convolution to a number of channels, with these options and no others, whose sums are exact."""
    if base.tensors[0].dim() != len(image):
        return None
    call = _between(basis, base, image, weight, (channels,))
    return Arguments(call.args, dict(options))


def _multiplied(basis: Basis, base: Sample, *shapes: Shape) -> Arguments:
    """Returns a product of operands of these shapes. A layer has no bias if no shape is given for it."""
    return Arguments(tuple(basis.fill(base, place, each) for place, each in enumerate(shapes)), {})


def _highest(basis: Basis, base: Sample, count: int, *shape: int) -> Arguments:
    """Returns a call for the ``count`` largest of different numbers."""
    return Arguments((basis.distinct(shape), count), {"dim": -1})


# -- distances, unique elements, steps


def _between(basis: Basis, base: Sample, *shapes: Shape) -> Arguments:
    filled = {place: basis.fill(base, place, shape) for place, shape in enumerate(shapes)}
    return basis.rebuilt(base, filled)


def _some_rows_empty(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call with matrices of which every third row has only zeros, and reduces the rows. The database's values have
    no row of zeros, for which alone the result is False."""
    values = torch.ones(shape, dtype=basis.kind)
    values[..., ::3, :] = 0
    values[..., :-1] *= torch.arange(shape[-2]).reshape(-1, 1) % 2 == 0
    return Arguments((values,), {"dim": -1})


def _contained(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call that looks for elements of which the first column is among those looked for, and others are not."""
    elements = basis.distinct(shape)
    return Arguments((elements, elements[..., 0].reshape(-1).clone()), {})


def _returned_itself(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call that converts a tensor to the dtype that it has. The result is the tensor itself."""
    return Arguments((basis.fill(base, 0, shape), basis.kind), {})


def _several_in_a_row(
    basis: Basis, base: Sample, reduce: str, rows: int, inner: int, columns: int
) -> Arguments:
    """Returns a product with a sparse matrix whose rows have different numbers of entries, none of them 1. The database's
    matrices are identities, for which a sum, a mean and a maximum are the same."""
    held = torch.arange(inner).expand(rows, inner) % 5 <= torch.arange(rows).reshape(-1, 1) % 4
    values = torch.where(held, 2.0 + torch.arange(rows * inner).reshape(rows, inner) % 3, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that CSR is in beta
        sparse = values.to(basis.kind).to_sparse_csr()
    numbers = basis.choice(9, (inner, columns)).to(basis.kind) - 4
    return Arguments((sparse, numbers, reduce), {})


def _rolled(basis: Basis, base: Sample, shifts: Shape, dims: Shape, *shape: int) -> Arguments:
    """Returns a call that shifts by more elements than a dimension has, to the left and to the right. The database has such
    a shift to the right only."""
    return Arguments((basis.fill(base, 0, shape), shifts, dims), {})


def _looked_up(basis: Basis, base: Sample, padding: int, rows: int, *shape: int) -> Arguments:
    """Returns a call of embedding with a row for padding, some of whose indices are that row. The database pads with row 0
    only where the gradient is sparse."""
    indices = basis.choice(rows, shape)
    indices.view(-1)[::3] = padding % rows
    return Arguments((basis.fill(base, 0, (rows, 5)), indices), {"padding_idx": padding})


def _some_rows_equal(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call of pdist in which every second row equals the row before it: a gradient that divides by the distance
    is NaN."""
    rows = basis.fill(base, 0, shape)
    rows[1::2] = rows[::2][: len(rows[1::2])]
    return Arguments((rows, 2.0), {})


def _sliced(basis: Basis, base: Sample, *index: slice) -> Arguments:
    """Returns a call with a slice of each of three dimensions."""
    return Arguments((basis.fill(base, 0, (5, 7, 6)), index), {})


def _of_heads(basis: Basis, base: Sample, batch: int, heads: int, rows: int, columns: int) -> Arguments:  # fmt: skip
    """Returns a call of einsum in which each head (the second letter) has a matrix of its own, as in layers with a weight
    for each head or expert: the shared letter is the first of the weights, and not of the input."""
    x, weights = ((batch, heads, rows), (heads, rows, columns))
    return Arguments(([basis.fill(base, 0, x), basis.fill(base, 1, weights)], "bij,ijk->bik"), {})


def _repeating(basis: Basis, base: Sample, *shape: int) -> Arguments | None:
    """Returns a call with few different values that occur often. Returns None if the sample has a ``dim`` or no
    ``sorted=True``, because the order of the result is unspecified in these cases."""
    if base.call.kwargs.get("dim") is not None or not base.call.kwargs.get("sorted"):
        return None
    step, counts = basis.pool(base, 0)[:1], basis.choice(7, shape)
    # Dtypes without a multiplication kernel use the counts themselves.
    values = counts.to(step.dtype) if step.dtype in UNSIGNED else step * counts
    return basis.rebuilt(base, {0: values})


def _stepped(basis: Basis, base: Sample, steps: int) -> Arguments:
    start, end, _, *rest = base.call.args
    return Arguments((start, end, steps, *rest), base.call.kwargs)


# -- matrices


def _dominant(basis: Basis, base: Sample, shape: Shape, turned: bool = True) -> torch.Tensor:
    """Returns matrices with one large element in each row, each in a different column, so that a factorization is
    numerically stable. If ``turned`` is true, the rows are permuted, so that the factorization has to pivot."""
    *_, rows, columns = shape
    made = _picked(basis, base, 0, shape)
    order = basis.permutation(rows) if turned else torch.arange(rows)
    for column, row in enumerate(order[:columns].tolist()):
        made[..., row, column] = 2 * (rows + columns) + 1 + column % 3
    return made


def _factored(basis: Basis, base: Sample, *shape: int) -> Arguments:
    return basis.rebuilt(base, {0: _dominant(basis, base, shape)})


def _unpacked(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call that unpacks an LU factorization with random valid pivots."""
    *batch, rows, columns = shape
    steps = torch.arange(min(rows, columns))
    further = basis.choice(2**20, (*batch, len(steps))) % (rows - steps)
    pivots = (steps + 1 + further).to(torch.int32)
    return basis.rebuilt(base, {0: basis.fill(base, 0, shape), 1: pivots})


def _symmetric(basis: Basis, base: Sample, batch: Shape, rows: int, columns: int) -> Arguments:
    """Returns a call with LDL factors of symmetric or hermitian matrices and right-hand sides. For an odd size, the
    factors have 2x2 pivots."""
    hermitian = bool(base.call.kwargs.get("hermitian"))
    made = _dominant(basis, base, (*batch, rows, rows), turned=False)
    made = made.flip(-1) if rows % 2 else made
    made = made + (made.mH if hermitian else made.mT)
    factors, pivots = torch.linalg.ldl_factor(made, hermitian=hermitian)
    right = basis.fill(base, 2, (*batch, rows, columns))
    return basis.rebuilt(base, {0: factors.contiguous(), 1: pivots, 2: right})


def _systems(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call with a tensor that is invertible when viewed as a matrix, and a right-hand side of the given
    shape."""
    size = math.prod(shape)
    matrix = _dominant(basis, base, (size, size)).view(*shape, size)
    call = basis.rebuilt(base, {0: matrix, 1: basis.fill(base, 1, shape)})
    return Arguments(call.args, {**call.kwargs, "dims": None})


def _from_the_right(basis: Basis, base: Sample, batch: Shape, rows: int, columns: int) -> Arguments:
    """Returns a call that solves equations X A = B, in which the unknown X is to the left of the matrix A."""
    matrix = _dominant(basis, base, (*batch, columns, columns))
    right = basis.fill(base, 1, (*batch, rows, columns))
    call = basis.rebuilt(base, {0: matrix, 1: right})
    return Arguments(call.args, {**call.kwargs, "left": False})


def _for_all_matrices(
    basis: Basis, base: Sample, matrices: int, size: int, right: Shape
) -> Arguments:
    """Returns a call that solves the same right-hand side for each of several matrices."""
    matrix = _dominant(basis, base, (matrices, size, size))
    call = basis.rebuilt(base, {0: matrix, 1: basis.fill(base, 1, right)})
    return Arguments(call.args, {n: value for n, value in call.kwargs.items() if n != "left"})


def _inverted(basis: Basis, base: Sample, first: Shape, last: Shape) -> Arguments:
    size = math.prod(first)
    matrix = _dominant(basis, base, (size, size)).view(*first, *last)
    return Arguments((matrix,), {**base.call.kwargs, "ind": len(first)})


def _windowed(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call with frames of a two-sided spectrum and a window as long as a frame. A shorter window would hide
    errors at both ends."""
    window = _picked(basis, base, 1, (shape[-2],))
    call = basis.rebuilt(base, {0: basis.fill(base, 0, shape), 1: window})
    given = {"n_fft": shape[-2], "win_length": None, "center": False, "return_complex": True}
    return Arguments(call.args, {**call.kwargs, **given})


def _fitted(
    basis: Basis, base: Sample, batch: Shape, rows: int, columns: int, of: int
) -> Arguments:
    """Returns a call with least-squares problems: matrices of ``rows`` and ``columns`` whose columns are nearly
    orthogonal, and ``of`` right-hand sides."""
    matrix = _dominant(basis, base, (*batch, rows, columns))
    return basis.rebuilt(base, {0: matrix, 1: _picked(basis, base, 1, (*batch, rows, of))})


def _near_one(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call with matrices near the identity, so that their powers stay small."""
    noise = _picked(basis, base, 0, shape) / (16 * shape[-1])
    return basis.rebuilt(base, {0: torch.eye(shape[-1], dtype=basis.kind) + noise})


def _apart(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call with triangular matrices whose eigenvalues are well separated."""
    steps = torch.arange(shape[-1], 0, -1).to(basis.kind)
    return basis.rebuilt(base, {0: _picked(basis, base, 0, shape).triu(1) / 64 + torch.diag(steps)})


def _of_rank(basis: Basis, base: Sample, *shape: int) -> Arguments:
    """Returns a call with diagonal matrices of different ranks. All of the database's matrices of a batch have the same
    rank."""
    size = min(shape[-2:])
    count = math.prod(shape[:-2])
    ones = torch.arange(size) <= (torch.arange(count) * 2 % size).reshape(-1, 1)
    made = torch.zeros(count, *shape[-2:])
    made.diagonal(dim1=-2, dim2=-1).copy_(ones)
    kwargs = {name: each for name, each in base.call.kwargs.items() if name == "hermitian"}
    return Arguments((made.reshape(shape).to(basis.kind),), kwargs)


def _any_matrix(basis: Basis, base: Sample, *shape: int) -> Arguments:
    return basis.rebuilt(base, {0: _picked(basis, base, 0, shape)})


_BATCH_NORMS = (
    *((5, 3, 2, 3, 4), (517, 3), (2, 131, 17), (1, 2, 4099), (65, 33, 33), (8, 4, 2), (1, 17)),
    (131, 149),
)
_GROUP_NORMS = (
    *((2, 5, 4, 2, 3, 4), (3, 517, 3, 1), (1, 2, 131, 17), (2, 1, 2, 4099), (11, 2, 33, 1031)),
    *((4, 8, 4, 2), (5, 7, 5, 7), (2, 1, 4, 131, 137)),
)
_GRIDS_2D = (
    *(((1, 3, 4, 65), (1, 2, 33)), ((2, 2, 17, 19), (2, 19, 17)), ((1, 1, 1031, 3), (1, 5, 1))),
    *(((3, 4, 131, 137), (3, 1, 17)), ((2, 3, 37, 41), (2, 37, 41)), ((1, 1, 2, 1), (1, 1, 1))),
    *(((1, 1, 7, 7), (1, 7, 7)), ((331, 1, 3, 1), (331, 1, 2))),
)
_GRIDS_3D = (
    *(((1, 3, 2, 4, 65), (1, 2, 3, 17)), ((2, 2, 7, 9, 5), (2, 5, 7, 9))),
    *(((1, 1, 1031, 1, 3), (1, 5, 1, 1)), ((3, 2, 1, 131, 137), (3, 1, 1, 37))),
    *(((1, 2, 17, 19, 13), (1, 13, 17, 19)), ((1, 1, 7, 7, 1), (1, 1, 7, 7))),
)
_LU = (
    *((331, 3, 2), (131, 137), (2, 3, 1030), (1, 7), (17, 1), (2, 3, 1, 5, 4), (3, 33, 17)),
    (300, 300),
)
_SEGMENTS = (
    *(((1025,), 0, 7), ((37, 3, 2), 0, 17), ((3, 130), 1, 9), ((331, 2), 0, 300)),
    *(((5, 17, 1), 1, 5), ((2, 33, 65), 1, 3), ((1, 17), 0, 2), ((131, 149), 0, 9)),
)
_SYMMETRIC = (
    *(((), 65, 3), ((331,), 3, 2), ((), 130, 17), ((2,), 5, 1030), ((3, 2), 4, 1), ((), 1, 7)),
    ((), 131, 137),
)
_FROM_THE_RIGHT = (((), 3, 5), ((2,), 7, 33), ((), 17, 17), ((331,), 1, 2))
_NORMS = ((17, 17), (2, 65, 131), (1031, 3), (3, 300, 301), (331, 2, 3), (1, 5), (7, 1))
_STEPS = ((7,), (17,), (65,), (300,), (1031,), (4099,), (65_551,))

#: Shapes and options for which libraries have kernels of their own: many channels and a large window, windows of one
#: element, also with a stride, filters of one channel each, and channels that are a multiple of 16.
_CONVOLUTIONS_1D: Sequence[tuple[Shape, Shape, int, dict[str, Any]]] = (
    ((2, 6, 9), (4, 6, 1), 4, {"stride": 2}),
    ((1, 4, 7), (4, 1, 3), 4, {"groups": 4, "padding": 1}),
    ((1, 16, 14), (32, 16, 3), 32, {"padding": 1}),
)
_CONVOLUTIONS_2D: Sequence[tuple[Shape, Shape, int, dict[str, Any]]] = (
    ((1, 40, 9, 9), (6, 40, 5, 5), 6, {"padding": 2}),
    ((2, 67, 7, 8), (3, 67, 7, 5), 3, {"padding": 2}),
    ((2, 6, 9, 8), (4, 6, 1, 1), 4, {"stride": 2}),
    ((1, 4, 6, 5), (4, 1, 3, 3), 4, {"groups": 4, "padding": 1}),
    ((1, 16, 7, 7), (16, 16, 1, 1), 16, {}),
    ((1, 16, 14, 14), (32, 16, 3, 3), 32, {"padding": 1}),
    ((2, 32, 14, 14), (64, 32, 1, 7), 64, {"padding": 1}),
)
_CONVOLUTIONS_3D: Sequence[tuple[Shape, Shape, int, dict[str, Any]]] = (
    ((1, 6, 5, 4, 7), (4, 6, 1, 1, 1), 4, {"stride": 2}),
    ((1, 4, 3, 4, 5), (4, 1, 3, 3, 3), 4, {"groups": 4, "padding": 1}),
    ((1, 16, 4, 6, 5), (16, 16, 3, 3, 3), 16, {"padding": 1}),
)
_TRANSPOSED_2D: Sequence[tuple[Shape, Shape, int, dict[str, Any]]] = (
    ((2, 6, 5, 4), (6, 4, 1, 1), 4, {"stride": 2}),
    ((1, 4, 6, 5), (4, 1, 3, 3), 4, {"groups": 4, "padding": 1}),
    ((1, 16, 7, 7), (16, 32, 2, 2), 32, {"stride": 2}),
)

#: By op (with wildcards): the function that makes a call, and the sizes to make calls with.
_RECIPES: dict[str, tuple[Make, Sequence[Any]]] = {
    "*native_batch_norm*": (_normalised, _BATCH_NORMS),
    "_batch_norm_with_update": (_normalised, _BATCH_NORMS),
    "native_group_norm": (_grouped, _GROUP_NORMS),
    "_segment_reduce.*": (_segments, _SEGMENTS),
    "grid_sampler_2d": (_sampled, _GRIDS_2D),
    "grid_sampler_3d": (_sampled, _GRIDS_3D),
    "nn.functional.max_unpool1d*": (
        _unpooled,
        (((2,), 2, 3, 10), ((3,), 1, 2, 4099), ((2,), 331, 1, 4), ((1,), 1, 1, 17)),
    ),
    "nn.functional.max_unpool2d*": (
        _unpooled,
        (
            *(((2, 3), 1, 2, 6, 200), ((3, 2), 331, 1, 3, 4), ((1, 1), 1, 1, 7, 7)),
            *(((2, 1), 1, 1, 2100, 5), ((2, 2), 2, 1, 300, 302), ((1, 2), 1, 1, 131, 274)),
        ),
    ),
    "nn.functional.max_unpool3d*": (
        _unpooled,
        (
            *(
                ((2, 3, 1), 1, 2, 4, 6, 65),
                ((1, 2, 2), 331, 1, 1, 2, 4),
                ((1, 1, 1), 1, 1, 1, 7, 7),
            ),
            *(((2, 1, 2), 1, 1, 2, 131, 274), ((2, 2, 2), 1, 2, 34, 38, 66)),
        ),
    ),
    "nn.functional.ctc_loss": (
        _aligned,
        ((37, 3, 5, 7), (300, 1, 33, 17), (17, 331, 3, 2), (9, 2, 1030, 3), (19, 17, 9, 1)),
    ),
    "nn.functional.multilabel_margin_loss": (_labelled, ((3, 1031), (331, 4), (17, 17), (1, 300))),
    "roll": (
        _rolled,
        (
            ((-7,), (1,), 3, 4, 5),
            ((9, -11), (0, 2), 3, 4, 5),
            ((-67,), (), 3, 4, 5),
            ((-29,), (0,), 13),
        ),
    ),
    "nn.functional.embedding": (_looked_up, ((0, 7, 2, 9), (-1, 7, 17))),
    "nn.functional.pdist": (_between, (((65, 3),), ((300, 2),), ((3, 1031),), ((17, 17),))),
    "cdist": (
        _between,
        (
            *(((65, 3), (7, 3)), ((2, 3, 1031), (2, 4, 1031)), ((331, 5), (2, 5))),
            *(((131, 137), (3, 137)), ((17, 1), (17, 1)), ((2, 1, 5, 7), (3, 4, 7))),
            ((1, 17), (300, 17)),
        ),
    ),
    "__getitem__": (
        _sliced,
        (
            (slice(1, 4), slice(2, None), slice(0, 6, 2)),
            (slice(0, 5, 2), slice(3, 4), slice(None, -1)),
        ),
    ),
    "einsum": (_of_heads, ((3, 4, 5, 2), (17, 3, 33, 7))),
    "unique": (
        _repeating,
        ((17,), (4099,), (331, 2), (131, 137), (2, 3, 1, 5, 4), (257, 257), (1, 65), (7, 1)),
    ),
    "linspace.tensor_overload": (_stepped, _STEPS),
    "logspace.tensor_overload": (_stepped, _STEPS),
    "linalg.lu": (_factored, _LU),
    "lu_unpack": (_unpacked, _LU),
    "linalg.ldl_solve": (_symmetric, _SYMMETRIC),
    "linalg.solve": (_from_the_right, _FROM_THE_RIGHT),
    "linalg.solve_ex": (_from_the_right, _FROM_THE_RIGHT),
    "linalg.tensorsolve": (_systems, ((5, 13), (2, 129), (3, 11, 1), (17,))),
    "linalg.tensorinv": (_inverted, (((5, 13), (65,)), ((131,), (131,)), ((17,), (1, 17)))),
    "linalg.lstsq*": (
        _fitted,
        (((), 331, 3, 2), ((), 65, 17, 3), ((2,), 33, 33, 5), ((), 3, 7, 1031), ((331,), 3, 2, 1)),
    ),
    "linalg.matrix_power": (_near_one, ((17, 17), (65, 65), (2, 33, 33), (331, 3, 3), (131, 131))),
    "linalg.matrix_norm": (_any_matrix, _NORMS),
    "linalg.matrix_rank*": (_of_rank, ((7, 5, 5), (2, 3, 4, 4))),
    "isin": (_contained, ((3, 5), (2, 3, 7))),
    "any": (_some_rows_empty, ((7, 5), (3, 33, 17))),
    "to": (_returned_itself, ((5, 7), (2, 3, 4, 5))),
    "sparse.mm.reduce": (
        _several_in_a_row,
        (*((each, 9, 11, 5) for each in ("sum", "mean", "amax", "amin")), ("mean", 33, 17, 3)),
    ),
    "istft": (_windowed, ((2, 10, 5), (17, 33), (331, 5, 2), (131, 4))),
    "topk": (_highest, ((17, 5, 65), (33, 131), (40, 3, 1031))),
    "nn.functional.linear": (
        _multiplied,
        (
            *(((80, 1, 2), (7, 2), (7,)), ((3, 1, 4), (5, 4), (5,)), ((331, 1, 3), (2, 3), (2,))),
            *(((1, 1), (1, 1)), ((1, 33), (1, 33))),
        ),
    ),
    "nn.functional.scaled_dot_product_attention": (
        _multiplied,
        (((1, 2, 1, 16),) * 3, ((2, 2, 65, 64), (2, 2, 130, 64), (2, 2, 130, 64))),
    ),
    "mm": (_multiplied, (((1, 1), (1, 1)), ((1, 33), (33, 1)))),
    "bmm": (_multiplied, (((1, 1, 1), (1, 1, 1)), ((3, 1, 33), (3, 33, 1)))),
    "matmul": (_multiplied, (((1, 1), (1, 1)), ((1,), (1,)), ((1, 33), (33, 1)))),
    "addmm": (_between, (((1, 1), (1, 1), (1, 1)),)),
    "nn.functional.conv2d": (_filtered, _CONVOLUTIONS_2D),
    "nn.functional.conv1d": (_filtered, _CONVOLUTIONS_1D),
    "nn.functional.conv3d": (_filtered, _CONVOLUTIONS_3D),
    "nn.functional.conv_transpose2d": (_filtered, _TRANSPOSED_2D),
    "nn.functional.layer_norm": (_of_rows, ((5, 33), (2, 3, 130))),
    "linalg.eig": (_apart, ((17, 17), (65, 65), (2, 33, 33), (331, 3, 3), (131, 131))),
}

#: The same for calls that come before those of ``_RECIPES``, so that their gradients are checked too: several matrices with
#: one right-hand side for all of them (pytorch/pytorch#189134), very many rows that are normalised over two dimensions
#: (intel/torch-xpu-ops#5235), and distances that are zero.
_FIRST_RECIPES: dict[str, tuple[Make, Sequence[Any]]] = {
    "linalg.solve": (_for_all_matrices, ((3, 5, (5, 2)), (2, 7, (7,)))),
    "linalg.solve_ex": (_for_all_matrices, ((3, 5, (5, 2)),)),
    "nn.functional.layer_norm": (_like_matrices, ((65_551, 1, 3),)),
    "nn.functional.pdist": (_some_rows_equal, ((9, 3),)),
}

#: Functions whose ops return elements unchanged. The check for steady results does not apply to them.
_EXACT: frozenset[Make] = frozenset({_repeating, _unpooled, _of_rank, _several_in_a_row})


WRITTEN = Axis(
    number=19,
    name="written",
    finds="The faults that the axes size, extent, rank and grown find, in ops for which these axes make few calls, because the arguments must fit each other or because the result is reliable only for some values.",
    bugs=("pytorch/pytorch#27442", "pytorch/pytorch#1059", "pytorch/pytorch#36921"),
    budget=8,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: bool(basis.drawn),
    vary=_written,
    keeps_shapes=True,
    family="axes.written",
)
