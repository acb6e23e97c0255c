"""The check of layout.views: views must share the right memory with the tensor that they are taken from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from conformance.checks.ops.calls import Found, ReferenceParts
from conformance.checks.ops.evidence import (
    Evidence,
    InputMemory,
    OutputFacts,
    WriteThrough,
    may_overlap,
)
from opinfo.compare import Wrong, raised, same_bytes, tensors_of
from opinfo.guarded import differing
from opinfo.reference import OutputSpec, significant


def judge_views(evidence: Evidence, reference: ReferenceParts) -> Found:
    """Check the outputs of an op that declares aliasing. If an output of the reference is a view, the device's output
    must share the storage of the same input and have the reference's storage offset and strides; a write to either
    tensor must change the other. The conj and neg bits must be the CPU's."""
    if evidence.raised is not None or evidence.unjudged is not None:
        return
    found = list(_views(evidence, reference, reference.meta_specs))
    if reference.meta_specs is None or any(found):
        found = list(_views(evidence, reference, reference.specs))
    yield from found


def _views(
    evidence: Evidence, reference: ReferenceParts, specs: Sequence[OutputSpec] | None
) -> Found:
    """Yield the verdicts of :func:`judge_views` for a comparison with one reference, whose outputs are described by
    ``specs``."""
    outputs = evidence.outputs
    if specs is None or len(specs) != len(outputs):
        return
    cpu = tensors_of(reference.value.result)
    for place, (out, spec) in enumerate(zip(outputs, specs)):
        if spec.shape != out.shape:
            continue  # layout.values judges the shapes
        wrong = other_bits(out, cpu[place]) if place < len(cpu) else None
        if wrong is None and spec.alias is not None:
            yield None
            wrong = not_its_view(evidence, place, spec)
            eager = reference.eager_specs if wrong and wrong.kind in ("strides", "offset") else None
            if eager is not None and len(eager) == len(outputs):  # the two references may differ
                wrong = not_its_view(evidence, place, eager[place])
        yield wrong.about(f"output {place}") if wrong is not None else None
        if wrong is not None:
            return


def other_bits(out: OutputFacts, cpu: torch.Tensor) -> Wrong | None:
    """Return a failure if the conj or neg bit of ``out`` differs from the CPU's; otherwise None."""
    if out.conj != cpu.is_conj():
        return Wrong("bits", f"conj bit {cpu.is_conj()}, as on the CPU", out.conj)
    if out.neg != cpu.is_neg():
        return Wrong("bits", f"neg bit {cpu.is_neg()}, as on the CPU", out.neg)
    return None


def not_its_view(evidence: Evidence, place: int, spec: OutputSpec) -> Wrong | None:
    """Return a failure if output ``place`` is not the view of an input that ``spec`` describes; otherwise None."""
    out, alias = evidence.outputs[place], spec.alias or 0
    base = evidence.inputs[alias]
    if base is None:
        return None
    if evidence.shows_storage and out.storage != alias:
        return Wrong("not_aliased", f"the storage of input {spec.alias}", "a different storage")
    if not base.by_values:
        if significant(out.shape, out.stride) != spec.significant:
            return Wrong("strides", f"strides {spec.stride}", out.stride)
        if out.numel and out.offset != spec.offset:
            return Wrong("offset", f"storage offset {spec.offset}", out.offset)
    if not out.numel or out.conj or out.neg or 0 in spec.significant:
        return None
    if may_overlap(spec.shape, spec.stride):
        return None  # writes to a view whose elements overlap are undefined
    write = evidence.writes[place]
    assert write is not None, "no write to an output in the storage of an input was recorded"
    return not_written_through(base, alias, write, spec)


def not_written_through(
    base: InputMemory, alias: int, write: WriteThrough, spec: OutputSpec
) -> Wrong | None:
    """Return a failure if a write to a view or to its base did not change the other tensor; otherwise None. The view
    was filled with 1, and exactly its elements must have changed in the base. Then the base got its known bytes
    again, and the view must contain them."""
    reaches = "a write through the view to change exactly its elements in the base"
    if isinstance(write.error, NotImplementedError):
        return None  # the cells of fill report the missing op
    if write.error is not None:
        return raised(write.error, reaches)
    known, wanted = base.before, base.before.clone()
    usable = len(wanted) // write.dtype.itemsize * write.dtype.itemsize

    def elements(held: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return held[:usable].view(dtype).as_strided(spec.shape, spec.stride, spec.offset)

    elements(wanted, write.dtype).fill_(1)
    after = write.after.get(alias, known)
    if base.by_values:  # a NaN may have changed its bits
        written = not differing(got=after.view(base.dtype), want=wanted.view(base.dtype)).any()
    else:
        written = same_bytes(after, wanted)
    if not written:
        return Wrong("not_aliased", reaches, "different bytes in the base")
    if write.back is None or differing(write.back, elements(known, write.dtype)).any():
        expected = "a write to the base to change the view"
        return Wrong("not_aliased", expected, "different values in the view")
    return None
