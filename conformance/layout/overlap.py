"""layout.overlap_raises: writing to memory that overlaps raises or warns where the reference does.

On other devices the reference is the CPU. On ``cpu`` itself it is TensorIterator's documented rule for
elementwise ops (``ATen/TensorIterator.h``, ``check_mem_overlap``: internal overlap of an output, and
partial overlap of an output with an input, are errors; an op that opts out must be idempotent, so it must
give the functional result), and FakeTensor for the rest. Where nothing must raise, the memory outside the
target is still compared: every check here can fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext
from conformance.layout.targets import outputs_of, target_argument
from opinfo.guarded import Guarded, Move, identity
from opinfo.layouts import CONTIGUOUS, Geometry, Layout
from opinfo.reference import fake_strided, on_device, value_answer
from opinfo.samples import Sample
from opinfo.traits import mutates

CLAUSE = "layout.overlap_raises"
_EXPANDED = Layout("contiguous", expand="first")

#: Samples that are enough: the question is about the op's entry, not about its values.
_ENOUGH = 3


def check(ctx: ItemContext) -> None:
    """Expanded self, expanded ``out=``, and an ``out=`` shifted by one element against the input."""
    if not ctx.wants(CLAUSE):
        return
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        done = {"self=expanded": 0, "out=expanded": 0, "out=partial_overlap": 0}
        for sample in ctx.samples:
            if ctx.op.inplace is not None and done["self=expanded"] < _ENOUGH:
                done["self=expanded"] += _expanded_self(ctx, sample, record)
            if ctx.op.has_out and done["out=expanded"] < _ENOUGH:
                done["out=expanded"] += _expanded_out(ctx, sample, record)
            if ctx.op.has_out and done["out=partial_overlap"] < _ENOUGH:
                done["out=partial_overlap"] += _partial_overlap(ctx, sample, record)


def _expanded_self(ctx: ItemContext, sample: Sample, record: CellRecord) -> bool:
    first = sample.call.args[0]
    if not isinstance(first, torch.Tensor) or first.layout != torch.strided:
        return False
    geometry = _EXPANDED.geometry(first.shape)
    if geometry.expanded is None or first.numel() == 0:
        return False
    values = sample.tensors

    def attempt(move: Move) -> tuple[bool, list[Guarded]]:
        target = Guarded(values[0], geometry, move)
        others = [move(t.clone()) for t in values[1:]]
        where = _device_of(ctx, move)
        return _refused(where, ctx.op.inplace, sample, [target.view, *others], {}), [target]

    def fake() -> bool:
        shapes = [
            geometry if i == 0 else CONTIGUOUS.geometry(t.shape) for i, t in enumerate(values)
        ]
        with FakeTensorMode():
            fakes = _fakes(ctx, values, shapes)
            return _raises(ctx.device.torch_device, ctx.op.inplace, sample, fakes, {})

    _judge(ctx, sample, record, "self=expanded", attempt, fake, geometry.expanded)
    return True


def _expanded_out(ctx: ItemContext, sample: Sample, record: CellRecord) -> bool:
    wanted = _functional(ctx, sample)
    if wanted is None:
        return False
    result, outputs = wanted
    geometries = [_EXPANDED.geometry(t.shape) for t in outputs]
    if geometries[0].expanded is None or outputs[0].numel() == 0:
        return False

    def attempt(move: Move) -> tuple[bool, list[Guarded]]:
        targets = [
            Guarded(torch.zeros(t.shape, dtype=t.dtype), g, move)
            for t, g in zip(outputs, geometries, strict=True)
        ]
        out = {"out": target_argument(result, [t.view for t in targets])}
        tensors = [move(t.clone()) for t in sample.tensors]
        return _refused(_device_of(ctx, move), ctx.op.function, sample, tensors, out), targets

    def fake() -> bool:
        shapes = [CONTIGUOUS.geometry(t.shape) for t in sample.tensors]
        with FakeTensorMode():
            out = {"out": target_argument(result, _fakes(ctx, outputs, geometries))}
            tensors = _fakes(ctx, sample.tensors, shapes)
            return _raises(ctx.device.torch_device, ctx.op.function, sample, tensors, out)

    _judge(ctx, sample, record, "out=expanded", attempt, fake)
    return True


def _partial_overlap(ctx: ItemContext, sample: Sample, record: CellRecord) -> bool:
    """The target starts one element after the input's start, in the same storage."""
    if ctx.traits.ufunc not in ("unary", "binary"):
        return False
    wanted = _functional(ctx, sample)
    first = sample.call.args[0]
    if wanted is None or not isinstance(first, torch.Tensor):
        return False
    _, outputs = wanted
    out = outputs[0]
    if out.dtype != first.dtype or out.shape != first.shape or out.numel() < 2 or len(outputs) > 1:
        return False

    def attempt(move: Move) -> tuple[bool, list[Guarded]]:
        flat = Geometry((first.numel() + 1,), (1,), 0, first.numel() + 1)
        both = Guarded(torch.zeros(first.numel() + 1, dtype=first.dtype), flat, move)
        view = both.view[:-1].view(first.shape)
        view.copy_(move(first))
        both.remember(ctx.device.from_device)
        target = both.view[1:].view(first.shape)
        tensors = [view, *[move(t.clone()) for t in sample.tensors[1:]]]
        where = _device_of(ctx, move)
        refused = _refused(where, ctx.op.function, sample, tensors, {"out": target})
        both.view = target  # what is judged; the storage around it stays guarded
        both.geometry = Geometry(tuple(first.shape), tuple(target.stride()), 1, first.numel() + 1)
        return refused, [both]

    _judge(ctx, sample, record, "out=partial_overlap", attempt, lambda: False)
    return True


