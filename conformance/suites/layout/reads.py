"""Checks that make the ordinary call of an op: one call for each sample in each layout. Each result is judged for
seven clauses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import (
    Ambiguous,
    Found,
    Judge,
    Laid,
    ReferenceParts,
    Unjudged,
    differs,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import (
    Evidence,
    OutputFacts,
    WriteThrough,
    called_and_written_to,
)
from conformance.suites.layout.lazy_bits import lazy_bits, lazy_operands
from conformance.suites.layout.views import judge_views
from opinfo.compare import Wrong, raised, tensors_of
from opinfo.guarded import Guarded, identity
from opinfo.reference import OutputSpec, output_specs, significant

#: How far, relative to itself, float32 must miss a float64 number for the number to tell in which of the two a result was
#: computed: roundings of float64 do not take a number of float32 so far away. The number of such elements that tell it.
_ROUNDING = 2.0**-36
_TELLING = 4

_NOTHING_AROUND = (
    "in the layouts that the op is tried in and that the device can make without the capability "
    "`strides`, no input has memory around its elements"
)


def reads(ctx: OpContext) -> None:
    """Call the op on every sample in every layout of the covering set (``opinfo/layouts.toml``), then with the conj
    or neg bit set, and judge each result for all clauses that such a call can show."""
    with ctx.running(*READS):
        if not (ctx.device.lays_out or ctx.device.slices):
            for clause in ("layout.bounds", "layout.expanded_read"):
                if (record := ctx.recorder.get(clause)) is not None:
                    record.pass_over("the device has neither strides nor views made by slicing")
        # Calls without elements come last: on a device where every other call ends the process, they still pass.
        for sample in sorted(ctx.samples, key=lambda s: any(not t.numel() for t in s.tensors)):
            for laid in ctx.laid_out(sample):
                _one_call(ctx, laid)
            ctx.release(sample)
        if not ctx.device.lays_out and (record := ctx.recorder.get("layout.bounds")) is not None:
            record.pass_over_unless_checked(_NOTHING_AROUND)
        if ctx.recorder.get("layout.views") is not None:
            lazy_bits(ctx)
        if ctx.recorder.get("layout.values") is not None and not ctx.traits.declares_view:
            lazy_operands(ctx)


def _one_call(ctx: OpContext, laid: Laid) -> None:
    if not _as_asked(ctx, laid):
        return
    judges = _EXPANDED if laid.expands else _PLAIN
    reference = Reference(ctx, laid, eager_specs=partial(_eager_specs, ctx, laid))
    mutable = tuple(sorted(reference.mutable))
    evidence = ctx.judge(judges, called_and_written_to, (mutable,) if mutable else (), reference)
    if evidence is None:
        return
    moved = any(each is not None and not each.as_asked for each in evidence.inputs)
    # Inputs that the op updates are built anew: the reference assumes their original values. So are inputs that the call
    # gave other strides, and those of a device that does not show storages, where a write to an output was tried.
    if moved or mutable or "storage" not in ctx.device.descriptor.capabilities:
        ctx.rebuild(laid.sample)


def _as_asked(ctx: OpContext, laid: Laid) -> bool:
    """Return True if the device built all inputs in the requested layout. If not, the call cannot be judged: set the
    clauses in ``READS`` to blocked and return False."""
    for guarded in laid.inputs:
        if isinstance(guarded, Guarded) and not guarded.built_as_asked:
            view = guarded.view
            text = (
                f"[{laid.case.id}] the device did not build the layout: expected strides "
                f"{guarded.geometry.stride} and storage offset {guarded.geometry.offset}, found "
                f"strides {tuple(view.stride())} and storage offset {view.storage_offset()}"
            )
            for clause in READS:
                if (record := ctx.recorder.get(clause)) is not None:
                    record.block("layout.as_strided", text)
            return False
    return True


def judge_values(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Compare the result, and each input that the op updates, with the CPU's values. If the op's values are
    unspecified, compare only shapes and dtypes. An exception is accepted if the CPU raises for contiguous copies of the
    inputs, or if FakeTensor raises for the same layout."""
    want = reference.value
    if evidence.unjudged is not None and not reference.free:
        return
    if evidence.raised is not None:
        refused = want.raises is not None or reference.raises
        expected = "no exception, as on the CPU"
        yield None if refused else raised(evidence.raised, expected)
    elif want.raises is not None:
        yield Wrong("not_raised", f"{raised(want.raises).found}, as on the CPU", "a result")
    elif reference.free:
        yield other_form(evidence, want.result)
    else:
        wrong = differs(evidence.read, want.result, reference, lambda: reference.exact.result)
        wrong = wrong or through_float32(evidence.read, want.result)
        yield wrong or (other_zeros(evidence.read, want.result) if reference.signed else None)
        for place in sorted(reference.mutable):
            given = evidence.inputs[place]
            if want.after and given is not None:
                exact = partial(exact_after, reference, place)
                wrong = differs(given.values, want.after[place], reference, exact)
                yield wrong.about(f"input {place} after the call") if wrong is not None else None


