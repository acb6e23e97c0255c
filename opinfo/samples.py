"""Samples of an op, drawn on the CPU with a fixed seed; the choice of samples for a plan; and the properties of an op
that can be derived from its samples."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

import numpy as np
import torch

from opinfo.catalog import host_generator_kept
from opinfo.compare import (
    Arguments,
    fits_in,
    outputs_of,
    tensors_of,
)
from opinfo.determinate_calls import PARTLY, is_settled, specified
from opinfo.device import seed_directly
from opinfo.exceptions import Exceptions, exceptions
from opinfo.layouts import EXPAND, Geometry, Layout
from opinfo.reference import ValueAnswer, value_answer
from opinfo.subject import Subject
from opinfo.torch_private import without_modes


def seed_everything(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def direct_seeding(torch_type: str = "cpu") -> Iterator[None]:
    """Makes ``torch.manual_seed`` seed only the CPU's generator and those of ``torch_type`` within the context.

    The original function also queues a call for every backend that is not initialized, with a formatted stack trace
    (100 to 480 us), and the queue is never emptied. Some ops of the database seed in every call, so a long run would
    accumulate gigabytes of traces.
    """
    original = torch.manual_seed
    torch.manual_seed = partial(seed_directly, torch_type)
    try:
        with host_generator_kept():
            yield
    finally:
        torch.manual_seed = original


#: Part of the plan's hash, because a change in how samples are drawn or chosen changes what a cell checks.
RECIPE = (
    "4: op_db sample_inputs_func on cpu, seed 0 per op and dtype, greedy cover of shape classes, "
    "of equals one with at most 2^20 elements; samples by axis"
)

#: The seed that is set before the samples of an op and dtype are drawn.
SEED = 0

#: The most samples that are drawn for an op and dtype. A few ops have thousands that differ in one argument.
DRAW_LIMIT = 200

#: The most elements of a sample of ordinary size. A larger one takes seconds in every layout, so it is chosen only if it has
#: a feature that no other has. Only grid_sampler_3d has such samples (five million elements).
ORDINARY = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """A call of an op, with contiguous CPU tensors as arguments. ``index`` is its number among the database's samples.

    A sample that an ``axis`` (a kind of variation in opinfo/axes) made has an index of 1,000 or more, and ``origin`` is
    the index of the database's sample from which it was made. ``layouts`` are the layout cases in which the sample is
    run; None means all. ``geometries`` are the geometries that the tensors of a recorded call had; the call is first
    run with these. ``storages`` has the number of the storage of each tensor of a recorded call, if some of its tensors
    shared their memory; the call is also run with such tensors. The tensors of a sample with ``shapes_only`` are on the
    meta device and have no elements: a plan needs no more of them.
    """

    index: int
    call: Arguments
    process: (
        Any  # the database's function from outputs to their unique part (without signs or phases)
    )
    axis: str = ""
    layouts: tuple[str, ...] | None = None
    reads_only: bool = False  # whether it is left out of calls that write (out=, in-place)
    origin: int | None = None
    geometries: tuple[Geometry, ...] | None = None
    storages: tuple[int, ...] | None = None
    shapes_only: bool = False

    @property
    def drawn(self) -> int:
        """The index of the database's sample from which an axis made this sample; the sample's own index if no axis
        made it."""
        return self.index if self.origin is None else self.origin

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self.call.tensors

    @property
    def rank(self) -> int:
        return max((t.dim() for t in self.tensors), default=0)

    @property
    def numel(self) -> int:
        return sum(t.numel() for t in self.tensors)


def draw(op: Subject, dtype: str, limit: int = DRAW_LIMIT, seed: int = SEED) -> list[Sample]:
    """Returns up to ``limit`` samples of an op. The same seed gives the same samples."""
    samples: list[Sample] = []
    families = exceptions().families_of(*op.names) | op.own_families
    smaller, partly = "samples.saturate" in families, bool(families & PARTLY)
    with without_modes(), warnings.catch_warnings(), torch.no_grad(), direct_seeding():
        seed_everything(seed)
        warnings.simplefilter("ignore")
        for index, raw in enumerate(islice(op.raw_samples(getattr(torch, dtype)), limit)):
            call = Arguments((raw.input, *raw.args), dict(raw.kwargs))
            call = _contiguous_call(_smaller(call) if smaller else call)
            process = raw.output_process_fn_grad
            if partly:
                if not is_settled(op, call, process, families):
                    continue
                call = specified(call, families)
            samples.append(Sample(index, call, process))
    return _in_one_order(samples) if "samples.of_a_set" in families else samples


def _in_one_order(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples with their keyword arguments in an order that is the same in every process: within each
    group of consecutive samples of equal shapes, the keyword arguments are sorted and distributed over the samples
    in this order. The database makes such samples by iterating over a set, whose order differs between processes."""
    found: list[Sample] = []
    for _, alike in groupby(samples, key=lambda each: [t.shape for t in each.tensors]):
        group = list(alike)
        texts = sorted((each.call.kwargs for each in group), key=repr)
        found += [
            replace(each, call=Arguments(each.call.args, kwargs))
            for each, kwargs in zip(group, texts, strict=True)
        ]
    return found