def _judge(
    ctx: ItemContext,
    sample: Sample,
    record: CellRecord,
    name: str,
    attempt: Callable[[Move], tuple[bool, list[Guarded]]],
    fake: Callable[[], bool],
    expanded: int | None = None,
) -> None:
    """``expanded`` is the dimension of the first input that has stride 0, if one has."""
    rule = _elementwise(ctx)
    refused, targets = attempt(ctx.device.to_device)
    record.check(sample.index, name)
    must = rule or fake() if ctx.device.fake_only else attempt(identity)[0]
    text = None
    if (
        must
        and not refused
        and not (rule and ctx.device.fake_only and _holds(ctx, sample, targets, expanded))
    ):
        text = "wrote to overlapping memory without an error or a warning"
    elif not all(t.outside_intact(ctx.device.from_device) for t in targets):
        text = "bytes outside the overlapping target changed"
    if text is None:
        return
    case = ctx.cases[0]
    laid = ctx.lay(sample, case, ctx.geometries(sample, case))
    record.fail(
        Failure(
            name,
            text,
            size=sample.numel,
            repro=repro.for_call(
                ctx,
                laid,
                "overlap_raises",
                layout=name,
                inplace=name == "self=expanded",
                HOW=name,
                MUST=must,
            ),
        )
    )


def _holds(ctx: ItemContext, sample: Sample, targets: list[Guarded], expanded: int | None) -> bool:
    """Whether the overlapping target holds the functional result all the same."""
    values = list(sample.tensors)
    if expanded is not None:
        values[0] = values[0].narrow(expanded, 0, 1).expand(values[0].shape)
    answer = value_answer(
        ctx.op.function, sample.call, values, mutates=mutates(ctx.traits.families)
    )
    wanted = outputs_of(answer.result) if answer.raises is None else None
    if wanted is None or len(targets) != len(wanted):
        return False
    return all(
        t.view.shape == w.shape and ctx.differs(t.view, w.to(t.view.dtype), sample) is None
        for t, w in zip(targets, wanted, strict=True)
    )


def _functional(ctx: ItemContext, sample: Sample) -> tuple[Any, list[torch.Tensor]] | None:
    case = ctx.cases[0]
    expected = ctx.expected(ctx.lay(sample, case, ctx.geometries(sample, case)))
    outputs = outputs_of(expected.result) if expected.raises is None else None
    return None if outputs is None else (expected.result, outputs)


def _device_of(ctx: ItemContext, move: Move) -> torch.device:
    """Where an attempt's tensors lie: ops that make tensors are told by argument."""
    return ctx.device.torch_device if move is ctx.device.to_device else torch.device("cpu")


def _refused(
    where: torch.device,
    function: Any,
    sample: Sample,
    tensors: Sequence[torch.Tensor],
    extra: dict[str, Any],
) -> bool:
    """Whether the call raises or warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if _raises(where, function, sample, tensors, extra):
            return True
    return any("memory" in str(w.message) for w in caught)


def _raises(
    where: torch.device,
    function: Any,
    sample: Sample,
    tensors: Sequence[torch.Tensor],
    extra: dict[str, Any],
) -> bool:
    args, kwargs = sample.call.bind(list(tensors))
    try:
        function(*args, **on_device(kwargs, where), **extra)
    except Exception:  # a refusal is the answer
        return True
    return False


def _elementwise(ctx: ItemContext) -> bool:
    return ctx.traits.ufunc in ("unary", "binary")


def _fakes(
    ctx: ItemContext, tensors: Sequence[torch.Tensor], geometries: Sequence[Geometry]
) -> list[torch.Tensor]:
    return [
        fake_strided(t.dtype, g, ctx.device.torch_device, False)
        for t, g in zip(tensors, geometries, strict=True)
    ]
