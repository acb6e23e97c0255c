"""Calls that read: one call for each sample in each layout, judged for seven clauses at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from conformance.checks.ops.calls import (
    Ambiguous,
    Answer,
    Call,
    Found,
    Judge,
    Laid,
    called,
    damages,
    differs,
    strided,
)
from conformance.checks.ops.context import ItemContext, Reference
from conformance.suites.layout.lazy_bits import lazy_bits, lazy_operands
from conformance.suites.layout.views import judge_views
from opinfo.compare import Wrong, raised, tensors_of
from opinfo.device import ByValues, Guarded, identity
from opinfo.reference import OutputSpec, output_specs, significant
from opinfo.torch_private import storage_id


def reads(ctx: ItemContext) -> None:
    """Call the op on every sample in every layout of the covering set."""
    with ctx.running(*READS):
        if not (ctx.device.lays_out or ctx.device.slices):
            for clause in ("layout.bounds", "layout.expanded_read"):
                if (record := ctx.recorder.get(clause)) is not None:
                    record.pass_over("it declares no strides, and makes no views by slicing")
        # Calls without elements last: they work where all others end the process, which is then known.
        for sample in sorted(ctx.samples, key=lambda s: any(not t.numel() for t in s.tensors)):
            for laid in ctx.laid_out(sample):
                _one_call(ctx, laid)
            ctx.release(sample)
        if ctx.recorder.get("layout.views") is not None:
            lazy_bits(ctx)
        if ctx.recorder.get("layout.values") is not None and not ctx.traits.declares_view:
            lazy_operands(ctx)


def _one_call(ctx: ItemContext, laid: Laid) -> None:
    if not _as_asked(ctx, laid):
        return
    judges = _EXPANDED if laid.expands else _PLAIN
    reference = Reference(ctx, laid, eager_specs=partial(_eager_specs, ctx, laid))
    values = ctx.recorder.get("layout.expanded_read" if laid.expands else "layout.values")
    unread = (False,) if values is None else ()
    intact = ctx.recorder.get("layout.inputs_intact")
    failed = intact.failed if intact is not None else 0
    answer = ctx.judge(judges, called, unread, reference)
    if intact is not None and intact.failed > failed:
        ctx.rebuild(laid.sample)  # an input may have other strides now
    if "storage" not in ctx.device.descriptor.capabilities:
        ctx.rebuild(laid.sample)  # outputs were written to
    if answer is not None and reference.mutable:
        ctx.rebuild(
            laid.sample
        )  # the next call begins with the values that the reference begins with
        return
    if answer is None or answer.damages is None:
        return
    for each, damage in zip(laid.inputs, answer.damages, strict=True):
        if damage is not None and isinstance(each, Guarded):
            each.restore(ctx.device.to_device)


def _as_asked(ctx: ItemContext, laid: Laid) -> bool:
    """Whether the device built the requested layout; otherwise nothing can be checked."""
    for guarded in laid.inputs:
        if isinstance(guarded, Guarded) and not guarded.built_as_asked:
            view = guarded.view
            text = (
                f"[{laid.case.id}] the device did not build the layout: expected strides "
                f"{guarded.geometry.stride} at offset {guarded.geometry.offset}, found "
                f"{tuple(view.stride())} at {view.storage_offset()}"
            )
            for clause in READS:
                if (record := ctx.recorder.get(clause)) is not None:
                    record.block("layout.as_strided", text)
            return False
    return True


def judge_values(call: Call, answer: Answer, reference: Any) -> Found:
    """The result has the reference's values, and so have the inputs that the call updates; where they are unspecified,
    its shapes and dtypes. Raising is correct if the CPU raises for contiguous copies, or FakeTensor for this
    layout."""
    want = reference.value
    if answer.raised is not None:
        refused = want.raises is not None or reference.raises
        expected = "no exception, as from the reference"
        yield None if refused else raised(answer.raised, expected)
    elif want.raises is not None:
        yield Wrong("not_raised", f"{raised(want.raises).found}, as on the CPU", "a result")
    elif reference.free:
        yield other_form(answer.read, want.result)
    else:
        wrong = differs(answer.read, want.result, reference, lambda: reference.exact.result)
        yield wrong or (other_zeros(answer.read, want.result) if reference.signed else None)
        for place in sorted(reference.mutable):
            given = call.inputs[place]
            if want.after and isinstance(given, Guarded):
                there, exact = call.back(given.view), partial(exact_after, reference, place)
                wrong = differs(there, want.after[place], reference, exact)
                yield wrong.about(f"input {place} after the call") if wrong is not None else None


def exact_after(reference: Any, place: int) -> Any:
    """An input after the call in float64, if that has an answer."""
    return list(reference.exact.after)[place : place + 1]


def other_zeros(read: Any, want: Any) -> Wrong | None:
    """The first zero with another sign than the reference's, where both results are zero."""
    for got, wanted in zip(tensors_of(read), tensors_of(want)):
        if got.is_floating_point() and got.dtype == wanted.dtype:
            both = (got == 0) & (wanted == 0)
            other = both & (torch.signbit(got) != torch.signbit(wanted))
            if bool(other.any()):
                where = tuple(other.nonzero()[0].tolist())
                found = repr(got[where].item())
                return Wrong("values", repr(wanted[where].item()), found, f"at {where}")
    return None


