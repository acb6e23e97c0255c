"""Axes that vary shapes: rank and broadcasting, total size, the size of one dimension, empty tensors, and equal
sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice, product, zip_longest
from typing import Any

import torch
from packaging.version import Version

from opinfo.axes.axis_context import MOST, Axis, Basis, Variations
from opinfo.axes.growth import MOST_GROWN, TRIES, dims_of, groups_of, lengthened
from opinfo.compare import Arguments
from opinfo.exceptions import op_family
from opinfo.samples import Sample

#: Shapes with different extents in all dimensions, so that a result with permuted dimensions cannot look right.
MAIN = (3, 5, 2, 9)
_RANKS = ((2, 3, 1, 5, 4), (2, 1, 3, 4, 5, 6), (5, 3, 7), (7, 6), (19,))
#: From this rank on, kernels use their general code path.
_DEEP = 5
#: Shapes of the first and of the other operands that broadcast: on the left, in the middle, and both ways.
_BROADCAST = (
    ((3, 5, 2, 9), (2, 9)),
    ((2, 1), (3, 5, 2, 9)),
    ((3, 1, 2, 1), (1, 5, 1, 9)),
    ((5, 3, 7), (5, 1, 7)),
)
#: More than 2^16 elements, an odd number, and more rows than a block has threads.
_LARGE = (4099, 17)
#: Slightly more than 32, 256, 1,024 and 4,096; all odd, and for some, one element follows the last whole vector of any width.
_EXTENTS = (4097, 1031, 257, 37)
#: The number of rows of a matrix made from a vector; more than the threads of a block.
_ROWS = 517
#: The extents for ops whose work grows with the square.
_SHORT_EXTENTS = (257, 37)
#: The extents for dtypes of 16 bits and fewer, in which sums of this many 1 and -1 are exact.
_NARROW_EXTENTS = (1031, 257, 37)


def same_shape(basis: Basis, base: Sample) -> list[int]:
    """Returns the positions of the tensors that may all get the same new shape: tensors with the shape of the largest
    tensor or, for elementwise ops, all tensors except 0-d tensors."""
    largest = max(base.tensors, key=lambda t: (t.numel(), t.dim()))
    return [
        place
        for place, tensor in enumerate(base.tensors)
        if tensor.dim() and (basis.elementwise or tensor.shape == largest.shape)
    ]


def shaped(basis: Basis, base: Sample, shapes: Sequence[Sequence[int]]) -> Arguments:
    """Returns a sample's call with its tensors in the given shapes. The last shape is used for all further tensors."""
    places = same_shape(basis, base)
    return basis.rebuilt(
        base,
        {
            place: basis.fill(base, place, shapes[min(number, len(shapes) - 1)])
            for number, place in enumerate(places)
        },
    )


#: A shape with 105 elements, enough for all special values, and with more than 8 rows.
_ROOM = (5, 3, 7)


def roomy(basis: Basis, base: Sample) -> Sample:
    """Returns a copy of the sample with more elements and rows if it has few and the op accepts more; otherwise the
    sample itself."""
    held = [t for t in base.tensors if t.dtype == basis.kind and t.numel() > 1]
    few = [t for t in held if t.numel() < 14 or t.numel() <= 8 * t.shape[-1]]
    if not few or basis.keeps_values or "axes.keep_shapes" in basis.families:
        return base
    call = basis.accepted(shaped(basis, base, [_ROOM]))
    return replace(base, call=call) if call is not None else base


def starting_at(bases: Sequence[Sample], first: int) -> list[Sample]:
    """Returns the samples in cyclic order, starting at number ``first``. The samples have different arguments, so
    calls that are made with another ``first`` get other arguments."""
    first = first % len(bases) if bases else 0
    return [*bases[first:], *bases[:first]]


