"""The samples whose gradients are checked, the layouts of inputs and cotangents, and the reference gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import torch

from conformance.checks.ops.call_reference import Part
from conformance.checks.ops.calls import Laid, repeated
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.roundings import DRAWS, floats
from conformance.checks.ops.script import literal
from conformance.suites.autograd.cpu_gradients import (
    Compute,
    Graph,
    as_the_cpu_does,
    changed_by_roundings,
    gradients,
    sensitivity,
)
from conformance.suites.autograd.gradients import (
    Cotangent,
    Cotangents,
    Gradients,
    Grads,
    in_place,
    plain,
)
from opinfo.axes.axis_context import MOST
from opinfo.axes.bounds import BOUNDS
from opinfo.axes.handwritten import WRITTEN
from opinfo.axes.points import POINTS
from opinfo.axes.shapes import EQUAL, EXTENT, LONG, RANK, SIZE, has_pixels
from opinfo.axes.values import INDICES
from opinfo.compare import tensors_of
from opinfo.determinate_calls import without_ties
from opinfo.layouts import CONTIGUOUS, Geometry, parse_layout
from opinfo.samples import Sample, choose
from opinfo.subject import DeterminatePart

#: Number of torch's samples per op and dtype, and of the samples that each axis adds.
_UPSTREAM = 4
_AXES = {
    **{RANK.name: 2, EQUAL.name: 1, EXTENT.name: 2, SIZE.name: 1, LONG.name: 2},
    **{INDICES.name: 1, BOUNDS.name: 1, WRITTEN.name: 1},
}

#: The most samples of the axis of points. None of them comes first.
_POINTS = 4

_INDICES = (torch.int32, torch.int64)
#: Backward kernels take another path for more indices than one block of threads has (embedding, in ATen and torch-xpu-ops).
_BLOCK = 256

#: Layouts of the inputs, one of each sort: gradients are computed for each.
INPUTS = (
    "contiguous",
    "transposed",
    "contiguous+step_inner+offset",
    "channels_last",
    "contiguous+expand_first",
    "free:order=2.0.1,steps=3,offset=4",
    "contiguous/transposed",
    "transposed/contiguous",
)
#: The family of ops whose gradients for tensors without elements have no reference.
_NOT_OF_NOTHING = "gradients.not_of_nothing"
#: The cotangent that ``sum().backward()`` gives: one number with stride 0 in every dimension.
SUM = "sum"
CONJ = "conj"
#: Machine epsilon of the component type.
EPSILON = {"float32": 2.0**-23, "complex64": 2.0**-23}


def chosen(ctx: OpContext) -> list[Sample]:
    """Return the samples whose gradients are checked. The first of them is checked in every layout."""
    if "gradients" in ctx.kept:
        made: list[Sample] = ctx.kept["gradients"]
        return made
    apart = partial(without_ties, families=ctx.traits.families, family="gradients.of_any")
    samples = [replace(each, call=apart(each.call)) for each in ctx.samples]
    upstream = [s for s in samples if not s.axis and not s.reads_only and _usable(ctx, s)]
    found = choose(upstream, _UPSTREAM)
    if "gradients.not_smooth" not in ctx.traits.families:
        for axis, count in _AXES.items():
            of_axis = [each for each in samples if each.axis == axis]
            if axis == LONG.name:  # order: long batch first, long result last
                of_axis = of_axis[::-1][:1] + of_axis[:-1]
            elif axis == INDICES.name:
                of_axis.sort(key=_repeats, reverse=True)
            found += islice((each for each in of_axis if _usable(ctx, each)), count)
            if axis == EQUAL.name:
                one = (s for s in of_axis if has_pixels(s) and s not in found and _usable(ctx, s))
                found += islice(one, 1)
        found += _with_many_indices(ctx, samples, found)
    found.sort(key=_weight, reverse=True)
    found = _most_telling_first(ctx, found, upstream)
    modes = _of_other_modes(upstream, found)
    ctx.kept["gradients of modes"] = frozenset(each.index for each in modes)
    found += modes
    if "gradients.not_smooth" not in ctx.traits.families:
        points = (each for each in samples if each.axis == POINTS.name and _usable(ctx, each))
        found += islice(points, _POINTS)
    for whole in (True, False) if _NOT_OF_NOTHING not in ctx.traits.families else ():
        empty = (each for each in samples if each not in found and _is_empty(ctx, each, whole))
        found += islice(empty, 1)
    # of an op that only torch calls, the layouts in which torch calls it
    fitting = ctx.subject.layouts
    ctx.kept["gradients"] = kept = [replace(each, layouts=fitting) for each in found]
    return kept


#: The number of samples that are added because a mode of the op is in no other.
_MODES = 2


def of_a_mode(ctx: OpContext, sample: Sample) -> bool:
    """Return True if a sample is among those whose gradients are checked because of its mode alone."""
    few: frozenset[int] = ctx.kept.get("gradients of modes", frozenset())
    return sample.index in few


def _of_other_modes(samples: Sequence[Sample], found: Sequence[Sample]) -> list[Sample]:
    """Return the smallest samples with a mode that no sample of ``found`` has: a flag or a name among the arguments, such as
    ``training=False`` or ``reduction="sum"``. A backward kernel is often another one in each mode (pytorch/pytorch#79784,
    pytorch/xla#3361)."""
    seen = {mode for each in found for mode in _modes(each)}
    added: list[Sample] = []
    # A device need not have sparse tensors, which sparse=True gives as gradients.
    dense = [each for each in samples if not each.call.kwargs.get("sparse")]
    for sample in sorted(dense, key=lambda each: (each.numel, each.index)):
        if len(added) < _MODES and any(t.dim() for t in sample.tensors) and _modes(sample) - seen:
            added.append(sample)
            seen |= _modes(sample)
    return added


def _modes(sample: Sample) -> set[tuple[str, str]]:
    """Return the flags and the names among a sample's arguments, each with its place."""
    given = {**{str(n): v for n, v in enumerate(sample.call.args)}, **sample.call.kwargs}
    return {(n, repr(v)) for n, v in given.items() if isinstance(v, (bool, str))}


def few_of_torch(ctx: OpContext, count: int) -> list[Sample]:
    """Return ``count`` of torch's samples whose gradients can be checked. The first has the most inputs whose gradient is
    not zero and, among equals, a result of several dimensions, and a tensor that can be channels_last."""
    held = usable_of_torch(ctx)
    found = choose(held, 2 * count)
    if not any(map(_may_be_channels_last, found)):
        found += [*islice(filter(_may_be_channels_last, held), 1)]

    def telling(sample: Sample) -> tuple[tuple[int, int], bool]:
        return known_of(ctx, sample).shown, _may_be_channels_last(sample)

    return sorted(found, key=telling, reverse=True)[:count]


def written(ctx: OpContext) -> Iterator[Sample]:
    """Yield the handwritten samples whose gradients can be checked."""
    return (each for each in ctx.samples if each.axis == WRITTEN.name and _usable(ctx, each))


def usable_of_torch(ctx: OpContext) -> list[Sample]:
    """Return torch's samples whose gradients can be checked, without those that have a tensor without elements."""
    apart = partial(without_ties, families=ctx.traits.families, family="gradients.of_any")
    layouts = ctx.subject.layouts  # of an op that only torch calls, those in which torch calls it
    samples = (replace(each, call=apart(each.call), layouts=layouts) for each in ctx.samples)
    usable = [s for s in samples if not s.axis and not s.reads_only and _usable(ctx, s)]
    return [each for each in usable if all(t.numel() for t in each.tensors)]


def _may_be_channels_last(sample: Sample) -> bool:
    return any(len(t.shape) == 4 and min(t.shape[1:]) > 1 for t in sample.tensors)


def known_of(ctx: OpContext, sample: Sample) -> Known:
    """Return the reference gradients of a sample. All checks of the op share them."""
    key = ("known", sample.index)
    if key not in ctx.kept:
        ctx.kept[key] = Known(ctx, sample, ctx.subject.reference)
    found: Known = ctx.kept[key]
    return found


def _usable(ctx: OpContext, sample: Sample) -> bool:
    """Return True if gradients can be computed for the sample: all its tensors are strided, they have between 1 and
    MOST elements in total, and the call does not write to the first tensor. If the sample has one long dimension,
    the CPU's result must also be finite. If the op takes its indices on the CPU, the sample must have no indices."""
    strided = all(each.layout == torch.strided for each in sample.tensors)
    on_cpu = "gradients.indices_on_cpu" in ctx.traits.families
    if on_cpu and any(not floats(each) for each in sample.tensors):
        return False
    apart = strided and 0 < sample.numel <= MOST and not ctx.mutable_inputs(sample) & {0}
    return apart and (not is_long(sample) or _finite(ctx, sample))


def _is_empty(ctx: OpContext, sample: Sample, whole: bool) -> bool:
    """Return True if none of the sample's tensors has elements or, with ``whole`` false, if some have and some have not,
    such as an empty batch beside weights; and the call does not write to the first one. A kernel that is launched for no
    element may end the process (pytorch/pytorch#82531, #34202)."""
    strided = all(each.layout == torch.strided for each in sample.tensors)
    empty = sum(not each.numel() for each in sample.tensors)
    count = len(sample.tensors)
    fits = 0 < empty == count if whole else 0 < empty < count
    small = sample.numel <= MOST
    return strided and fits and small and not ctx.mutable_inputs(sample) & {0}


def _repeats(sample: Sample) -> int:
    """Return how often the most frequent index of a sample occurs."""
    indices = [t for t in sample.tensors if t.dtype in _INDICES and t.numel()]
    return max((int(t.reshape(-1).unique(return_counts=True)[1].max()) for t in indices), default=0)


def _with_many_indices(
    ctx: OpContext, samples: Sequence[Sample], found: Sequence[Sample]
) -> list[Sample]:
    """Return the smallest sample with more indices than a block of a backward kernel takes. Return none if one of the samples
    ``found`` is such a sample."""
    if any(_count_of_indices(each) > _BLOCK for each in found):
        return []
    many = [s for s in samples if s.axis and _count_of_indices(s) > _BLOCK]
    return [*islice((s for s in sorted(many, key=attrgetter("numel")) if _usable(ctx, s)), 1)]


def _count_of_indices(sample: Sample) -> int:
    """Return the number of elements of the largest integer tensor of a sample."""
    return max((t.numel() for t in sample.tensors if t.dtype in _INDICES), default=0)


def _finite(ctx: OpContext, sample: Sample) -> bool:
    """Return True if the CPU's result is finite. The maximum over a pooling window that contains only padding is
    infinite, and torch's backward of the pooling op then writes past the end of the gradient."""
    args, kwargs = sample.call.bind([each.clone() for each in sample.tensors])
    with torch.no_grad():
        answer = ctx.subject.reference(*args, **kwargs)
    dense = (each for each in tensors_of(answer) if each.layout == torch.strided)
    return all(bool(each.isfinite().all()) for each in dense)


def _most_telling_first(ctx: OpContext, samples: list[Sample], spare: list[Sample]) -> list[Sample]:
    """Return ``samples`` with the most useful sample of ``samples`` and ``spare`` in front: the one with the most
    inputs whose gradient is not zero and, among equals, with a result of several dimensions, so that the cotangent can
    be non-contiguous."""
    inputs = {each.index: sum(map(floats, each.tensors)) for each in (*samples, *spare)}
    best, most, enough = samples[:1], (0, 0), 0
    for sample in chain(samples, spare):
        if inputs[sample.index] < enough:
            continue
        known = known_of(ctx, sample)
        if known.shown > most:
            best, most = [sample], known.shown
            if most == (
                len(known.places) - len(known.fixed),
                2,
            ):  # only a sample with more inputs can be better
                enough = inputs[sample.index] + 1
    return [*best, *(each for each in samples if each not in best)]


def is_long(sample: Sample) -> bool:
    """Return True if the sample was made to test one long dimension. Layouts make no difference to such a sample."""
    return sample.axis == LONG.name


def _weight(sample: Sample) -> tuple[bool, bool, bool, bool, int, int]:
    """Return the sort key of a sample, for descending order. Samples without empty tensors come first. Among equals,
    these come first, in this order of importance: samples to which layouts make a difference, torch's own samples,
    samples with more dimensions longer than 1, and samples with a lower index."""
    longest = max(sum(n > 1 for n in each.shape) for each in sample.tensors)
    held = all(each.numel() for each in sample.tensors)
    return held, not is_long(sample), longest > 1, not sample.axis, longest, -sample.index


@dataclass
class Known:
    """The reference gradients of a sample, computed on the CPU. Each gradient is computed once and cached."""

    ctx: OpContext
    sample: Sample
    function: Callable[..., Any]
    form: str = ""  # "in place" or "in place, sliced" if ``function`` is the in-place variant
    wide: bool = True
    places: tuple[int, ...] = ()
    fixed: tuple[int, ...] = ()  # those of ``places`` whose gradient is None
    strided: bool = True  # False if a gradient is a sparse tensor
    #: Number of inputs whose gradient is not zero; number of dimensions longer than 1 of the result, at most 2.
    shown: tuple[int, int] = (0, 0)
    _graphs: dict[tuple[int | None, ...], Graph] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for self.wide in (True, False):
            self._look()
            if self.places:
                break

    def _look(self) -> None:
        """Set ``places`` to the positions of the inputs whose gradients the CPU can compute: all floating-point
        inputs together or, if that fails, those whose gradients can be computed one at a time."""
        tensors, mutable = self.sample.tensors, self.ctx.mutable_inputs(self.sample)
        floats = [
            place
            for place, each in enumerate(tensors)
            if (each.is_floating_point() or each.is_complex()) and place not in mutable
        ]
        given = [CONTIGUOUS.geometry(each.shape) for each in tensors]
        if not self._works(floats, given):
            floats = [place for place in floats if self._works([place], given)]
            if not floats or not self._works(floats, given):
                self.places = ()

    def _works(self, places: Sequence[int], geometries: Sequence[Geometry]) -> bool:
        try:
            graph = self._graph(tuple(places), geometries)
            if not any(each.requires_grad for each in graph.outputs):
                return False
            self.places = tuple(places)
            wanted = self._wanted(geometries, self.cotangents("contiguous", geometries))
            found = list(wanted.values())
            self.fixed = tuple(p for p, each in wanted.items() if each is None)
            self.strided = all(e is None or e.layout == torch.strided for e in found)
            self.shown = _shown(graph, [each for each in found if each is not None])
        except RuntimeError:  # the CPU does not implement this gradient
            self._graphs.clear()
            self.places = ()
            return False
        return any(each is not None for each in found)

    @property
    def arguments(self) -> Callable[..., Any]:
        return plain if self.form else self.sample.call.on

    @property
    def called(self) -> Callable[..., Any]:
        if not self.form:
            return self.function
        sliced = self.form.endswith("sliced")
        return in_place(self.function, self.sample.call.on, sliced, torch.device("cpu"))

    def _graph(self, places: tuple[int, ...], geometries: Sequence[Geometry]) -> Graph:
        key = (*places, None, *(each.expanded for each in geometries))
        if key not in self._graphs:
            values = repeated(self.sample.tensors, geometries)
            about = (self.called, self.arguments, values, places)
            self._graphs[key] = Graph(*about, wide=self.wide)
        return self._graphs[key]

    # -- cotangents

    def returns(self, geometries: Sequence[Geometry]) -> bool:
        """Return True if the CPU can differentiate the call on inputs of the given geometries. It may raise for an
        expanded input, because such an input repeats some of its values."""
        try:
            repeats = any(each.expanded is not None for each in geometries)
            if repeats:  # expanded tensors hold different values than the sample
                self._wanted(geometries, self.cotangents(CONTIGUOUS.id, geometries))
            return bool(self.outputs(geometries))
        except RuntimeError:  # no reference: a matrix of equal rows, for example, has no inverse
            return False

    def outputs(self, geometries: Sequence[Geometry]) -> list[torch.Tensor]:
        """Return the outputs of the call on inputs of the given geometries. The values of the outputs depend on the
        geometries, because an expanded input repeats some of its values."""
        return self._graph(self.places, geometries).outputs

    def cotangents(
        self,
        layout: str,
        geometries: Sequence[Geometry],
        only: int | None = None,
        scale: float = 1.0,
    ) -> Cotangents:
        """Return a tuple with one entry per output: a cotangent in the given layout, or None if the output requires no
        gradient. If ``only`` is given, just the output of that index has a cotangent."""
        pairs = zip(self.outputs(geometries), self.kinds(geometries), strict=True)
        return tuple(
            self.laid(output, kind, layout, scale)
            if output.requires_grad and only in (None, place)
            else None
            for place, (output, kind) in enumerate(pairs)
        )

    def laid(
        self, of: torch.Tensor, dtype: torch.dtype, layout: str, scale: float = 1.0, turn: int = 0
    ) -> Cotangent:
        """Return the description of a cotangent with the shape of ``of`` and the given dtype, layout and scale.
        Cotangents with another ``turn`` have other values."""
        shape = tuple(of.shape)
        if layout == SUM:
            return Cotangent(dtype, CONTIGUOUS.geometry(()), shape, False, scale, turn)
        parsed = CONTIGUOUS if layout == CONJ else parse_layout(layout)
        conj = layout == CONJ and dtype.is_complex
        return Cotangent(dtype, parsed.geometry(shape), None, conj, scale, turn)

    def kinds(self, geometries: Sequence[Geometry]) -> list[torch.dtype]:
        """Return the dtypes of the outputs for inputs in the sample's own dtypes, not in higher precision."""
        key = ("kinds", *(each.expanded for each in geometries))
        if key not in self._made:
            values = repeated(self.sample.tensors, geometries)
            graph = Graph(self.called, self.arguments, values, (), wide=False)
            self._made[key] = [each.dtype for each in graph.outputs]
        found: list[torch.dtype] = self._made[key]
        return found

    # -- the reference, as parts from which a repro script builds it too

    def _wanted(
        self, geometries: Sequence[Geometry], cotangents: Cotangents
    ) -> dict[int, torch.Tensor | None]:
        """Return the gradients in higher precision, by the index of the input. Raises any exception that backward
        raises."""
        expanded = tuple(each.expanded for each in geometries)
        key = (self.wide, self.places, expanded, *map(_numbers, cotangents))
        if key not in self._made:
            graph = self._graph(self.places, geometries)
            self._made[key] = dict(zip(self.places, graph.grads(cotangents)))
        found: dict[int, torch.Tensor | None] = self._made[key]
        return found

    def parts(
        self,
        laid: Laid,
        procedure: Callable[..., Gradients],
        given: tuple[Any, ...],
        compute: Compute = gradients,
    ) -> dict[str, Any]:
        """Return the parts of the reference for one gradient computation: the expected gradients, their sensitivity to
        rounding errors, and the gradients that eager CPU computes in the same layouts. ``given`` holds the indices of
        the inputs to differentiate, the cotangents, and the other arguments of ``procedure``, which computes the
        gradients."""
        places, cotangents = given[:2]
        geometries, epsilon = laid.geometries, EPSILON.get(self.ctx.dtype, 0.0)
        more = "" if self.wide else ", wide=False"
        fixed = f", fixed={literal(self.fixed)}" if self.fixed else ""
        draws = 0 if self._at_bounds else DRAWS
        drawn = ", draws=0" if self._at_bounds else ""

        def source(name: str, last: str) -> Callable[[], str]:
            return lambda: f"{name}{self._source(places, cotangents)}{last})"

        def same() -> str:
            return f"as_the_cpu_does({procedure.__name__}, call, geometries, *{literal(given)})"

        def of_values(found: Callable[..., Grads], *first: Any, **options: Any) -> Grads:
            values = repeated(self.sample.tensors, geometries)
            about = (self.called, self.arguments, values, places, cotangents)
            return found(*first, *about, **options)

        def wants() -> Grads:
            if compute is not gradients:
                return of_values(compute, wide=self.wide)
            found = self._wanted(geometries, cotangents)
            return [found[place] for place in places]

        def slack(draws: int = draws) -> Grads:
            found = partial(sensitivity, compute)
            return of_values(found, epsilon=epsilon, fixed=self.fixed, draws=draws)

        def alike() -> Gradients:
            call = self.ctx.call(laid, self.function)
            return as_the_cpu_does(procedure, call, geometries, *given)

        functions: tuple[Any, ...] = (compute, repeated)
        if isinstance(self.function, DeterminatePart):
            functions += (DeterminatePart, *self.function.source[1])
        functions += (in_place, plain) if self.form else ()
        name = compute.__name__
        return {
            "wants": Part(wants, source(f"{name}(", more), functions),
            "least": Part(
                partial(slack, draws=0),
                source(f"sensitivity({name}, ", f", {epsilon}{fixed}, draws=0"),
                (sensitivity, *functions),
            ),
            "slack": Part(
                slack,
                source(f"sensitivity({name}, ", f", {epsilon}{fixed}{drawn}"),
                (sensitivity, *functions),
            ),
            "alike": None if self.ctx.device.fake_only else Part(alike, same, (as_the_cpu_does,)),
            "shared": self._shared(places, geometries) if compute is gradients else {},
        }

    def bound(self, laid: Laid, given: tuple[Any, ...], epsilon: float, factor: float) -> Part:
        """Return the part of the reference that says how much roundings of relative size ``epsilon`` change the gradients,
        times ``factor``."""
        places, cotangents = given[:2]
        values = repeated(self.sample.tensors, laid.geometries)

        def found() -> Grads:
            about = (self.called, self.arguments, values, places, cotangents)
            return changed_by_roundings(gradients, *about, epsilon, factor, self.fixed)

        last = f", {epsilon}, {factor}, {literal(self.fixed)})"
        code = f"changed_by_roundings(gradients, {self._source(places, cotangents)}{last}"
        return Part(found, code, (changed_by_roundings, gradients, repeated))

    @property
    def _at_bounds(self) -> bool:
        """True if the one input has elements that are equal to a bound of an elementwise op. A rounding error of such an
        element would change its gradient by as much as an element on the other side of the bound has, so none is
        accepted."""
        one = len(self.sample.tensors) == 1 and self.ctx.subject.pointwise
        return one and self.sample.axis == BOUNDS.name

    def _shared(self, places: Sequence[int], geometries: Sequence[Geometry]) -> dict[int, int]:
        """Return a dictionary from the position of a gradient to the expanded dimension over which this gradient is
        summed before the comparison. The result is empty unless the op may select any of several equal elements."""
        if "gradients.of_any" not in self.ctx.traits.families:
            return {}
        expanded = ((n, geometries[place].expanded) for n, place in enumerate(places))
        return {n: dim for n, dim in expanded if dim is not None}

    def _source(self, places: Sequence[int], cotangents: Cotangents) -> str:
        function, arguments = self.ctx.reference_name, "arguments"
        if isinstance(self.function, DeterminatePart):
            function = f"DeterminatePart({function}, {self.function.source[0]})"
        if self.form:
            sliced = self.form.endswith("sliced")
            cpu = 'torch.device("cpu")'
            function, arguments = f"in_place(call.function, arguments, {sliced}, {cpu})", "plain"
        given = f"{literal(tuple(places))}, {literal(tuple(cotangents))}"
        return f"{function}, {arguments}, repeated(values, geometries), {given}"


#: A gradient of at most this magnitude counts as zero (the float32 tolerance at an expected zero).
_ZERO = 1e-5


def _shown(graph: Graph, found: Sequence[torch.Tensor]) -> tuple[int, int]:
    moved = sum(bool((each.to_dense().abs() > _ZERO).any()) for each in found)
    results = (each for each in graph.outputs if each.requires_grad)
    long = max((sum(n > 1 for n in each.shape) for each in results), default=0)
    return moved, min(2, long)


def _numbers(cotangent: Cotangent | None) -> Any:
    """Return a key that is equal for two cotangents if they have the same values, even in different layouts."""
    if cotangent is None:
        return None
    at = cotangent.geometry
    return at.shape, at.expanded, _BESIDES(cotangent)


_BESIDES = attrgetter(*(each.name for each in fields(Cotangent) if each.name != "geometry"))
