"""layout.out_resize: targets that do not fit: empty, of a wrong shape, of an unsafe dtype, on another device."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from conformance.cells import CellRecord
from conformance.layout import repro
from conformance.layout.context import ItemContext, Laid
from conformance.layout.targets import (
    contiguous_inputs,
    failure,
    form_of,
    outputs_of,
    raised,
    takes_no_out,
    target_argument,
)
from opinfo.samples import Sample


def resized(ctx: ItemContext, sample: Sample, record: CellRecord) -> None:
    """Targets that do not fit: empty, of a wrong shape, of an unsafe dtype, on another device."""
    laid = contiguous_inputs(ctx, sample)
    expected = ctx.expected(laid)
    wanted = outputs_of(expected.result) if expected.raises is None else None
    if wanted is None:
        return
    result = expected.result
    if not _empty_target(ctx, laid, result, wanted, record):
        return
    _wrong_shape(ctx, laid, result, wanted, record)
    _wrong_dtype(ctx, laid, result, wanted, record)
    _wrong_device(ctx, laid, result, wanted, record)


def _empty_target(
    ctx: ItemContext, laid: Laid, result: Any, wanted: list[torch.Tensor], record: CellRecord
) -> bool:
    """An empty target is resized without a word. Returns whether this form of the call takes ``out``."""
    name = "out=empty"
    write = repro.for_call(
        ctx,
        laid,
        "out_resize",
        layout=name,
        HOW="empty",
        SPECS=_specs(wanted),
        FORM=form_of(result),
    )
    targets = [ctx.device.to_device(torch.empty((0,), dtype=t.dtype)) for t in wanted]
    try:
        ctx.run(ctx.op.function, laid, out=target_argument(result, targets))
    except Exception as exc:  # judged
        if takes_no_out(exc):
            return False
        record.check(laid.sample.index, name)
        record.fail(failure(name, laid, raised(exc), write, raises=type(exc).__name__))
        return True
    record.check(laid.sample.index, name)
    _judge_result(ctx, laid, targets, wanted, name, record, write)
    return True


def _wrong_shape(
    ctx: ItemContext, laid: Laid, result: Any, wanted: list[torch.Tensor], record: CellRecord
) -> None:
    """A wrong shape that is not empty is resized, with a warning (ATen/native/Resize.h), or refused."""
    name = "out=wrong_shape"
    write = repro.for_call(
        ctx,
        laid,
        "out_resize",
        layout=name,
        HOW="wrong_shape",
        SPECS=_specs(wanted),
        FORM=form_of(result),
    )
    targets = [
        ctx.device.to_device(torch.zeros((*t.shape, 2), dtype=t.dtype).flatten()[: t.numel() + 2])
        for t in wanted
    ]
    targets = [
        t
        if t.numel() and t.shape != w.shape
        else ctx.device.to_device(torch.zeros((2, 3), dtype=w.dtype))
        for t, w in zip(targets, wanted, strict=True)
    ]
    record.check(laid.sample.index, name)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ctx.run(ctx.op.function, laid, out=target_argument(result, targets))
    except (RuntimeError, TypeError, ValueError):
        return  # refusing is what the deprecation warning announces
    except Exception as exc:  # judged
        record.fail(failure(name, laid, raised(exc), write, raises=type(exc).__name__))
        return
    if _judge_result(ctx, laid, targets, wanted, name, record, write):
        return
    warned = any("resized" in str(w.message) for w in caught)
    if not warned and _reference_warns(ctx, laid, result, wanted):
        record.fail(
            failure(
                name, laid, "a non-empty out= of another shape was resized without a warning", write
            )
        )


def _reference_warns(ctx: ItemContext, laid: Laid, result: Any, wanted: list[torch.Tensor]) -> bool:
    """Elsewhere the CPU decides; on ``cpu`` itself the documented rule does: it warns."""
    if ctx.device.fake_only:
        return True
    args, kwargs = laid.sample.call.bind([t.clone() for t in laid.sample.tensors])
    targets = [torch.zeros((t.numel() + 2,), dtype=t.dtype) for t in wanted]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ctx.op.function(*args, **kwargs, out=target_argument(result, targets))
    except Exception:  # the CPU refuses: then it does not warn
        return False
    return any("resized" in str(w.message) for w in caught)


def _wrong_dtype(
    ctx: ItemContext, laid: Laid, result: Any, wanted: list[torch.Tensor], record: CellRecord
) -> None:
    """A dtype to which the result cannot be cast safely (torch.can_cast) is refused."""
    if ctx.op.is_factory and laid.sample.call.kwargs.get("dtype") is None:
        return  # a factory without a dtype takes that of its out=
    name = "out=wrong_dtype"
    unsafe = [_unsafe_dtype(t.dtype) for t in wanted]
    if None in unsafe:
        return
    write = repro.for_call(
        ctx,
        laid,
        "out_resize",
        layout=name,
        HOW="wrong_dtype",
        SPECS=_specs(wanted),
        FORM=form_of(result),
    )
    targets = [
        ctx.device.to_device(torch.zeros(t.shape, dtype=d))
        for t, d in zip(wanted, unsafe, strict=True)
    ]
    _must_refuse(ctx, laid, result, targets, name, record, write)


def _wrong_device(
    ctx: ItemContext, laid: Laid, result: Any, wanted: list[torch.Tensor], record: CellRecord
) -> None:
    """Another device: on ``cpu`` itself there is no second opinion and no rule, so nothing is judged."""
    if ctx.device.fake_only:
        return
    name = "out=wrong_device"
    write = repro.for_call(
        ctx,
        laid,
        "out_resize",
        layout=name,
        HOW="wrong_device",
        SPECS=_specs(wanted),
        FORM=form_of(result),
    )
    elsewhere = (
        torch.device("meta") if ctx.device.torch_device.type == "cpu" else torch.device("cpu")
    )
    targets = [torch.zeros(t.shape, dtype=t.dtype, device=elsewhere) for t in wanted]
    _must_refuse(ctx, laid, result, targets, name, record, write)


def _must_refuse(
    ctx: ItemContext,
    laid: Laid,
    result: Any,
    targets: list[torch.Tensor],
    name: str,
    record: CellRecord,
    write: Any,
) -> None:
    if not ctx.device.fake_only and not _cpu_refuses(ctx, laid, result, targets):
        return  # unjudged: the CPU takes it
    record.check(laid.sample.index, name)
    got = [f"{str(t.dtype)[6:]} on {t.device.type}" for t in targets]
    try:
        ctx.run(ctx.op.function, laid, out=target_argument(result, targets))
    except (RuntimeError, TypeError):
        return  # NotImplementedError is a RuntimeError: refusing is all that is asked
    except Exception as exc:  # judged
        text = f"{raised(exc)}; RuntimeError or TypeError expected"
        record.fail(failure(name, laid, text, write, raises=type(exc).__name__))
        return
    record.fail(failure(name, laid, f"accepted an out= of {', '.join(got)} silently", write))


def _cpu_refuses(ctx: ItemContext, laid: Laid, result: Any, targets: list[torch.Tensor]) -> bool:
    args, kwargs = laid.sample.call.bind([t.clone() for t in laid.sample.tensors])
    own = ctx.device.torch_device.type  # meta stands for a target that is not on the device
    mine = [
        torch.zeros(t.shape, dtype=t.dtype, device="cpu" if t.device.type == own else "meta")
        for t in targets
    ]
    try:
        ctx.op.function(*args, **kwargs, out=target_argument(result, mine))
    except Exception:  # a refusal is the answer
        return True
    return False


def _judge_result(
    ctx: ItemContext,
    laid: Laid,
    targets: list[torch.Tensor],
    wanted: list[torch.Tensor],
    name: str,
    record: CellRecord,
    write: Any,
) -> bool:
    for place, (target, want) in enumerate(zip(targets, wanted, strict=True)):
        found = None
        if target.shape != want.shape:
            text = f"out {place} has shape {tuple(target.shape)}, the result {tuple(want.shape)}"
        elif "values.free" in ctx.traits.families:
            continue
        else:
            found = ctx.differs(target, want, laid.sample)
            if found is None:
                continue
            text = f"out {place} does not hold the functional result: {found.text}"
        record.fail(failure(name, laid, text, write, error=found.error if found else None))
        return True
    return False


def _unsafe_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """A dtype that ``torch.can_cast`` refuses for results of ``dtype``."""
    if dtype.is_complex:
        return torch.float32
    if dtype.is_floating_point:
        return torch.int64
    return None if dtype == torch.bool else torch.bool


def _specs(wanted: list[torch.Tensor]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(t.shape), t.dtype) for t in wanted]