def _ranks(basis: Basis) -> Variations:
    bases = [base for base in basis.bases if same_shape(basis, base)]
    main = None
    reshapes = not basis.keeps_values
    for base in bases if reshapes else ():
        if (call := basis.accepted(shaped(basis, base, [MAIN]))) is not None:
            main = base
            yield base, call
            break
    if main is None and reshapes:
        yield from _trailed(basis, bases)
    if main is not None and len(same_shape(basis, main)) > 1:
        yield from _accepted_shapes(basis, ((main, shapes) for shapes in _BROADCAST))
    most = 0
    if reshapes and bases:
        for base, call in _accepted_shapes(
            basis, _rotated(bases if main is None else [main, *bases])
        ):
            most = max(most, *(t.dim() for t in call.tensors))
            yield base, call
    # Arguments that name dimensions or extents may not fit another shape, so batches are tried as well.
    if main is None or most < _DEEP:
        yield from _batched(basis)


def _rotated(bases: Sequence[Sample]) -> Iterator[tuple[Sample, Sequence[Sequence[int]]]]:
    """Yields each shape in ``_RANKS`` with one of the samples ``bases``. The samples are used in turn, because their
    arguments differ."""
    for number, shape in enumerate(_RANKS):
        yield bases[number % len(bases)], [shape]


def _accepted_shapes(
    basis: Basis, wanted: Iterator[tuple[Sample, Sequence[Sequence[int]]]]
) -> Variations:
    for base, shapes in wanted:
        if (call := basis.accepted(shaped(basis, base, shapes))) is not None:
            yield base, call


def _batched(basis: Basis) -> Variations:
    """Yields calls with more leading dimensions in all tensors or only in the first tensor, and calls in which the
    batch of some tensors has size 1 and is broadcast."""
    several = [base for base in basis.bases if sum(t.dim() > 0 for t in base.tensors) > 1]
    for first, others in (((3,), (1,)), ((1,), (3,))):
        for base in several:
            stacks = {p: stacked(t, others if p else first) for p, t in enumerate(base.tensors)}
            if (call := basis.accepted(basis.rebuilt(base, stacks))) is not None:
                yield base, call
                break
    for base, lead in product(basis.bases, ((2,), (3, 2))):
        for only in (False, True)[: len(base.tensors)]:
            places = [0] if only else range(len(base.tensors))
            tensors = {
                place: stacked(base.tensors[place], lead)
                for place in places
                if base.tensors[place].dim()
            }
            if tensors and (call := basis.accepted(basis.rebuilt(base, tensors))) is not None:
                yield base, call
                break


def _trailed(basis: Basis, bases: Sequence[Sample]) -> Variations:
    """Yields calls in which the tensors that ``same_shape`` finds have additional dimensions at the end. A row, for
    example, becomes an image."""
    for tail in ((3, 5), (3,)):
        for base in bases:
            shapes = {
                place: (*base.tensors[place].shape, *tail) for place in same_shape(basis, base)
            }
            tensors = {p: basis.fill(base, p, shape) for p, shape in shapes.items()}
            if (call := basis.accepted(basis.rebuilt(base, tensors))) is not None:
                yield base, call
                break


def stacked(tensor: torch.Tensor, lead: Sequence[int]) -> torch.Tensor:
    """Returns copies of a tensor along new leading dimensions. Each copy is scaled by a different factor, so that
    triangular, definite and regular matrices keep these properties."""
    copies = tensor.expand(*lead, *tensor.shape).clone(memory_format=torch.contiguous_format)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return copies
    count = math.prod(lead)
    factors = 1 + torch.arange(count).reshape(*lead, *[1] * tensor.dim()) / 8
    return (copies * factors).to(tensor.dtype)


RANK = Axis(
    number=1,
    name="rank",
    finds="A kernel that mistakes one dimension for another, or that broadcasts wrongly. All extents differ.",
    bugs=("pytorch/pytorch#139006", "pytorch/pytorch#110120", "pytorch/pytorch#132332"),
    budget=10,
    layouts=("contiguous", "transposed+step_outer+offset", "free:order=1.2.0", "free:ones=0"),
    whole=1,
    applies=lambda basis: not basis.unique_indices,
    vary=_ranks,
    writes=1,
)


