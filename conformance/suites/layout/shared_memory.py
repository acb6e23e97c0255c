"""Checks of recorded calls whose tensors share memory in the recorded program: the query, key and value of an
attention in one projection, or an operand that is passed twice. The calls are repeated with tensors that share
memory in the same way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Found, Invocation, Judge, ReferenceParts, differs
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import copied
from opinfo.compare import Wrong, raised, replace_tensors
from opinfo.guarded import identity, strided_view
from opinfo.layouts import SHARED, Geometry
from opinfo.shared_memory import blocks_of

VALUES, INPUTS, BOUNDS = "layout.values", "layout.inputs_intact", "layout.bounds"


@dataclass(frozen=True, slots=True)
class SharedCall:
    """The result of a call on tensors that share memory, and the state of the memory after the call. ``values`` are
    the elements of each tensor after the call. ``inside`` and ``outside`` have an entry for each storage: the
    position of the first byte that the call changed although it belongs to no tensor that the call may write to; -1
    if there is none. Bytes in ``inside`` belong to other tensors of the call, bytes in ``outside`` to none."""

    read: Any = None
    raised: Exception | None = None
    values: tuple[torch.Tensor, ...] = ()
    inside: tuple[int, ...] = ()
    outside: tuple[int, ...] = ()


def shared_memory(ctx: OpContext) -> None:
    """Make the recorded call with tensors that share memory as in the recorded program, and judge the result and the
    memory."""
    with ctx.running(*_JUDGES):
        for sample in ctx.common:
            if sample.storages is None or sample.geometries is None or not ctx.device.lays_out:
                continue
            laid = ctx.lay(sample, SHARED, sample.geometries)
            mutable = tuple(sorted(ctx.mutable_inputs(sample)))
            given = (sample.geometries, sample.storages, mutable)
            reference = Reference(ctx, laid)
            ctx.judge(_JUDGES, called_sharing, given, reference, layout=SHARED.id)
            if mutable:
                ctx.rebuild(sample)


def called_sharing(
    call: Invocation,
    geometries: Sequence[Geometry],
    storages: Sequence[int],
    mutable: Collection[int],
) -> SharedCall:
    """Make the call on tensors that share memory: ``storages`` has the number of the storage of each tensor,
    ``geometries`` the position of each tensor in its storage, and ``mutable`` the positions of the tensors that the
    call may write to. Return the result and the state of the memory after the call."""
    before = blocks_of(call.values, geometries, storages)
    bases = [call.move(each.clone()) for each in before]
    about = [(value.dtype, geometry) for value, geometry in zip(call.values, geometries)]
    tensors = [
        strided_view(bases[number], *its) for number, its in zip(storages, about, strict=True)
    ]
    args, kwargs = call.arguments(tensors, call.device)
    try:
        result = call.function(*args, **kwargs)
        call.settle(result)
        read = replace_tensors(result, call.back)
        after = [call.back(each) for each in bases]
    except Exception as error:  # a kernel may raise any type; the judges judge it
        return SharedCall(raised=error)
    read = copied(read) if call.back is identity else read
    left = tuple(strided_view(after[n], *its).clone() for n, its in zip(storages, about))
    inside, outside = [], []
    for number, (old, new) in enumerate(zip(before, after)):
        written, others = torch.zeros_like(old), torch.zeros_like(old)
        for place, (dtype, geometry) in enumerate(about):
            if storages[place] == number:
                marks = written if place in mutable else others
                mark_bytes(marks, dtype.itemsize, geometry)
        changed = (old != new) & (written == 0)
        inside.append(first_of(changed & (others != 0)))
        outside.append(first_of(changed & (others == 0)))
    return SharedCall(read, None, left, tuple(inside), tuple(outside))


def mark_bytes(marks: torch.Tensor, itemsize: int, geometry: Geometry) -> None:
    """Set to 1 the bytes that belong to a tensor's elements. ``marks`` has a byte for each byte of the storage in
    which the tensor has the given geometry."""
    start = marks.view(-1, itemsize)
    shape, stride = (*geometry.shape, itemsize), (*(n * itemsize for n in geometry.stride), 1)
    places = torch.arange(start.numel()).as_strided(shape, stride, geometry.offset * itemsize)
    marks[places.reshape(-1)] = 1


def first_of(mask: torch.Tensor) -> int:
    """Return the index of the first element that is True; -1 if none is."""
    found = mask.nonzero()
    return int(found[0]) if len(found) else -1


def judge_shared_values(evidence: SharedCall, reference: ReferenceParts) -> Found:
    """Check that the result, and each input that the op updates, have the values that the CPU gives for tensors that
    share no memory."""
    want = reference.value
    if evidence.raised is not None:
        expected = "no exception, as on the CPU"
        yield None if want.raises is not None else raised(evidence.raised, expected)
    elif want.raises is not None:
        yield Wrong("not_raised", f"{raised(want.raises).found}, as on the CPU", "a result")
    elif not reference.free:
        yield differs(evidence.read, want.result, reference, lambda: reference.exact.result)
        for place in sorted(reference.mutable):
            exact = partial(list_of, reference, place)
            wrong = differs([evidence.values[place]], [want.after[place]], reference, exact)
            yield wrong.about(f"input {place} after the call") if wrong is not None else None


def list_of(reference: ReferenceParts, place: int) -> list[torch.Tensor]:
    """Return a list with the value of input ``place`` after the call in the float64 reference; an empty list if the
    reference has no such input."""
    return list(reference.exact.after)[place : place + 1]


def judge_shared_inputs(evidence: SharedCall, reference: ReferenceParts) -> Found:
    """Check that the call changed no element of a tensor that it does not write to."""
    return _changed(evidence.inside, "an element of an input that the call only reads")


def judge_shared_bounds(evidence: SharedCall, reference: ReferenceParts) -> Found:
    """Check that the call changed no byte of the storages that belongs to no tensor."""
    return _changed(evidence.outside, "the byte belongs to no element of any input")


def _changed(first: Sequence[int], where: str) -> Found:
    for number, byte in enumerate(first):
        found = f"byte {byte} has changed: {where}"
        yield Wrong("bytes", "unchanged bytes", found, f"storage {number}") if byte >= 0 else None


_JUDGES: dict[str, Judge] = {
    VALUES: judge_shared_values,
    INPUTS: judge_shared_inputs,
    BOUNDS: judge_shared_bounds,
}