def other_form(read: Any, want: Any) -> Wrong | None:
    """How the shapes and dtypes of what was read back differ from the reference's."""
    got, wanted = ([(tuple(t.shape), t.dtype) for t in tensors_of(each)] for each in (read, want))
    return None if got == wanted else Wrong("shape", f"shapes and dtypes {wanted}", got)


def judge_strides(call: Call, answer: Answer, reference: Any) -> Found:
    """Outputs have the strides that the meta device says, or FakeTensor, or eager CPU."""
    if answer.raised is not None:
        return
    outputs = strided(answer.result)
    found = [significant(each.shape, each.stride()) for each in outputs]
    wanted = comparable(reference.meta_specs, outputs)
    if wanted is None or wanted != found:
        wanted = comparable(reference.specs, outputs)
    if wanted is None or wanted != found:
        eager = comparable(reference.eager_specs, outputs)
        if wanted is None and eager is None:
            return  # no reference has an answer for this call
        if eager != found:
            by_fake = f"{wanted} as FakeTensor says" if wanted is not None else ""
            by_cpu = f"{eager} as eager CPU says" if eager is not None else ""
            expected = " or ".join(filter(None, (by_fake, by_cpu)))
            wrong = Wrong("strides", expected, found, "output strides")
            yield from [None] * (len(found) - 1)
            both = wanted is not None and eager is not None and wanted != eager
            yield Ambiguous(str(wrong)) if both else wrong
            return
    yield from [None] * len(found)


def comparable(
    specs: Sequence[OutputSpec] | None, outputs: Sequence[torch.Tensor]
) -> list[tuple[int, ...]] | None:
    """A reference's significant strides, where it describes outputs of the same shapes."""
    if specs is None or len(specs) != len(outputs):
        return None
    if any(s.shape != tuple(t.shape) for s, t in zip(specs, outputs)):
        return None  # layout.values judges the shapes
    return [s.significant for s in specs]


def _eager_specs(ctx: ItemContext, laid: Laid) -> tuple[OutputSpec, ...] | None:
    """What the eager CPU returns for the same layout; None on the CPU itself, which is not a second opinion."""
    if ctx.device.fake_only:
        return None
    tensors = []
    for tensor, geometry in zip(laid.sample.tensors, laid.geometries, strict=True):
        if tensor.layout != torch.strided:
            return None
        tensors.append(Guarded(tensor, geometry, identity).view)
    args, kwargs = laid.sample.call.bind(tensors)
    try:
        return output_specs(ctx.op.function(*args, **kwargs), tensors)
    except Exception:  # the CPU refuses this layout, so it cannot be a reference for it
        return None


def judge_fresh(call: Call, answer: Answer, reference: Any) -> Found:
    """Outputs have separate memory, and enough of it.

    Some ops hand an input through (``dropout`` in evaluation, ``Tensor.float`` of float32): they are written above
    the kernels, the same for every device, and FakeTensor shows it for the same call.
    """
    if answer.raised is not None:
        return
    outputs = strided(answer.result)
    for place, out in enumerate(outputs):
        if call.storage:
            wrong = aliases(call, out, None)
            if wrong is not None:
                wrong = aliases(call, out, handed_through(reference, place, outputs))
            wrong = wrong or outside_storage(out)
        else:
            through = handed_through(reference, place, outputs)
            wrong = written_to_inputs(call, answer, out, through)
            if answer.unjudged is not None:
                return
        if wrong is not None:
            yield wrong.about(f"output {place}")
            return
        if out.numel():  # no memory shows nothing
            yield None


