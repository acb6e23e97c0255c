"""One call per sample and layout, judged by seven clauses at once.

``values`` and ``expanded_read`` (does it give the reference's values), ``output_strides``, ``output_fresh``,
``inputs_intact``, ``bounds`` (for inputs) and ``views``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext, Laid
from conformance.layout.views import check_bits, check_views
from opinfo.guarded import Guarded, identity
from opinfo.reference import OutputSpec, output_specs, significant
from opinfo.structure import tensors_of

CLAUSES = (
    "layout.values",
    "layout.expanded_read",
    "layout.output_strides",
    "layout.output_fresh",
    "layout.inputs_intact",
    "layout.bounds",
    "layout.views",
)


def check(ctx: ItemContext) -> None:
    """Run the op on every sample in every layout of the covering set."""
    if not ctx.wants(*CLAUSES):
        return
    with ctx.running(*CLAUSES):
        for sample in ctx.samples:
            for laid in ctx.laid_out(sample):
                _one_call(ctx, laid)
            ctx.release(sample)
        check_bits(ctx)


def _one_call(ctx: ItemContext, laid: Laid) -> None:
    get = ctx.recorder.get
    if not _as_asked(ctx, laid):
        return
    value_clause = "layout.expanded_read" if laid.expands else "layout.values"
    values = get(value_clause)
    fetched = None
    try:
        result = ctx.run(ctx.op.function, laid)
        if values is not None:
            fetched = ctx.fetch(result)  # what fails late is the call's failure too
    except Exception as exc:  # anything may come out of a kernel; it is judged, not swallowed
        if values is not None:
            _judge_raise(ctx, laid, values, exc)
        check_inputs(ctx, laid)
        return
    if values is not None:
        _judge_values(ctx, laid, values, fetched)
    outputs = [t for t in tensors_of(result) if t.layout == torch.strided]
    if (record := get("layout.output_strides")) is not None:
        _judge_strides(ctx, laid, record, result, outputs)
    if (record := get("layout.output_fresh")) is not None:
        _judge_fresh(ctx, laid, record, outputs)
    check_inputs(ctx, laid)
    if (record := get("layout.views")) is not None:
        check_views(ctx, laid, record, result, outputs)


def _as_asked(ctx: ItemContext, laid: Laid) -> bool:
    """Whether the device built the layout that was asked for; otherwise nothing can be said of it."""
    for guarded in laid.guarded:
        if guarded is not None and not guarded.built_as_asked:
            view = guarded.view
            text = (
                f"[{laid.case.id}] the device did not build the layout: asked for strides "
                f"{guarded.geometry.stride} at offset {guarded.geometry.offset}, got "
                f"{tuple(view.stride())} at {view.storage_offset()}"
            )
            for clause in CLAUSES:
                if (record := ctx.recorder.get(clause)) is not None:
                    record.error(text)
            return False
    return True


def _judge_raise(ctx: ItemContext, laid: Laid, record: CellRecord, exc: Exception) -> None:
    """Raising is right where the CPU raises for contiguous copies, or FakeTensor for this layout."""
    record.check(laid.sample.index, laid.case.id)
    if ctx.expected(laid).raises is not None or ctx.stride_answer(laid).raises is not None:
        return
    if isinstance(exc, NotImplementedError):
        record.refuse(exc)
        return
    record.fail(
        Failure(
            laid.case.id,
            f"raised {type(exc).__name__}: {_first_line(exc)}; the reference does not raise",
            raises=type(exc).__name__,
            size=laid.sample.numel,
            repro=repro.for_call(ctx, laid, "values"),
        )
    )


def _judge_values(ctx: ItemContext, laid: Laid, record: CellRecord, result: Any) -> None:
    expected = ctx.expected(laid)
    record.check(laid.sample.index, laid.case.id)
    if expected.raises is not None:
        record.fail(
            Failure(
                laid.case.id,
                f"returned a result where the CPU raises {type(expected.raises).__name__}: "
                f"{_first_line(expected.raises)}",
                size=laid.sample.numel,
                repro=repro.for_call(ctx, laid, "values"),
            )
        )
        return
    found = ctx.differs_there(result, expected.result, laid.sample)
    if found is not None:
        record.fail(
            Failure(
                laid.case.id,
                found.text,
                error=found.error,
                size=laid.sample.numel,
                repro=repro.for_call(ctx, laid, "values"),
            )
        )


def _judge_strides(
    ctx: ItemContext, laid: Laid, record: CellRecord, result: Any, outputs: list[torch.Tensor]
) -> None:
    fake = ctx.stride_answer(laid)
    got = [significant(t.shape, t.stride()) for t in outputs]
    wanted = _comparable(fake.outputs, outputs)
    if wanted is not None and wanted == got:
        record.check(laid.sample.index, laid.case.id, len(got))
        return
    eager = None if ctx.device.fake_only else _comparable(_eager_specs(ctx, laid), outputs)
    if wanted is None and eager is None:
        return  # no reference has an answer for this call
    record.check(laid.sample.index, laid.case.id, len(got))
    if eager == got:
        return
    text = f"output strides {got}; FakeTensor says {wanted}" + (
        "" if ctx.device.fake_only else f", eager CPU says {eager}"
    )
    if wanted is not None and eager is not None and wanted != eager:
        record.ambiguous.append(f"[{laid.case.id}] {text}")
        return
    record.fail(
        Failure(
            laid.case.id,
            text,
            size=laid.sample.numel,
            repro=repro.for_call(ctx, laid, "output_strides"),
        )
    )


def _comparable(
    specs: tuple[OutputSpec, ...] | None, outputs: list[torch.Tensor]
) -> list[tuple[int, ...]] | None:
    """A reference's significant strides, where it describes outputs of the same shapes."""
    if specs is None or len(specs) != len(outputs):
        return None
    if any(s.shape != tuple(t.shape) for s, t in zip(specs, outputs, strict=True)):
        return None  # the shapes are the values clause's business
    return [s.significant for s in specs]


