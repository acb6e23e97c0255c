"""The samples and layouts that the compiled checks of operators use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.ops.calls import Laid
from conformance.checks.ops.context import OpContext
from opinfo.compare import tensors_of
from opinfo.samples import Sample, choose
from opinfo.torch_private import NO_FAKE_ANSWER, FakeTensorMode

#: An overload of aten with the dtypes of the tensors that it takes.
AtenCall = tuple[str, tuple[str, ...]]

#: The variant of a cell in which an op is tried on several samples and in several layouts. The cell without a variant has
#: one call.
WHOLE = "layouts"
#: The variant that compiles the same calls with the compiler that the device brings.
COMPILER = "compiler"
STEPPED = "contiguous+step_inner+offset"
#: Layouts of the covering set, one of each sort: the compiler decides by strides, offsets and stride 0.
LAYOUTS = frozenset(
    {
        "contiguous",
        "contiguous+offset",
        "transposed",
        "channels_last",
        STEPPED,
        "contiguous+expand_first",
    }
)
#: The most elements of a sample. What a compiler does depends on shapes, not on how much there is to compute.
_MOST = 2**16
#: Samples with more elements than this are less telling than smaller ones.
_LARGE = 2**12
#: How many samples are compiled besides the first, in cells with a variant.
_FURTHER = 2
#: The same for ops that draw random numbers: many calls of dropout draw none.
_FURTHER_DRAWN = 8
#: The most samples that are compiled because they make aten calls that the samples before do not make.
_WITH_OTHER_CALLS = 3
#: The families of ops that draw random numbers in some calls.
_DRAWN = frozenset({"values.free", "values.drawn"})


def draws(families: Collection[str]) -> bool:
    """Return True if the values of a result depend on random numbers. Calls of the family ``values.drawn`` whose result
    depends on the seed are left out, so the others have one result; but the signs of factors may still differ."""
    return "values.free" in families or {"values.drawn", "values.not_unique"} <= {*families}


def lead_first(ctx: OpContext) -> list[Sample]:
    """Return the samples that are compiled, starting with the best one: a sample that has elements and, if possible,
    four dimensions, because layouts differ most in four dimensions. A cell without a variant uses only the first of
    these samples that the device accepts. The variant ``layouts`` also uses samples that make other aten calls."""
    usable = [each for each in ctx.common if tried(each)]
    if not usable:
        return []
    lead = min(usable, key=_least_telling)
    count = _FURTHER_DRAWN if ctx.traits.families & _DRAWN else _FURTHER
    chosen = [lead, *choose([each for each in usable if each is not lead], count)]
    if ctx.variant not in (WHOLE, COMPILER):
        return chosen
    taken = {each.index for each in chosen}
    return [*chosen, *_with_other_calls(ctx, chosen, [x for x in usable if x.index not in taken])]


def _with_other_calls(
    ctx: OpContext, chosen: Sequence[Sample], others: Sequence[Sample]
) -> list[Sample]:
    """Return those of the ``others`` that make an aten call, forward or backward, which no sample before makes: an op may
    run other code for other arguments, such as a pooling whose result has one element."""
    known: set[AtenCall] = set()
    for sample in chosen:
        known |= aten_calls(ctx, sample)
    found: list[Sample] = []
    for sample in sorted(others, key=_least_telling):
        if len(found) == _WITH_OTHER_CALLS:
            break
        made = aten_calls(ctx, sample) if sample.numel <= _LARGE else known
        if not made <= known and not _needs_values(ctx, sample):
            known |= made
            found.append(sample)
    return found


def _needs_values(ctx: OpContext, sample: Sample) -> bool:
    """Return True if FakeTensor needs the values of tensors for this call on the CPU, such as places at which to split: the
    call cannot be compiled."""
    try:
        with FakeTensorMode() as mode:
            args, kwargs = sample.call.bind([mode.from_tensor(each) for each in sample.tensors])
            ctx.subject.reference(*args, **kwargs)
    except NO_FAKE_ANSWER:
        return True
    except RuntimeError as error:  # a function in C++ read the values
        return "data is not allocated" in str(error)
    except Exception:  # FakeTensor may raise any type; the cell will show it
        return False
    return False


class _Noting(TorchDispatchMode):
    """A dispatch mode that notes the aten calls in a block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: set[AtenCall] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtypes = tuple(str(each.dtype) for each in tensors_of((args, kwargs or {})))
        self.calls.add((str(func), dtypes))
        return func(*args, **(kwargs or {}))