def handed_through(reference: Any, place: int, outputs: Sequence[torch.Tensor]) -> int | None:
    """The input that FakeTensor hands through as this output."""
    specs = reference.specs
    alias: int | None = specs[place].alias if specs and len(specs) == len(outputs) else None
    return alias


def written_to_inputs(
    call: Call, answer: Answer, out: torch.Tensor, through: int | None
) -> Wrong | None:
    """Whether what is written to an output is seen in an input: of devices that declare no storage. An output that is
    input number ``through`` is not written to."""
    if through is not None:
        return None
    changed = damages(call, answer)  # by the call itself
    try:
        with torch.no_grad():
            out.fill_(1)
    except Exception as exc:  # elements that overlap, or no fill_
        answer.unjudged = exc
        return None
    for number, each in enumerate(call.inputs):
        if isinstance(each, Guarded) and changed[number] is None and not each.intact(call.back):
            each.restore(call.move)
            return Wrong("alias", "separate memory", f"a write to it is seen in input {number}")
    return None


def aliases(call: Call, out: torch.Tensor, through: int | None) -> Wrong | None:
    """Whether a tensor shares memory with one of the inputs but number ``through``: by identity, or by overlapping
    addresses."""
    storage = out.untyped_storage()
    for number, each in enumerate(call.inputs):
        if not isinstance(each, Guarded) or number == through:
            continue
        if storage_id(out) == storage_id(each.base):
            return Wrong("alias", "separate memory", f"the storage of input {number}")
        if not call.pointers:
            continue
        start, size = storage.data_ptr(), storage.nbytes()
        other = each.base.untyped_storage()
        at = other.data_ptr()
        if start and at and size and at < start + size and start < at + other.nbytes():
            return Wrong("alias", "separate memory", f"an overlap with input {number}")
    return None


def outside_storage(out: torch.Tensor) -> Wrong | None:
    """Whether some element of a tensor is beyond the end of its storage."""
    if out.numel() == 0:
        return None
    last = out.storage_offset() + sum((n - 1) * s for n, s in zip(out.shape, out.stride()))
    need, have = (last + 1) * out.element_size(), out.untyped_storage().nbytes()
    return Wrong("storage", f"a storage of {need} bytes or more", have) if need > have else None


def judge_inputs(call: Call, answer: Answer, reference: Any) -> Found:
    """The elements of inputs, and the bytes between them, are as they were; so are shape, strides and offset."""
    for place, damage in enumerate(damages(call, answer)):
        each = call.inputs[place]
        if isinstance(each, Guarded) and place not in reference.mutable and not each.as_asked():
            expected = f"shape {each.geometry.shape}, strides {each.geometry.stride}"
            found = f"shape {tuple(each.view.shape)}, strides {tuple(each.view.stride())}"
            yield Wrong("moved", expected, found, f"input {place}")
            continue
        if damage and (damage.between or (damage.inside and place not in reference.mutable)):
            found = f"{damage.inside} changed bytes in its elements, {damage.between} between them"
            found = f"{found}, the first at storage byte {damage.first_offset}"
            yield Wrong("bytes", "no change", found, f"input {place}")
        elif isinstance(each, Guarded):
            yield None


def judge_bounds(call: Call, answer: Answer, reference: Any) -> Found:
    """The bytes of an input's storage outside of the view are as they were."""
    for place, damage in enumerate(damages(call, answer)):
        each = call.inputs[place]
        if not isinstance(each, Guarded) or (isinstance(each, ByValues) and each.whole):
            continue
        wrong = None
        if damage and damage.outside:
            at = f"{damage.first_offset} (the view begins at element {each.geometry.offset})"
            found = f"{damage.outside} changed bytes, the first at storage byte {at}"
            wrong = Wrong("bytes", "no change outside its elements", found, f"input {place}")
        yield wrong


_PLAIN: dict[str, Judge] = {
    "layout.values": judge_values,
    "layout.output_strides": judge_strides,
    "layout.output_fresh": judge_fresh,
    "layout.inputs_intact": judge_inputs,
    "layout.bounds": judge_bounds,
    "layout.views": judge_views,
}
_EXPANDED: dict[str, Judge] = {"layout.expanded_read": judge_values, **_PLAIN}
del _EXPANDED["layout.values"]

#: The clauses that the calls of :func:`reads` are judged for.
READS = ("layout.values", *_EXPANDED)