def _eager_specs(ctx: ItemContext, laid: Laid) -> tuple[OutputSpec, ...] | None:
    """What the eager CPU returns for the same layout."""
    tensors = []
    for tensor, geometry in zip(laid.sample.tensors, laid.geometries, strict=True):
        if tensor.layout != torch.strided:
            return None
        tensors.append(Guarded(tensor, geometry, identity).view)
    args, kwargs = laid.sample.call.bind(tensors)
    try:
        return output_specs(ctx.op.function(*args, **kwargs), tensors)
    except Exception:  # the CPU refuses this layout: then it is no reference for it
        return None


def _judge_fresh(
    ctx: ItemContext, laid: Laid, record: CellRecord, outputs: list[torch.Tensor]
) -> None:
    """Some ops hand an input through (``dropout`` in evaluation, ``Tensor.float`` of float32): they are
    written above the kernels, the same for every device, and FakeTensor shows it for the same call."""
    bases = [g.base if g is not None else None for g in laid.guarded]
    specs = ctx.stride_answer(laid).outputs
    known = specs is not None and len(specs) == len(outputs)
    for place, out in enumerate(outputs):
        record.check(laid.sample.index, laid.case.id)
        through = specs[place].alias if known and specs is not None else None
        text = aliases(out, bases, through) or outside_storage(out)
        if text is not None:
            record.fail(
                Failure(
                    laid.case.id,
                    f"output {place} {text}",
                    size=laid.sample.numel,
                    repro=repro.for_call(ctx, laid, "output_fresh", THROUGH={place: through}),
                )
            )
            return


def aliases(
    out: torch.Tensor, bases: Sequence[torch.Tensor | None], through: int | None = None
) -> str | None:
    """Whether a tensor shares memory with one of the storages but number ``through``: by identity, or by
    overlapping addresses."""
    storage = out.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    for number, base in enumerate(bases):
        if base is None or number == through:
            continue
        other = base.untyped_storage()
        if storage._cdata == other._cdata:
            return f"shares its storage with input {number}"
        at = other.data_ptr()
        if start and at and size and at < start + size and start < at + other.nbytes():
            return f"overlaps the memory of input {number}"
    return None


def outside_storage(out: torch.Tensor) -> str | None:
    """Whether some element of a tensor lies past the end of its storage."""
    if out.numel() == 0:
        return None
    last = out.storage_offset() + sum(
        (n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True)
    )
    need, have = (last + 1) * out.element_size(), out.untyped_storage().nbytes()
    if need > have:
        return f"needs {need} bytes of a storage of {have}"
    return None


def check_inputs(ctx: ItemContext, laid: Laid) -> None:
    """Compare every byte of every input's storage with what it was, and put it back."""
    intact, bounds = ctx.recorder.get("layout.inputs_intact"), ctx.recorder.get("layout.bounds")
    if intact is None and bounds is None:
        return
    mutable = ctx.mutable_inputs(laid.sample)
    for place, guarded in enumerate(laid.guarded):
        if guarded is None:
            continue
        if intact is not None:
            intact.check(laid.sample.index, laid.case.id)
        if bounds is not None:
            bounds.check(laid.sample.index, laid.case.id)
        if guarded.intact(ctx.device.from_device):
            continue
        damage = guarded.damage(ctx.device.from_device)
        guarded.restore(ctx.device.to_device)
        if intact is not None and (damage.between or (damage.inside and place not in mutable)):
            intact.fail(
                Failure(
                    laid.case.id,
                    f"input {place} changed: {damage.inside} bytes of its elements, {damage.between} "
                    f"between them; first at storage byte {damage.first_offset}",
                    size=laid.sample.numel,
                    repro=repro.for_call(ctx, laid, "inputs_intact"),
                )
            )
        if bounds is not None and damage.outside:
            bounds.fail(
                Failure(
                    laid.case.id,
                    f"{damage.outside} bytes outside input {place} changed, first at storage byte "
                    f"{damage.first_offset} of a view from {guarded.geometry.offset} elements on",
                    size=laid.sample.numel,
                    repro=repro.for_call(ctx, laid, "bounds"),
                )
            )
    if mutable:
        ctx.rebuild(laid.sample)


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [""])[0][:300]