def exact_after(reference: ReferenceParts, place: int) -> Any:
    """Return a list of one tensor, the values of input ``place`` after the call in the float64 reference; an empty list
    if the reference has no such input."""
    return list(reference.exact.after)[place : place + 1]


def through_float32(read: Any, want: Any) -> Wrong | None:
    """Return a failure if a result in float64 or complex128 has no number that float32 lacks, where several of the CPU's
    have: the device has computed it in float32, which the tolerance of float64 accepts. A number of the CPU counts if
    float32 misses it by far more than a rounding of float64."""
    for got, wanted in zip(tensors_of(read), tensors_of(want)):
        if got.dtype not in (torch.float64, torch.complex128) or got.dtype != wanted.dtype:
            continue
        if got.layout != torch.strided or got.shape != wanted.shape:
            continue
        one, other = (
            torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
            for each in (got, wanted)
        )
        missed = (other.float().double() - other).abs() > _ROUNDING * other.abs()
        missed &= other.isfinite()
        if int(missed.sum()) >= _TELLING and torch.equal(one[missed].float().double(), one[missed]):
            expected = (
                f"{got.dtype}, of which {int(missed.sum())} elements are no numbers of float32"
            )
            return Wrong("precision", expected, "numbers of float32 only")
    return None


def other_zeros(read: Any, want: Any) -> Wrong | None:
    """Return a failure that names the first element that is zero in both results but has a different sign; None if the
    signs agree."""
    for got, wanted in zip(tensors_of(read), tensors_of(want)):
        if got.is_floating_point() and got.dtype == wanted.dtype:
            both = (got == 0) & (wanted == 0)
            other = both & (torch.signbit(got) != torch.signbit(wanted))
            if bool(other.any()):
                where = tuple(other.nonzero()[0].tolist())
                found = repr(got[where].item())
                return Wrong("values", repr(wanted[where].item()), found, f"at {where}")
    return None


def other_form(evidence: Evidence, want: Any) -> Wrong | None:
    """Return a failure if the shapes or dtypes of the result differ from the reference's; otherwise None. If the result
    could not be read, only its strided tensors are compared."""
    got: list[Any] = [(each.shape, each.dtype) for each in evidence.outputs]
    if evidence.unjudged is None:
        got = [(tuple(each.shape), each.dtype) for each in tensors_of(evidence.read)]
    wanted = [(tuple(each.shape), each.dtype) for each in tensors_of(want)]
    return None if got == wanted else Wrong("shape", f"shapes and dtypes {wanted}", got)


