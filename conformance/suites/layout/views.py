"""The check of layout.views: views must share the right memory with the tensor that they are taken from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from conformance.checks.ops.calls import Answer, Call, Found, strided
from opinfo.compare import Wrong, raised, tensors_of
from opinfo.device import ByValues, Guarded, differing
from opinfo.reference import OutputSpec, significant
from opinfo.torch_private import storage_id


def judge_views(call: Call, answer: Answer, reference: Any) -> Found:
    """Check the outputs of an op that declares aliasing. If an output of the reference is a view, the device's output
    must share the storage of the same input and have the reference's storage offset and strides; a write to either
    tensor must change the other. The conj and neg bits must be the CPU's."""
    if answer.raised is not None:
        return
    found = list(_views(call, answer, reference, reference.meta_specs))
    if reference.meta_specs is None or any(found):
        found = list(_views(call, answer, reference, reference.specs))
    yield from found


def _views(call: Call, answer: Answer, reference: Any, specs: Sequence[OutputSpec] | None) -> Found:
    """Yield the verdicts of :func:`judge_views` for a comparison with one reference, whose outputs are described by
    ``specs``."""
    outputs = strided(answer.result)
    if specs is None or len(specs) != len(outputs):
        return
    cpu = tensors_of(reference.value.result)
    for place, (out, spec) in enumerate(zip(outputs, specs)):
        if spec.shape != tuple(out.shape):
            continue  # layout.values judges the shapes
        wrong = other_bits(out, cpu[place]) if place < len(cpu) else None
        if wrong is None and spec.alias is not None:
            yield None
            wrong = not_its_view(call, out, spec)
            eager = reference.eager_specs if wrong and wrong.kind in ("strides", "offset") else None
            if eager is not None and len(eager) == len(outputs):  # the two references may differ
                wrong = not_its_view(call, out, eager[place])
        yield wrong.about(f"output {place}") if wrong is not None else None
        if wrong is not None:
            return


def other_bits(out: torch.Tensor, cpu: torch.Tensor) -> Wrong | None:
    """Return a failure if the conj or neg bit of ``out`` differs from the CPU's; otherwise None."""
    if out.is_conj() != cpu.is_conj():
        return Wrong("bits", f"conj bit {cpu.is_conj()}, as on the CPU", out.is_conj())
    if out.is_neg() != cpu.is_neg():
        return Wrong("bits", f"neg bit {cpu.is_neg()}, as on the CPU", out.is_neg())
    return None


def not_its_view(call: Call, out: torch.Tensor, spec: OutputSpec) -> Wrong | None:
    """Return a failure if an output is not the view of an input that ``spec`` describes; otherwise None."""
    base = call.inputs[spec.alias or 0]
    if not isinstance(base, Guarded):
        return None
    if call.storage and storage_id(out) != storage_id(base.base):
        return Wrong("not_aliased", f"the storage of input {spec.alias}", "a different storage")
    if not isinstance(base, ByValues):
        if significant(out.shape, out.stride()) != spec.significant:
            return Wrong("strides", f"strides {spec.stride}", tuple(out.stride()))
        if out.numel() and out.storage_offset() != spec.offset:
            return Wrong("offset", f"storage offset {spec.offset}", out.storage_offset())
    if out.numel() == 0 or out.is_conj() or out.is_neg() or 0 in spec.significant:
        return None
    if may_overlap(spec.shape, spec.stride):
        return None  # writes to a view whose elements overlap are undefined
    return not_written_through(call, base, out, spec)


def not_written_through(
    call: Call, base: Guarded, out: torch.Tensor, spec: OutputSpec
) -> Wrong | None:
    """Return a failure if a write to a view or to its base does not change the other tensor; otherwise None. First the
    view is filled with 1, and exactly its elements must change in the base. Then the base is restored, and the view
    must contain the restored values."""
    reaches = "a write through the view to change exactly the view's elements in the base"
    known, wanted = base.before, base.before.clone()
    usable = len(wanted) // out.element_size() * out.element_size()

    def elements(held: torch.Tensor) -> torch.Tensor:
        return held[:usable].view(out.dtype).as_strided(spec.shape, spec.stride, spec.offset)

    elements(wanted).fill_(1)
    try:
        with torch.no_grad():
            out.fill_(1)
    except NotImplementedError:
        return None  # the cells of fill report the missing op
    except RuntimeError as error:
        return raised(error, reaches)
    base.before = wanted
    written = base.intact(call.back)
    base.before = known
    base.restore(call.move)
    if not written:
        return Wrong("not_aliased", reaches, "wrong bytes in the base after the write")
    if differing(call.back(out), elements(known)).any():
        expected = "a write to the base to change the view"
        return Wrong("not_aliased", expected, "wrong values in the view after the write")
    return None


def may_overlap(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return True if two elements of a view with the given shape and strides may have the same address. The result is
    False only if each stride exceeds the largest offset that the dimensions of smaller strides can give, so True is
    also returned for a few views whose elements do not overlap."""
    reach = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape) if n > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False
