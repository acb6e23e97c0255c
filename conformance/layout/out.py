"""layout.out_kept: what ``out=`` of the right shape promises, and the bytes around it (layout.bounds)."""

from __future__ import annotations

from typing import Any

import torch

from conformance.layout import repro
from conformance.layout.context import ItemContext, Laid
from conformance.layout.resizing import resized
from conformance.layout.targets import (
    contiguous_inputs,
    failure,
    form_of,
    outputs_of,
    prefill,
    raised,
    takes_no_out,
    target_argument,
)
from opinfo.guarded import Guarded
from opinfo.layouts import AnyLayout, Geometry
from opinfo.reference import significant
from opinfo.samples import Sample

CLAUSES = ("layout.out_kept", "layout.out_resize", "layout.bounds")


def check(ctx: ItemContext) -> None:
    """Give the op targets of the right shape in many layouts, then targets that are wrong."""
    if not ctx.traits.has_out or not ctx.traits.returns_tensors or not ctx.wants(*CLAUSES):
        return
    with ctx.running("layout.out_kept", "layout.bounds"):
        for sample in ctx.samples:
            kept(ctx, sample)
            ctx.release(sample)
    with ctx.running("layout.out_resize") as (record,):
        if record is not None:
            for sample in ctx.samples:
                resized(ctx, sample, record)


def kept(ctx: ItemContext, sample: Sample) -> None:
    """``out=`` of the right shape keeps address and strides, and takes the functional result whole."""
    laid = contiguous_inputs(ctx, sample)
    expected = ctx.expected(laid)
    wanted = outputs_of(expected.result) if expected.raises is None else None
    if wanted is None:
        return
    seen: set[tuple[Geometry, ...]] = set()
    for layout in ctx.targets:
        geometries = tuple(layout.geometry(t.shape) for t in wanted)
        if geometries in seen:
            continue
        seen.add(geometries)
        _one_target(ctx, laid, expected.result, wanted, geometries, layout)


def _one_target(
    ctx: ItemContext,
    laid: Laid,
    result: Any,
    wanted: list[torch.Tensor],
    geometries: tuple[Geometry, ...],
    layout: AnyLayout,
) -> None:
    name = f"out={layout.id}"
    kept_record, bounds = ctx.recorder.get("layout.out_kept"), ctx.recorder.get("layout.bounds")
    guarded = [
        Guarded(t, g, ctx.device.to_device, fill=prefill(t.dtype))
        for t, g in zip(wanted, geometries, strict=True)
    ]
    targets = [g.view for g in guarded]
    addresses = [t.data_ptr() for t in targets]
    specs = [
        (t.dtype, g.shape, g.stride, g.offset, g.extent)
        for t, g in zip(wanted, geometries, strict=True)
    ]
    form = form_of(result)
    write = repro.for_call(ctx, laid, "out_kept", layout=name, TARGETS=specs, FORM=form)
    try:
        ctx.run(ctx.op.function, laid, out=target_argument(result, targets))
    except Exception as exc:  # judged, not swallowed
        if kept_record is not None and not takes_no_out(exc):
            kept_record.check(laid.sample.index, name)
            if isinstance(exc, NotImplementedError):
                kept_record.refuse(exc)
            else:
                kept_record.fail(failure(name, laid, raised(exc), write, raises=type(exc).__name__))
        return
    if bounds is not None:
        for place, target in enumerate(guarded):
            if not target.as_asked():  # moved or restrided: the out_kept clause's business
                continue
            bounds.check(laid.sample.index, name)
            if not target.outside_intact(ctx.device.from_device):
                bounds.fail(
                    failure(
                        name,
                        laid,
                        f"bytes outside out {place} changed (strides {geometries[place].stride}, "
                        f"offset {geometries[place].offset})",
                        repro.for_call(
                            ctx, laid, "out_bounds", layout=name, TARGETS=specs, FORM=form
                        ),
                    )
                )
    if kept_record is None:
        return
    kept_record.check(laid.sample.index, name)
    problem, error = None, None
    for place, (given, geometry, address) in enumerate(
        zip(targets, geometries, addresses, strict=True)
    ):
        strides = significant(given.shape, given.stride())
        if given.data_ptr() != address or strides != significant(geometry.shape, geometry.stride):
            moved = "kept" if given.data_ptr() == address else "changed"
            problem = (
                f"out {place} was moved or restrided: strides {geometry.stride} became "
                f"{tuple(given.stride())}, address {moved}"
            )
            break
        found = ctx.differs(given, wanted[place], laid.sample)
        if found is not None and "values.free" not in ctx.traits.families:
            problem, error = (
                f"out {place} does not hold the functional result: {found.text}",
                found.error,
            )
            break
    if problem is not None:
        kept_record.fail(failure(name, laid, problem, write, error=error))