def _sizes(basis: Basis) -> Variations:
    for base in (each for each in basis.bases if same_shape(basis, each)):
        call = basis.accepted(shaped(basis, base, [_LARGE]))
        if call is not None:
            yield base, call
            return


SIZE = Axis(
    number=2,
    name="size",
    finds="A kernel that is wrong beyond 65,536 elements, or in the last elements that do not fill a vector or a block.",
    bugs=("pytorch/pytorch#195595", "pytorch/pytorch#122916", "intel/torch-xpu-ops#3020"),
    budget=1,
    layouts=(
        *("contiguous", "transposed+step_outer+offset", "free:offset=1"),
        *("contiguous+step_inner/contiguous", "contiguous/transposed"),
    ),
    applies=lambda basis: basis.shape_free and not basis.keeps_values,
    vary=_sizes,
    writes=1,
)


# -- one long dimension


def _extents(basis: Basis) -> Variations:
    sizes: Sequence[int] = _NARROW_EXTENTS if basis.kind.itemsize <= 2 else _EXTENTS
    if "axes.quadratic" in basis.families:
        sizes = _SHORT_EXTENTS
    found: list[tuple[Sample, frozenset[Any], float]] = []
    seen: set[Any] = set()
    # The bases take turns, because each rank may have its own kernel.
    for of_each in zip_longest(*([(b, *g) for g in groups_of(basis, b)] for b in basis.bases)):
        for base, group, growth in filter(None, of_each):
            sign = (basis.arguments(base), *sorted(map(str, group)))
            if sign not in seen:
                seen.add(sign)
                found.append((base, group, growth))
    if found:  # start with the group that can grow most
        found.insert(0, found.pop(min(range(len(found)), key=lambda n: found[n][2])))
    made: set[tuple[int, int]] = set()
    # A norm divides by the spread of its elements, which is a mere rounding error if they are equal by chance.
    steady = op_family(basis.subject.id, basis.subject.ufunc) != "norm"
    for turn in range(2):
        for number, (base, group, growth) in enumerate(found):
            first = (number + 2 * turn) % len(sizes) if turn else number % 2
            for size in sizes[first:]:
                if growth * size > MOST_GROWN or (number, size) in made:
                    continue
                call = lengthened(basis, base, group, size)
                if call is not None and (steady or basis.steady(call)) and basis.accepted(call):
                    made.add((number, size))
                    yield base, call
                    break
        if not turn:
            yield from _rows(basis)


def _rows(basis: Basis) -> Variations:
    """Yields calls with a matrix of many rows in place of a vector. A kernel that reduces or scans one row then has
    other rows beside that row."""
    vectors = [base for base in basis.bases if base.tensors[0].dim() == 1][:2]
    yield from _accepted_shapes(
        basis, ((base, [(_ROWS, base.tensors[0].numel())]) for base in vectors)
    )


EXTENT = Axis(
    number=3,
    name="extent",
    finds="A kernel that is wrong if a dimension is longer than a warp, a block or a tile, or not a multiple of these.",
    bugs=(
        "pytorch/pytorch#181133",
        "pytorch/pytorch#163597",
        "pytorch/pytorch#129207",
        "pytorch/pytorch#38764",
    ),
    budget=8,
    layouts=("contiguous", "transposed+step_outer+offset", "contiguous+step_inner+offset"),
    mixed=(
        *("contiguous+step_inner+offset", "contiguous/transposed"),
        *("contiguous+step_inner/contiguous", "contiguous/contiguous+step_inner/contiguous"),
    ),
    applies=lambda basis: not basis.elementwise and not basis.keeps_values and not basis.free,
    vary=_extents,
)


# -- no elements


def _empties(basis: Basis) -> Variations:
    """Yields calls with empty tensors. They are made alternately from samples with different numbers of tensors,
    because some ops accept a number in place of a tensor."""
    by_count: dict[int, list[Sample]] = {}
    for base in basis.bases:
        by_count.setdefault(len(base.tensors), []).append(base)
    for of_each in zip_longest(*(_empties_of(basis, bases) for bases in by_count.values())):
        yield from filter(None, of_each)