def judge_strides(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the strides of the outputs are those of the meta device, of FakeTensor or of eager CPU. If FakeTensor
    and eager CPU disagree with each other and with the device, the verdict is Ambiguous. For calls that take their
    strides from FakeTensor, the meta device is asked last, unless its kernel is known to be written for the CPU."""
    if evidence.raised is not None:
        return
    outputs = evidence.outputs
    found = [significant(each.shape, each.stride) for each in outputs]
    wanted = comparable(reference.meta_specs, outputs)
    if wanted is None or wanted != found:
        wanted = comparable(reference.specs, outputs)
    if wanted is None or wanted != found:
        eager = comparable(reference.eager_specs, outputs)
        if wanted is None and eager is None:
            return  # no reference has an answer for this call
        # The CPU itself has no eager reference, and FakeTensor alone decides.
        other = comparable(reference.other_specs, outputs) if eager is not None else None
        if found not in (eager, other):
            by_fake = f"{wanted} (FakeTensor)" if wanted is not None else ""
            by_cpu = f"{eager} (eager CPU)" if eager is not None else ""
            expected = " or ".join(filter(None, (by_fake, by_cpu)))
            wrong = Wrong("strides", expected, found, "output strides")
            yield from [None] * (len(found) - 1)
            both = wanted is not None and eager is not None and wanted != eager
            yield Ambiguous(str(wrong)) if both else wrong
            return
    yield from [None] * len(found)


def comparable(
    specs: Sequence[OutputSpec] | None, outputs: Sequence[OutputFacts]
) -> list[tuple[int, ...]] | None:
    """Return the strides that a reference gives for the dimensions of size 2 or more, one tuple per output. Returns
    None if the reference has a different number of outputs or different shapes."""
    if specs is None or len(specs) != len(outputs):
        return None
    if any(s.shape != t.shape for s, t in zip(specs, outputs)):
        return None  # layout.values judges the shapes
    return [s.significant for s in specs]


def _eager_specs(ctx: OpContext, laid: Laid) -> tuple[OutputSpec, ...] | None:
    """Return the shapes and strides of eager CPU's outputs for inputs of the same layout. Returns None if eager CPU
    raises, or if the device under test is the CPU, which cannot be its own reference."""
    if ctx.device.fake_only:
        return None
    tensors = []
    for tensor, geometry in zip(laid.sample.tensors, laid.geometries, strict=True):
        if tensor.layout != torch.strided:
            return None
        tensors.append(Guarded(tensor, geometry, identity).view)
    args, kwargs = laid.sample.call.bind(tensors)
    try:
        return output_specs(ctx.subject.reference(*args, **kwargs), tensors)
    except Exception:  # the CPU refuses this layout, so it cannot be a reference for it
        return None


def judge_fresh(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the outputs share no memory with the inputs and that their storage is large enough.

    Some ops return an input unchanged (``dropout`` in evaluation mode, ``Tensor.float`` of float32). Such an op is
    implemented above the kernels, in the same way for every device, so FakeTensor returns the input for the same call
    too.
    """
    if evidence.raised is not None:
        return
    for place, out in enumerate(evidence.outputs):
        if evidence.shows_storage:
            wrong = aliases(out, None)
            if wrong is not None:
                wrong = aliases(out, handed_through(reference, place, evidence.outputs))
            wrong = wrong or outside_storage(out)
        else:
            wrong, write = None, evidence.writes[place] if evidence.writes else None
            if write is not None and handed_through(reference, place, evidence.outputs) is None:
                if write.error is not None:
                    yield Unjudged(write.error)
                    return
                wrong = written_to_inputs(evidence, write, reference.mutable)
        if wrong is not None:
            yield wrong.about(f"output {place}")
            return
        if out.numel:  # an empty output has no memory to check
            yield None


def handed_through(
    reference: ReferenceParts, place: int, outputs: Sequence[OutputFacts]
) -> int | None:
    """Return the index of the input that FakeTensor returns unchanged as output ``place``; None if that output is a new
    tensor. If FakeTensor has no answer for the call (``histogramdd``), eager CPU decides."""
    specs = reference.specs
    if specs is None:
        specs = reference.eager_specs
    alias: int | None = specs[place].alias if specs and len(specs) == len(outputs) else None
    return alias


def written_to_inputs(
    evidence: Evidence, write: WriteThrough, mutable: Collection[int] = ()
) -> Wrong | None:
    """Return a failure if a write to an output changed an input. The write replaces a comparison of storages on devices
    that do not declare the capability ``storage``. The op itself may change the inputs whose index is in ``mutable``,
    and a lazy device may do so at any later time, so such an input must contain what was written to the output."""
    for place in sorted(write.after):
        each = evidence.inputs[place]
        if each is None or each.damage is not None:  # the call itself writes to it
            continue
        if place in mutable and not contains_written(each.before, write.after[place], write.dtype):
            continue
        found = f"a write to the output changes input {place}"
        return Wrong("alias", "memory that no input shares", found)
    return None


def contains_written(before: torch.Tensor, after: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return True if the bytes ``after`` differ from the bytes ``before`` in an element that now holds 1, the value that
    was written to an output of the given dtype."""
    usable = len(after) // dtype.itemsize * dtype.itemsize
    was, now = (held[:usable].reshape(-1, dtype.itemsize) for held in (before, after))
    changed = (was != now).any(1)
    return bool((changed & (after[:usable].view(dtype) == 1)).any())


def aliases(out: OutputFacts, through: int | None) -> Wrong | None:
    """Return a failure if an output has the same storage as an input or addresses that overlap an input's memory;
    otherwise None. The input with index ``through`` may share memory with the output."""
    if out.storage is not None and out.storage != through:
        return Wrong("alias", "its own storage", f"the storage of input {out.storage}")
    for place in out.overlaps:
        if place != through:
            return Wrong("alias", "its own memory", f"addresses that overlap input {place}")
    return None


def outside_storage(out: OutputFacts) -> Wrong | None:
    """Return a failure if the storage of a tensor is too small for its size, strides and storage offset; otherwise
    None."""
    if not out.missing_bytes:
        return None
    expected = f"a storage of at least {out.needed_bytes} bytes"
    return Wrong("storage", expected, f"{out.nbytes} bytes")


def judge_inputs(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the call changed no input: neither its elements, nor the bytes between them, nor its shape, strides
    and storage offset. Only the elements of inputs that the op updates may change."""
    for place, each in enumerate(evidence.inputs):
        if each is None:
            continue
        if place not in reference.mutable and not each.as_asked:
            expected = f"shape {each.asked.shape}, strides {each.asked.stride}"
            found = f"shape {each.shape}, strides {each.stride}"
            yield Wrong("moved", expected, found, f"input {place}")
            continue
        damage = each.damage
        if damage and (damage.between or (damage.inside and place not in reference.mutable)):
            found = f"{damage.inside} changed bytes in its elements, {damage.between} between them"
            found = f"{found}, the first at storage byte {damage.first_offset}"
            yield Wrong("bytes", "unchanged bytes", found, f"input {place}")
        else:
            yield None


def judge_bounds(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check that the call changed no byte of an input's storage before or after the elements of the input."""
    for place, each in enumerate(evidence.inputs):
        if each is None or not each.guarded:
            continue
        wrong, damage = None, each.damage
        if damage and damage.outside:
            at = f"{damage.first_offset} (the input's storage offset is {each.asked.offset})"
            found = f"{damage.outside} changed bytes, the first at storage byte {at}"
            expected = "unchanged bytes outside its elements"
            wrong = Wrong("bytes", expected, found, f"input {place}")
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

#: The clauses for which the calls of :func:`reads` are judged.
READS = ("layout.values", *_EXPANDED)