def aten_calls(ctx: OpContext, sample: Sample) -> set[AtenCall]:
    """Return the aten calls that the op and its backward make on the CPU for a sample: each is an overload with the dtypes
    of its tensors. The result is empty if the CPU refuses the sample."""
    key = ("aten calls", sample.index)
    if key not in ctx.kept:
        ctx.kept[key] = _aten_calls(ctx, sample)
    found: set[AtenCall] = ctx.kept[key]
    return found


def _aten_calls(ctx: OpContext, sample: Sample) -> set[AtenCall]:
    places = places_of(ctx, sample)
    tensors = [each.clone().requires_grad_(n in places) for n, each in enumerate(sample.tensors)]
    args, kwargs = sample.call.bind(tensors)
    try:
        with torch.set_grad_enabled(bool(places)), _Noting() as mode:
            made = ctx.subject.reference(*args, **kwargs)
            ends = [each for each in tensors_of(made) if each.requires_grad]
            if ends:
                ones = [torch.ones_like(each) for each in ends]
                leaves = [tensors[place] for place in places]
                torch.autograd.grad(ends, leaves, ones, allow_unused=True)
    except Exception:  # other clauses check what the op refuses
        return set()
    found: set[AtenCall] = mode.calls
    return found


def _least_telling(sample: Sample) -> tuple[bool, bool, bool, int, bool, int]:
    large, some = sample.numel > _LARGE, sample.layouts is not None  # run in some layouts only
    return not sample.numel, large, some, abs(sample.rank - 4), bool(sample.axis), sample.index


def laid_for(ctx: OpContext, sample: Sample, *, lead: bool) -> list[Laid]:
    """Return copies of a sample on the device, one in each layout in which the sample is compiled. With ``lead``,
    which marks the first sample, there is one layout of each kind; otherwise one layout in all. A cell without a
    variant uses one layout of the first sample, which is not contiguous if possible."""
    if lead and ctx.variant:
        return list(ctx.laid_out(sample, LAYOUTS))
    wanted = {"contiguous", "channels_last" if sample.rank > 3 else "transposed"}
    if sample.rank < 2:
        wanted = {"contiguous", STEPPED}
    return list(ctx.laid_out(sample, frozenset(wanted)))[-1:]


def tried(sample: Sample) -> bool:
    """Return True if the compiled checks use the sample: all its tensors are strided and it is small."""
    return sample.numel <= _MOST and all(each.layout == torch.strided for each in sample.tensors)


def places_of(ctx: OpContext, sample: Sample) -> tuple[int, ...]:
    """Return the positions of the inputs whose gradients are computed: the floating-point and complex tensors that the
    call does not write to. If the CPU cannot differentiate the call with respect to all of them, only the first is
    returned. If torch's op database declares no gradient for the op and dtype, the result is empty."""
    key = ("differentiated", sample.index)
    if key not in ctx.kept:
        ctx.kept[key] = _places(ctx, sample) if ctx.dtype in ctx.subject.gradient_dtypes else ()
    found: tuple[int, ...] = ctx.kept[key]
    return found


def _places(ctx: OpContext, sample: Sample) -> tuple[int, ...]:
    written = ctx.mutable_inputs(sample)
    places = tuple(
        place
        for place, each in enumerate(sample.tensors)
        if (each.is_floating_point() or each.is_complex()) and place not in written
    )
    tensors = [each.clone().requires_grad_(n in places) for n, each in enumerate(sample.tensors)]
    args, kwargs = sample.call.bind(tensors)
    try:
        with torch.enable_grad():
            ctx.subject.reference(*args, **kwargs)
    except Exception:  # no gradient with respect to one of the inputs, such as a target
        return places[:1]
    return places