def _empties_of(basis: Basis, bases: Sequence[Sample]) -> Variations:
    for base in bases:
        found = False
        for tries in islice(_emptied(basis, base), TRIES // 3):
            call = next(filter(None, map(basis.accepted, tries)), None)
            if call is not None and not all(t.numel() for t in call.tensors):
                found = True
                yield base, call
        if found:
            return


#: The position of embedding_bag's offsets among its tensors.
_OFFSETS = 2
#: The dimension of attention that has the heads, and the first version of torch whose CPU accepts 0 heads.
_HEADS = -3
_WITHOUT_HEADS = Version("2.13")
#: Empty shapes: a vector, an empty dimension in the middle, and one that broadcasts.
_EMPTY = (((0,),), ((3, 0, 2),), ((1, 4), (0, 1)))


def _emptied(basis: Basis, base: Sample) -> Iterator[Iterator[Arguments]]:
    """Yields, for each dimension, alternative calls in which the dimension has size 0. The caller uses the first
    alternative that the CPU accepts.

    A dimension whose size another tensor shares is not emptied alone, because some kernels do not check the sizes.
    """
    if basis.shape_free and not basis.keeps_values:
        yield from (iter([shaped(basis, base, shapes)]) for shapes in _EMPTY)
        return
    dims = [(p, d) for p, t in enumerate(base.tensors) for d in range(t.dim())]
    if "axes.offsets" in basis.families and basis.dtype == "float64":
        dims = [(p, d) for p, d in dims if p != _OFFSETS]
    if "axes.channels" in basis.families:
        channels = {(0, base.tensors[0].dim() - base.tensors[1].dim() + 1), (1, 1)}
        dims = [each for each in dims if each not in channels]
    if "axes.heads" in basis.families and Version(torch.__version__) < _WITHOUT_HEADS:
        heads = {(p, base.tensors[p].dim() + _HEADS) for p, _ in dims}
        dims = [each for each in dims if each not in heads]
    if op_family(basis.subject.id, basis.subject.ufunc) == "indexing":
        # Only the index is empty, so nothing is read.
        indices = [p for p, t in enumerate(base.tensors) if p and t.dtype == torch.int64]
        alone = [frozenset((q, d) for q, d in dims if q == p) for p in indices]
        yield from (iter([_without(basis, base, each)]) for each in alone)
    extents = {(p, d): base.tensors[p].shape[d] for p, d in dims}
    seen: set[frozenset[tuple[int, int]]] = set()
    for place, dim in dims:
        same = [each for each in dims if extents[each] == extents[place, dim]]
        group = {(place, dim)}
        for other in {p for p, _ in same} - {place}:
            theirs = [each for each in same if each[0] == other]
            group |= set(theirs) if len(theirs) == 1 else {(other, dim)} & set(theirs)
        groups = [each for each in (frozenset(group), frozenset(same)) if each not in seen]
        seen.update(groups)
        yield (_without(basis, base, each) for each in groups)


def _without(basis: Basis, base: Sample, dims: frozenset[tuple[int, int]]) -> Arguments:
    """Returns a sample's call with size 0 in the given dimensions, which are pairs of a tensor's position and a
    dimension."""
    return basis.rebuilt(
        base,
        {
            p: t.new_zeros([0 if (p, d) in dims else n for d, n in enumerate(t.shape)])
            for p, t in enumerate(base.tensors)
            if any(p == place for place, _ in dims)
        },
    )


EMPTY = Axis(
    number=9,
    name="empty",
    finds="A kernel that fails or returns arbitrary values if an operand has no elements.",
    bugs=("intel/intel-extension-for-pytorch#682",),
    budget=5,
    layouts=("contiguous",),
    applies=lambda basis: True,
    vary=_empties,
)


# -- one dimension longer than 16 bits can count, the others of size 1

#: The most samples of an op.
_LONGEST = 4
#: Odd lengths greater than 65,536 and 32,768.
_LENGTHS = (65_551, 32_783)
#: The elements of the largest tensor if no dimension can be that long; more than 2^16.
_ELEMENTS = 2**16 + 600


def _longest(basis: Basis) -> Variations:
    found = [*islice(_alone(basis), _LONGEST)]
    if not any(n == _LENGTHS[0] for _, call in found for t in call.tensors for n in t.shape):
        yield from islice(_among(basis), 1)
    yield from found


def _alone(basis: Basis) -> Variations:
    """Yields calls in which one dimension has the largest size that is tried. All other dimensions have size 1 if
    the CPU accepts that; otherwise only those that may have any size have size 1."""
    seen: set[str] = set()
    of_bases = [[(b, group) for group in _growing(basis, b)] for b in basis.bases]
    count = len(of_bases)
    # The samples take turns, because they differ in their arguments; the first have the most dimensions.
    turns = sorted(
        ((n, (k - n) % count, *each) for k, of in enumerate(of_bases) for n, each in enumerate(of)),
        key=lambda turn: turn[:2],
    )
    for _, _, base, group in turns:
        sign = str(sorted(map(str, group)))
        dims = {(p, d) for p, t in enumerate(base.tensors) for d in range(t.dim())}
        groups = [each for each, _ in groups_of(basis, base)]
        named = [each for each in groups if each != group and dims_of(each) == [*each]]
        for others in ([dims - group], named) if sign not in seen else ():
            if (call := _stretched(basis, base, group, others)) is not None:
                seen.add(sign)
                yield base, call
                break


def _growing(basis: Basis, base: Sample) -> Iterator[frozenset[Any]]:
    """Yields the groups of a call's dimensions that must be enlarged together. If the first tensor has a leading
    dimension of size 1, this dimension, which belongs to no group, is yielded first."""
    first = base.tensors[0].shape if base.tensors else ()
    if len(first) > 1 and first[0] == 1:
        yield frozenset([(0, 0)])
    yield from (group for group, _ in groups_of(basis, base))


def _stretched(
    basis: Basis, base: Sample, group: frozenset[Any], others: Sequence[Collection[Any]]
) -> Arguments | None:
    """Returns a sample's call with one group of dimensions as long as possible and the other dimensions of size 1.
    Returns None if the CPU rejects the call or if its result grows with the square of the length."""
    held = []
    for size in _EXTENTS[-1], _EXTENTS[-2]:
        call = lengthened(basis, base, group, size, others)
        answer = basis.answer(call) if call is not None else None
        if call is None or answer is None:
            return None
        held.append(sum(t.numel() for t in (*call.tensors, *answer)))
    if held[1] * _EXTENTS[-1] > 2 * held[0] * _EXTENTS[-2]:
        return None  # the result grows with the square of the length
    growth = (held[1] - held[0]) / (_EXTENTS[-2] - _EXTENTS[-1])
    length = next((each for each in _LENGTHS if growth * each <= MOST), None)
    call = lengthened(basis, base, group, length, others) if length else None
    return basis.accepted(call) if call is not None else None


def _among(basis: Basis) -> Variations:
    """Yields calls in which one dimension of a tensor is so long that the tensor has more than 65,536 elements. The
    other dimensions keep their sizes. Dimensions that must grow together with dimensions of other tensors are skipped,
    because some kernels process every pair of elements along such dimensions, which would take too long."""
    for base in basis.bases:
        for group, growth in groups_of(basis, base):
            if len(group) > 1 or not (dims := dims_of(group)):
                continue
            tensor, dim = base.tensors[dims[0][0]], dims[0][1]
            size = _ELEMENTS // (tensor.numel() // tensor.shape[dim]) | 1
            call = lengthened(basis, base, group, size) if growth * size <= MOST else None
            if call is not None and basis.accepted(call) is not None:
                yield base, call


LONG = Axis(
    number=12,
    name="long",
    finds="A kernel that counts elements, rows or the steps of a dimension in 16 bits, or that starts one block for each of them and exceeds the size of a grid.",
    bugs=("pytorch/pytorch#129207", "pytorch/pytorch#195163", "pytorch/pytorch#40022"),
    budget=_LONGEST,
    layouts=("contiguous",),
    applies=lambda basis: (
        EXTENT.applies(basis)
        and basis.dtype in ("float32", "int64")
        and "axes.quadratic" not in basis.families
    ),
    vary=_longest,
)


# -- equal extents, and extents of 1

#: The common extent of all dimensions, and the extent of a matrix that whole tiles fill.
_SIDE, _TILES = 6, 128
#: Extents greater than a tile that no tile size divides.
_PAST_TILES = (131, 137, 149, 139)
#: A row with one element after the last whole vector of any width, a matrix with incomplete tiles at its ends, a square, a
#: column, a single number, and a matrix that whole tiles fill.
_MATRICES = ((1, 65), _PAST_TILES[:2], (_SIDE, _SIDE), (65, 1), (), (_TILES, _TILES))
#: One more than the elements of the widest vector. Any product of these also has one element after the last whole vector.
_ONE_OVER = 17
#: The most samples of images from which a sample with images of one pixel is made.
_IMAGES = 6


def _equal_extents(basis: Basis) -> Variations:
    if basis.shape_free:
        for shape in _MATRICES:
            for base in (each for each in basis.bases if same_shape(basis, each)):
                if (call := basis.accepted(shaped(basis, base, [shape]))) is not None:
                    yield base, call
                    break
        return
    bases = sorted(basis.bases, key=lambda s: -max(t.dim() for t in s.tensors))
    by_rank = [list(each) for _, each in groupby(bases, lambda s: max(t.dim() for t in s.tensors))]
    matrices = sorted(bases, key=lambda s: s.tensors[0].dim() != 2)
    ranks = (3, 4) if op_family(basis.subject.id, basis.subject.ufunc) == "norm" else (4,)
    held = [s for s in (*bases, *basis.drawn) if s.tensors and s.tensors[0].dim() in ranks]
    images = [s for s in held if s.numel][:_IMAGES]
    ways = [(_one_over, matrices), (_left_over, matrices), *((_equal, each) for each in by_rank)]
    ways += [(_single, bases), (_pixels, images), (_tiled, bases), (_first_single, matrices)]
    if not any(t.dim() == 2 for base in bases for t in base.tensors):
        ways.append((_square, bases))
    for calls, of in ways:
        seen: set[str] = set()
        for base in of:
            for call in calls(basis, base):
                sign = str([tuple(t.shape) for t in call.tensors])
                if sign not in seen and basis.accepted(call) is not None:
                    seen.add(sign)
                    yield base, call
                    break
            if seen:
                break


def _equal(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call with the same size in all dimensions, or in the dimensions of the first
    operand and in all dimensions that must have the same size as these."""
    every = {(p, d): n for p, t in enumerate(base.tensors) for d, n in enumerate(t.shape)}
    longer = {dim for dim, n in every.items() if n > 1}
    groups = [group for group, _ in groups_of(basis, base)]
    first = frozenset().union(*(g for g in groups if any(d[0] == 0 for d in g if d in longer)))
    # Some ops use a dimension of size 2 for pairs, so 2 is the only extent that all their dimensions can have.
    for group, side in product((frozenset(every), frozenset(longer), first), (_SIDE, 2)):
        if group and (call := lengthened(basis, base, group, side)) is not None:
            yield call


def _single(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call in which one dimension, and all dimensions that grow with it, have size 1. The
    first copy has size 1 in the last dimension."""
    for group, _ in reversed(groups_of(basis, base)):
        if (call := lengthened(basis, base, group, 1)) is not None:
            yield call


def _pixels(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call with images of one pixel (dimensions 2 and 3 of a tensor with four dimensions), of
    the first operand alone or of all operands. A tensor with three dimensions becomes images, too. Such an image in
    channels_last is contiguous as well."""
    shapes = [tuple(t.shape) for t in base.tensors]
    for places in ([0], [place for place, shape in enumerate(shapes) if len(shape) > 2]):
        if all(shapes[place][1] > 1 or place for place in places):
            pixels = {p: basis.fill(base, p, (*shapes[p][:2], 1, 1)) for p in places}
            yield basis.rebuilt(base, pixels)


def has_pixels(sample: Sample) -> bool:
    """Returns True if the first tensor holds images of one pixel and several channels."""
    shape = sample.tensors[0].shape if sample.tensors else ()
    return (
        len(shape) == 4 and tuple(shape[2:]) == (1, 1) and 1 < shape[1] < 2**10 and shape[0] < 2**10
    )


def _first_single(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields a copy of a sample's call in which the first dimension, and all dimensions that grow with it, have size
    1."""
    for group, _ in groups_of(basis, base)[:1]:
        if (call := lengthened(basis, base, group, 1)) is not None:
            yield call


def _tiled(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields a copy of a sample's call in which the sizes of the last two dimensions of the first operand, and of
    all dimensions that grow with them, are multiples of a kernel's tile."""
    first = base.tensors[0].dim() if base.tensors else 0
    last = {(0, first - 1), (0, first - 2)}
    group = frozenset().union(*(g for g, _ in groups_of(basis, base) if g & last))
    if last <= group and (call := lengthened(basis, base, group, _TILES)) is not None:
        yield call


def _one_over(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields copies of a sample's call with size 17 in as many dimensions as possible and size 1 in the others. With
    size 17, one element is left after the last whole vector of a vectorised kernel."""
    groups = [group for group, _ in groups_of(basis, base)]
    for count in range(len(groups), 0, -1):
        now: Sample | None = base
        for number, group in enumerate(groups):
            if now is not None:
                made = lengthened(basis, now, group, _ONE_OVER if number < count else 1)
                now = replace(now, call=made) if made is not None else None
        if now is not None and now.call is not base.call:
            yield now.call


def _square(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields a copy of a sample's call with square matrices in place of tensors that have more or fewer dimensions."""
    if same_shape(basis, base):
        yield shaped(basis, base, [(_SIDE, _SIDE)])


def _left_over(basis: Basis, base: Sample) -> Iterator[Arguments]:
    """Yields a copy of a sample's call in which at least two groups of dimensions are longer than a tile, so that the
    last tile of each row, of each column and in the corner is incomplete. Only groups with one of the last two
    dimensions of a tensor are made longer."""
    last = {(p, d) for p, t in enumerate(base.tensors) for d in range(max(t.dim() - 2, 0), t.dim())}
    grown, call = 0, None
    for group, _ in groups_of(basis, base):
        if grown < len(_PAST_TILES) and group & last:
            made = lengthened(basis, base, group, _PAST_TILES[grown])
            answer = basis.answer(made) if made is not None else None
            if (
                made is not None
                and answer is not None
                and sum(t.numel() for t in answer) <= 2 * MOST_GROWN
            ):
                base, call, grown = replace(base, call=made), made, grown + 1
    if call is not None and grown > 1:
        yield call


EQUAL = Axis(
    number=13,
    name="equal extents",
    finds="A kernel that mistakes a matrix for its transpose if the matrix is square, or a dimension of size 1 for the last dimension, or that is wrong if tiles fill a matrix exactly or if the tile in its corner is incomplete.",
    bugs=("pytorch/pytorch#116333", "pytorch/pytorch#78611", "pytorch/pytorch#47163"),
    budget=11,
    layouts=(
        "contiguous",
        "transposed+step_outer+offset",
        "contiguous/transposed",
        "transposed/contiguous",
        "free:ones=0",
        "free:ones=2147483649",
    ),
    applies=lambda basis: (
        basis.dtype in ("float32", "int64") and not basis.keeps_values and not basis.free
    ),
    vary=_equal_extents,
    writes=1,
)
