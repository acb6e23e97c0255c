"""layout.inplace: in-place variants keep address and strides, and write through views to the base."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import directed, repro
from conformance.layout.context import ItemContext, Laid
from opinfo.guarded import Guarded
from opinfo.reference import significant

CLAUSES = ("layout.inplace", "layout.bounds")


def check(ctx: ItemContext) -> None:
    """Run the in-place variant on every sample in every layout in which self has no stride 0."""
    variant = ctx.op.inplace
    if variant is None or not ctx.traits.writes_self or not ctx.wants(*CLAUSES):
        return
    with ctx.running(*CLAUSES):
        for sample in ctx.samples:
            for laid in ctx.laid_out(sample):
                if laid.expanded and laid.expanded[0] is not None:
                    continue  # writing to an expanded self: layout.overlap_raises
                if laid.guarded and laid.guarded[0] is not None:
                    _one_call(ctx, laid, variant, laid.guarded[0])
        if (
            ctx.traits.ufunc == "binary"
            and (record := ctx.recorder.get("layout.inplace")) is not None
        ):
            directed.run(
                ctx, record, "self=broadcast", refuses_to_grow, inplace=True, dtype=ctx.dtype
            )


def _one_call(ctx: ItemContext, laid: Laid, variant: Callable[..., Any], target: Guarded) -> None:
    inplace, bounds = ctx.recorder.get("layout.inplace"), ctx.recorder.get("layout.bounds")
    expected = ctx.expected(laid)
    itself, address, strides = target.view, target.view.data_ptr(), target.geometry.stride
    write = repro.for_call(ctx, laid, "inplace", inplace=True, RESTRIDES=ctx.op.restrides_in_place)
    raised: Exception | None = None
    try:
        ctx.run(variant, laid)
    except Exception as exc:  # judged below
        raised = exc
    if (
        bounds is not None and target.as_asked()
    ):  # a self that was resized is the inplace clause's business
        bounds.check(laid.sample.index, laid.case.id)
        if not target.outside_intact(ctx.device.from_device):
            bounds.fail(
                Failure(
                    laid.case.id,
                    f"in place: bytes outside self changed (strides {strides}, offset "
                    f"{target.geometry.offset})",
                    size=laid.sample.numel,
                    repro=repro.for_call(ctx, laid, "inplace_bounds", inplace=True),
                )
            )
    if inplace is not None:
        inplace.check(laid.sample.index, laid.case.id)
        judged = _judge(ctx, laid, itself, address, strides, expected, raised, inplace)
        if judged is not None:
            text, error = judged
            inplace.fail(
                Failure(
                    laid.case.id,
                    text,
                    error=error,
                    raises=type(raised).__name__ if raised else None,
                    size=laid.sample.numel,
                    repro=write,
                )
            )
    for guarded in laid.guarded:
        if guarded is not None:
            guarded.restore(ctx.device.to_device)
    if not target.as_asked() or target.view.data_ptr() != address:
        ctx.rebuild(laid.sample)


def _judge(
    ctx: ItemContext,
    laid: Laid,
    itself: torch.Tensor,
    address: int,
    strides: tuple[int, ...],
    expected: Any,
    raised: Exception | None,
    record: CellRecord,
) -> tuple[str, float | None] | None:
    original = laid.sample.tensors[0]
    if expected.raises is not None:
        return None if raised else ("returned where the CPU's functional op raises", None)
    wanted = expected.result
    if not isinstance(wanted, torch.Tensor):
        return None
    must_raise = ("the result has another shape" if wanted.shape != original.shape else None) or (
        "the result cannot be cast to self's dtype"
        if not torch.can_cast(wanted.dtype, original.dtype)
        else None
    )
    restrides = ctx.op.restrides_in_place
    if restrides:
        must_raise = None
    if raised is not None:
        if must_raise or ctx.stride_answer(laid, ctx.op.inplace, "@inplace").raises is not None:
            return None
        if isinstance(raised, NotImplementedError):
            record.refuse(raised)
            return None
        line = (str(raised).splitlines() or [""])[0][:300]
        return f"raised {type(raised).__name__}: {line}; the functional op does not", None
    if must_raise:
        return f"did not raise although {must_raise}", None
    kept = significant(itself.shape, itself.stride()) == significant(original.shape, strides)
    if not restrides and (itself.data_ptr() != address or not kept):
        return f"self was moved or restrided: {strides} became {tuple(itself.stride())}", None
    if "values.free" in ctx.traits.families:
        return None
    found = ctx.differs(itself, wanted.to(original.dtype), laid.sample)
    if found is not None:
        return f"self does not hold the functional result: {found.text}", found.error
    return None


def refuses_to_grow(op: Any, move: Any, back: Any, dtype: Any) -> str | None:
    # https://docs.pytorch.org/docs/stable/notes/broadcasting.html#in-place-semantics
    small = torch.ones(1, 4).to(getattr(torch, dtype))
    large = torch.ones(3, 4).to(getattr(torch, dtype))
    there = move(small)
    try:
        op(there, move(large))
    except RuntimeError:
        return None
    return f"accepted a self of shape (1, 4) with an operand of shape (3, 4); self is now {tuple(there.shape)}"
