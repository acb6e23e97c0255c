"""Checks of the clause dispatch.no_silent_fallback: detects ops that run on the CPU instead of the device, without
relying on what the device reports.

Two kinds of evidence are used. First, ``aten::_to_cpu`` is called only by the boxed CPU fallback
(ATen/native/CPUFallback.cpp), so an event of that name in the profiler inside an op's event shows that the op fell
back. Second, if the dispatcher's table contains no kernel of the device for an op, but a fallback for all ops, then
every call of the op is a fallback. Neither of the two detects work on the host inside a kernel.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch

from conformance.checks.cells import VALUES
from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.script import NotReturned
from devices.descriptor import Descriptor
from opinfo.compare import Wrong
from opinfo.samples import Sample, Traits
from opinfo.torch_private import kernels, key_of, profiled

CLAUSE = "dispatch.no_silent_fallback"


def dense_samples(ctx: OpContext) -> list[Sample]:
    """Returns the samples whose tensors all have the strided layout (torch.strided)."""
    return [s for s in ctx.common if all(t.layout == torch.strided for t in s.tensors)]


def untried(descriptor: Descriptor, op: str, source: object = None) -> str:
    """Returns the reason why no fallback can be detected: the descriptor permits every op to run on the CPU, or
    the device is the CPU. The reason is empty if fallbacks can be detected."""
    if "*" in descriptor.permitted_fallbacks:
        return "by declaration: the descriptor permits every op to run on the CPU"
    if key_of(descriptor.torch_type) == "CPU":
        return "by declaration: the device is the CPU, so it cannot fall back to the CPU"
    return ""


def applies(traits: Traits) -> bool:
    """Returns True for every op that takes a tensor, in every dtype."""
    return traits.dense


def check(ctx: OpContext) -> None:
    """Runs every sample of an op once under the profiler, and one sample also with transposed tensors. The cell
    fails if an op fell back to the CPU that the descriptor does not permit to."""
    with ctx.running(CLAUSE) as record:
        descriptor = ctx.device.descriptor
        key = key_of(descriptor.torch_type)
        listed = sorted(descriptor.permitted_fallbacks)
        permitted = [p for p in listed if fnmatchcase(ctx.subject.id, p)]
        native = bool(permitted)
        given: dict[str, Any] = {"key": key, "permitted": ["*"] if permitted else listed}
        samples = dense_samples(ctx)
        for sample in samples:
            if standalone_checks.run(ctx, CLAUSE, "", stays, sample=sample, **given) and native:
                args, kwargs = sample.call.bind([ctx.place(t.clone()) for t in sample.tensors])
                native = not went(ctx.subject.function, args, kwargs, key)[0]
        wide = [s for s in samples if any(sum(n > 1 for n in t.shape) > 1 for t in s.tensors)]
        for sample in wide[:1] if "strides" in descriptor.capabilities else ():
            standalone_checks.run(ctx, CLAUSE, "", stays_transposed, sample=sample, **given)
        if samples and not (record.checks or record.unsupported or record.untried):
            record.block(VALUES, "every call of the op raised an exception")
        if native and record.checks:
            record.note(
                "the descriptor lists the op in permitted_fallbacks, but the op runs on the device"
            )


def stays(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, key: Any, permitted: Any
) -> Wrong | None:
    args, kwargs = arguments([move(tensor) for tensor in tensors])
    found, error = went(op, args, kwargs, key)
    wrong = sorted(
        n for n in found if not any(fnmatchcase(n[len("aten::") :], p) for p in permitted)
    )
    if wrong:
        expected = "no fallbacks to the CPU except those that the descriptor lists"
        return Wrong("device", expected, ", ".join(wrong))
    if error is not None:
        raise NotReturned("the call raised an exception; other clauses check exceptions") from error
    return None


def stays_transposed(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, key: Any, permitted: Any
) -> Wrong | None:
    """Makes a call with tensors whose first dimension is the innermost in memory. Returns a failure if ops fell back
    to the CPU, as ``stays`` does for contiguous tensors; otherwise None."""

    def transposed(tensor: Any) -> Any:
        if tensor.dim() < 2:
            return move(tensor)
        return move(tensor.transpose(0, -1).contiguous()).transpose(0, -1)

    return stays(op, transposed, back, tensors, arguments, key, permitted)


def went(op: Any, args: Any, kwargs: Any, key: Any) -> Any:
    """Makes a call under the profiler. Returns the names of the ops that fell back to the CPU during the call, and
    the exception that the call raised, or None."""
    names, found = set(), set()
    threads, error = profiled(lambda: op(*args, **kwargs))
    for events in threads:
        inside = [""]
        for event in events:
            kind = str(event.kind())  # torch's type stub wrongly declares an int
            if kind == "push":
                if event.name() == "aten::_to_cpu":
                    found.add(inside[-1])
                names.add(event.name())
                inside.append(event.name())
            elif kind == "pop" and len(inside) > 1:
                inside.pop()
    found.discard("")  # events outside every op
    found.update(name for name in names if only_fallback(name, key))
    return found, error


@cache
def only_fallback(name: Any, key: Any) -> bool:
    """Returns True if the device has a fallback for all ops, and no kernel for any overload of the named op.
    Overloads with ``out=`` are ignored, because they are composed of the other overloads."""
    space, _, packet = name.partition("::")
    if space != "aten" or not hasattr(torch.ops.aten, packet):
        return False
    lines = [
        line
        for overload in getattr(torch.ops.aten, packet).overloads()
        if not overload.endswith("out")
        for line in kernels(name if overload == "default" else f"{name}.{overload}", key)
    ]
    return bool(lines) and all(line.endswith("[backend fallback]") for line in lines)
