"""layout.views: an op that declares aliasing shares the base's storage where its reference does.

Offset and strides are the reference's; a write through the view is seen in the base and the other way
round; conj and neg bits are the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext, Laid
from opinfo.compare import bit_equal
from opinfo.layouts import Geometry
from opinfo.reference import OutputSpec, on_device, significant, value_answer
from opinfo.samples import Sample
from opinfo.structure import replace_tensors, tensors_of


def check_views(
    ctx: ItemContext, laid: Laid, record: CellRecord, result: Any, outputs: list[torch.Tensor]
) -> None:
    """Judge the outputs of one call of a view op."""
    answer = ctx.stride_answer(laid).outputs
    if answer is None or len(answer) != len(outputs):
        return
    reference = tensors_of(ctx.expected(laid).result)
    for place, (out, spec) in enumerate(zip(outputs, answer, strict=True)):
        if spec.shape != tuple(out.shape):
            continue  # the values clause's business
        text = _bits(out, reference[place]) if place < len(reference) else None
        record.check(laid.sample.index, laid.case.id)
        if text is None and spec.alias is not None:
            record.check(laid.sample.index, laid.case.id)
            text = _aliasing(ctx, laid, out, spec)
        if text is not None:
            record.fail(
                Failure(
                    laid.case.id,
                    f"output {place}: {text}",
                    size=laid.sample.numel,
                    repro=repro.for_call(ctx, laid, "views"),
                )
            )
            return


def check_bits(ctx: ItemContext) -> None:
    """Give the op conjugated and negated views: the bits are the CPU's, and so are the values."""
    record = ctx.recorder.get("layout.views")
    if record is None:
        return
    kind = getattr(torch, ctx.dtype)
    turns = []
    if kind.is_complex and ctx.op.takes_conj_view:
        turns.append(("conj", torch.conj))
    if (kind.is_complex or kind.is_floating_point) and ctx.op.takes_neg_view:
        turns.append(("neg", torch._neg_view))
    for name, turn in turns:
        for sample in ctx.samples:
            first = sample.call.args[0]
            if isinstance(first, torch.Tensor) and first.numel():
                _turned(ctx, record, sample, name, turn)


def _turned(
    ctx: ItemContext,
    record: CellRecord,
    sample: Sample,
    name: str,
    turn: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    rest = sample.tensors[1:]
    lazily = value_answer(ctx.op.function, sample.call, [turn(sample.tensors[0]), *rest])
    physical = turn(sample.tensors[0]).resolve_conj().resolve_neg()
    values = value_answer(ctx.op.function, sample.call, [physical, *rest])
    if lazily.raises is not None or values.raises is not None:
        return
    try:
        _resolved(lazily.result)
        wanted = _resolved(values.result)
    except NotImplementedError:
        return  # the CPU cannot read its own result: complex32 with both bits set
    given = [
        turn(ctx.device.to_device(sample.tensors[0].clone())),
        *map(ctx.device.to_device, rest),
    ]
    args, kwargs = sample.call.bind(given)
    record.check(sample.index, name)
    try:
        result = ctx.op.function(*args, **on_device(kwargs, ctx.device.torch_device))
        ctx.device.settle(result)
    except NotImplementedError as exc:
        record.refuse(exc)
        return
    except Exception as exc:  # judged
        case = ctx.cases[0]
        plain = ctx.lay(sample, case, ctx.geometries(sample, case))
        if ctx.stride_answer(plain).raises is not None:
            return  # FakeTensor raises too: the call is not one for this device
        text: str | None = (
            f"raised {type(exc).__name__}: {(str(exc).splitlines() or [''])[0][:200]}"
        )
    else:
        outputs, references = tensors_of(result), tensors_of(lazily.result)
        bits = (_bits(o, r) for o, r in zip(outputs, references, strict=False))
        text = next(filter(None, bits), None)
        if text is None:
            found = ctx.differs(_resolved(ctx.fetch(result)), wanted, sample)
            text = found.text if found is not None else None
    if text is not None:
        case = ctx.cases[0]
        laid = ctx.lay(sample, case, ctx.geometries(sample, case))
        record.fail(
            Failure(
                name,
                f"{name} view as input: {text}",
                size=sample.numel,
                repro=repro.for_call(ctx, laid, "views_bits", layout=name, TURN=name),
            )
        )


def _resolved(result: Any) -> Any:
    return replace_tensors(result, lambda t: t.resolve_conj().resolve_neg())


def _bits(out: torch.Tensor, reference: torch.Tensor) -> str | None:
    if out.is_conj() != reference.is_conj():
        return f"conj bit {out.is_conj()}, the CPU's is {reference.is_conj()}"
    if out.is_neg() != reference.is_neg():
        return f"neg bit {out.is_neg()}, the CPU's is {reference.is_neg()}"
    return None


def _aliasing(ctx: ItemContext, laid: Laid, out: torch.Tensor, spec: OutputSpec) -> str | None:
    assert spec.alias is not None
    guarded = laid.guarded[spec.alias]
    if guarded is None:
        return None
    base = guarded.base
    if out.untyped_storage()._cdata != base.untyped_storage()._cdata:
        return f"does not share the storage of input {spec.alias}, the reference does"
    if significant(out.shape, out.stride()) != spec.significant:
        return f"strides {tuple(out.stride())}, the reference says {spec.stride}"
    if out.numel() and out.storage_offset() != spec.offset:
        return f"storage offset {out.storage_offset()}, the reference says {spec.offset}"
    if out.numel() == 0 or out.is_conj() or out.is_neg() or 0 in spec.significant:
        return None
    if overlapping(out.shape, out.stride()):
        return None  # writes through it are not defined
    return _writes_through(ctx, guarded, out)


def _writes_through(ctx: ItemContext, guarded: Any, out: torch.Tensor) -> str | None:
    """Fill the view, and see exactly its elements change in the base; put the base back, and see the view
    follow."""
    geometry = Geometry(tuple(out.shape), tuple(out.stride()), int(out.storage_offset()), 0)
    wanted = guarded.before.clone()
    usable = len(wanted) // out.element_size() * out.element_size()
    there = wanted[:usable].view(out.dtype)
    there.as_strided(geometry.shape, geometry.stride, geometry.offset).fill_(1)
    with torch.no_grad():
        out.fill_(1)
    written = torch.equal(ctx.device.from_device(guarded.base), wanted)
    guarded.restore(ctx.device.to_device)
    if not written:
        return "a write through the view is not what the base holds"
    before = guarded.before[:usable].view(out.dtype)
    back = before.as_strided(geometry.shape, geometry.stride, geometry.offset)
    seen = ctx.device.from_device(out)
    if not bit_equal(seen, back):
        return "a write to the base is not what the view holds"
    return None


def overlapping(shape: tuple[int, ...] | torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether two elements of the view may share an address (sufficient test: sorted strides nest)."""
    reach = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False