def _smaller(call: Arguments) -> Arguments:
    """Returns the call with its floating-point tensors divided by 8, which is exact."""
    divided = [each / 8 if each.is_floating_point() else each for each in call.tensors]
    return Arguments(*call.bind(divided))


def choose(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Returns at most ``count`` of the samples: first a sample of the largest rank, then repeatedly the sample that
    adds most new features.

    Features are the rank and size class (0-d, size 0, size 1, small, odd) of each tensor, and the other arguments.
    Of equally good samples, those with at most 2^20 elements are preferred, then the earliest sample, so that the
    choice depends on the samples only.
    """
    if len(samples) <= count:
        return list(samples)
    features = {s.index: _features(s) for s in samples}
    ordinary = {s.index: s.numel <= ORDINARY for s in samples}
    first = max(samples, key=lambda s: (s.rank, s.numel > 0, -s.index))
    chosen, seen, rest = [first], set(features[first.index]), [s for s in samples if s is not first]
    while len(chosen) < count:
        best = max(rest, key=lambda s: (len(features[s.index] - seen), ordinary[s.index], -s.index))
        chosen.append(best)
        rest.remove(best)
        seen |= features[best.index]
    return sorted(chosen, key=lambda s: s.index)


def size_class(shape: Sequence[int]) -> str:
    """Returns the size class of a shape: ``0-d``, ``size 0``, ``size 1``, ``odd`` or ``small`` (all sizes even)."""
    if not shape:
        return "0-d"
    if 0 in shape:
        return "size 0"
    if all(n == 1 for n in shape):
        return "size 1"
    return "odd" if any(n % 2 for n in shape) else "small"


def _features(sample: Sample) -> set[str]:
    found = {f"tensors {len(sample.tensors)}", f"rank {sample.rank}"}
    for place, tensor in enumerate(sample.tensors):
        found.add(f"{min(place, 2)} rank {tensor.dim()} {size_class(tensor.shape)}")
    for place, value in enumerate(_scalars(sample.call.args)):
        found.add(f"arg {place} {type(value).__name__} {value!r:.40}")
    for name, value in sample.call.kwargs.items():
        if not isinstance(value, torch.Tensor):
            found.add(f"{name}={value!r:.40}" if not tensors_of(value) else name)
    return found


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(_scalars, value))
    elif not isinstance(value, torch.Tensor):
        yield value


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout != torch.strided or (
        tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _contiguous_call(call: Arguments) -> Arguments:
    """Returns the call with its dense tensors made contiguous, and without pending conjugation or negation."""
    if all(_is_plain(t) for t in call.tensors):
        return call
    copies = []
    for tensor in call.tensors:
        if tensor.layout == torch.strided:
            tensor = tensor.detach().resolve_conj().resolve_neg()
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        copies.append(tensor)
    args, kwargs = call.bind(copies)
    return Arguments(args, dict(kwargs))


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about a function under test and a dtype that decide which clauses apply. ``op`` is the id of the
    function."""

    subject: Subject
    op: str
    dtype: str
    ufunc: str  # unary | binary | reduction | ""
    families: frozenset[str]
    has_out: bool
    has_inplace: bool
    comparable_variants: bool  # whether some sample can be passed to another variant of the function, such as its method
    declares_view: bool
    takes_memory_format: bool
    takes_python_scalar: bool
    promotes_int_to_float: bool
    nan_policy: bool  # whether it is a reduction with a documented treatment of NaN
    dense: bool  # some sample has only strided tensors
    two_operands: bool  # … and two of them or more
    reads_strided: bool  # some sample passes a strided tensor that has elements
    reads_floats: bool  # … of a floating dtype
    reads_expandable: bool  # … with a dimension longer than 1 that may be expanded
    returns_strided: bool  # some sample returns a strided tensor
    returns_elements: bool  # … that has elements
    returns_floats: bool  # some sample returns a tensor of a floating dtype, or a complex one
    returns_tensors: bool  # some sample's result is one tensor or a tuple of tensors
    writes_self: bool  # some sample's first argument is a strided tensor: in-place needs one
    overlaps: bool  # … with a dimension longer than 1: a target that can overlap itself
    returns_long: bool  # some sample returns a tensor with a dimension longer than 1
    samples: int  # samples that the database offers and the plan takes
    returns: bool  # the CPU accepts at least one of them; otherwise there is no reference
    recorded: bool = False  # whether it is a recorded call, which has a single sample

    @property
    def gradient_is_unique(self) -> bool:
        """True if the inputs determine the gradient: the result has values of its own and is unique, and the op does not
        write to the input whose gradient is needed."""
        return not self.families & NO_UNIQUE_GRADIENT


#: The families of ops that have no unique gradient, or that write to the input whose gradient is needed.
NO_UNIQUE_GRADIENT = frozenset(
    {"values.free", "values.not_unique", "values.unordered", "mutates.self"}
)


def expand_rule(families: frozenset[str]) -> str:
    """Returns the rule that says which dimensions of an op's inputs may be expanded: ``any``; ``values`` (any dimension
    of a tensor that does not contain indices); ``batch`` (batch dimensions); or ``none``."""
    for rule in ("none", "values"):
        if f"expand.{rule}" in families:
            return rule
    return "batch" if "expand.batch" in families else "any"


def mutates(families: frozenset[str]) -> bool:
    """Returns True if an op with the given families writes to its arguments."""
    return any(name.startswith("mutates.") for name in families)


def expandable(rule: str, tensor: torch.Tensor) -> int:
    """Returns the number of leading dimensions of a tensor that may have stride 0 under a rule of ``expand_rule``."""
    if rule == "any":
        return tensor.dim()
    if rule == "values":
        return tensor.dim() if tensor.is_floating_point() or tensor.is_complex() else 0
    return max(0, tensor.dim() - 2) if rule == "batch" else 0


def probe(op: Subject, dtype: str, samples: list[Sample], known: Exceptions) -> Traits:
    """Returns the traits of an op, found from the database's samples and from the CPU's results for them. For samples
    with ``shapes_only``, the results are those of the meta device."""
    samples = [sample for sample in samples if not sample.axis]
    families = known.families_of(*op.names) | op.own_families
    if op.unwanted_families:
        families = frozenset(f for f in families if not f.startswith(op.unwanted_families))
    rule = expand_rule(families)
    first_read = 1 if "mutates.self" in families else 0
    expands = any(
        dim < expandable(rule, tensor)
        for sample in samples
        for tensor in _strided(sample.tensors[first_read:])
        if tensor.numel()
        for expand in EXPAND[1:]
        if (dim := Layout("contiguous", expand=expand).geometry(tensor.shape).expanded) is not None
    )
    selves = _strided(sample.call.args[0] for sample in samples)
    operands = [len(s.tensors) for s in samples if len(s.tensors) == len(_strided(s.tensors))]
    returned = _returned(op, samples, mutates(families))
    outputs = [found for _, result in returned if (found := outputs_of(result))]
    fits = any(fits_in(first, result) and outputs_of(result) for first, result in returned)
    return Traits(
        subject=op,
        op=op.id,
        dtype=dtype,
        ufunc=op.ufunc,
        families=families,
        has_out=op.has_out,
        has_inplace=op.inplace is not None,
        comparable_variants=bool(returned)
        and bool((op.method and selves) or (op.inplace and fits) or (op.has_out and outputs)),
        declares_view=op.declares_view or "views" in families,
        takes_memory_format=op.takes_memory_format,
        takes_python_scalar=op.takes_python_scalar,
        promotes_int_to_float=op.promotes_int_to_float,
        nan_policy=op.nan_policy is not None,
        dense=any(count > 0 for count in operands),
        two_operands=any(count > 1 for count in operands),
        reads_strided=any(t.numel() for s in samples for t in _strided(s.tensors)),
        reads_floats=any(
            t.numel() and t.is_floating_point() for s in samples for t in _strided(s.tensors)
        ),
        reads_expandable=expands,
        returns_strided=any(_strided(tensors_of(result)) for _, result in returned),
        returns_elements=any(
            each.numel() for _, result in returned for each in _strided(tensors_of(result))
        ),
        returns_floats=any(
            each.is_floating_point() or each.is_complex()
            for _, result in returned
            for each in tensors_of(result)
        ),
        returns_tensors=bool(outputs),
        writes_self=bool(selves),
        overlaps=any(n > 1 for t in selves if t.numel() for n in t.shape),
        returns_long=any(t[0].numel() and any(n > 1 for n in t[0].shape) for t in outputs),
        samples=len(samples),
        returns=bool(returned),
        recorded=any(each.geometries is not None for each in samples),
    )


def _strided(values: Iterable[Any]) -> list[torch.Tensor]:
    return [v for v in values if isinstance(v, torch.Tensor) and v.layout == torch.strided]


def _returned(op: Subject, samples: list[Sample], mutates: bool) -> list[tuple[Any, Any]]:
    """Returns the first argument and the result of each sample that the CPU accepts."""
    with without_modes(), warnings.catch_warnings(), torch.no_grad(), direct_seeding():
        warnings.simplefilter("ignore")
        answers = [
            ValueAnswer(result_by_shapes(op, sample))
            if sample.shapes_only
            else value_answer(op.reference, sample.call.on, sample.tensors, mutates=mutates)
            for sample in samples
        ]
    return [(s.call.args[0], a.result) for s, a in zip(samples, answers) if a.raises is None]


#: A device whose tensors have shapes and dtypes, and no elements.
META = torch.device("meta")


def result_by_shapes(op: Subject, sample: Sample) -> Any:
    """Returns the result of a call on the meta device. If torch cannot compute it without elements, as for ``nonzero``
    or a custom op without a meta kernel, returns what the op says that its result may be."""
    args, kwargs = sample.call.on(sample.tensors, META)
    with without_modes(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return op.reference(*args, **kwargs)
        except Exception:  # a plan with a cell too many loses no check: the run finds out whether the clause applies
            return op.possible_result(sample.tensors)
