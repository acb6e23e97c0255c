"""Checks of the clause layout.determinism: if deterministic algorithms are switched on, repeated calls must be
bit-equal or raise RuntimeError
(https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html).

A kernel that reads uninitialised memory may give equal results by chance if the allocator returns memory with the same
bytes both times. On the CPU, ``fresh_memory`` therefore fills newly allocated memory with different bytes for the two
calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import (
    Found,
    Invocation,
    Judge,
    ReferenceParts,
    Unjudged,
    differs,
)
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import Evidence, attempt, collect_evidence
from opinfo.compare import Wrong, bit_equal, tensors_of
from opinfo.guarded import Guarded
from opinfo.memory import fresh_memory
from opinfo.samples import Sample

DETERMINISM = "layout.determinism"

#: Layouts that take different paths through a kernel; more layouts would only repeat these paths.
_LAYOUTS = frozenset(
    {
        "contiguous",
        "transposed+step_outer+offset",
        "channels_last",
        "contiguous+step_inner+offset",
    }
)


def determinism(ctx: OpContext) -> None:
    with ctx.running(DETERMINISM), deterministic():  # once for all calls, because switching is slow
        for sample in ctx.common:
            for laid in ctx.laid_out(sample, _LAYOUTS):
                reference = Reference(ctx, laid)
                mutable = bool(reference.mutable)
                judges = _SAME_BITS_AND_VALUES if _has_index(sample) else _SAME_BITS
                ctx.judge(judges, called_twice, (mutable,), reference)
                if mutable:
                    ctx.rebuild(sample)
            ctx.release(sample)


def _has_index(sample: Sample) -> bool:
    """Return True if one tensor of the sample may be an index of another. Ops that take an index have other kernels for
    deterministic algorithms, so their values are compared too."""
    whole = [each.dtype in (torch.int64, torch.int32) for each in sample.tensors]
    return any(whole) and not all(whole)


@contextmanager
def deterministic() -> Iterator[None]:
    """Switch deterministic algorithms on and the filling of uninitialised memory off for a ``with`` block, and restore
    both settings afterwards."""
    settings: Any = torch.utils.deterministic  # a module whose class makes this a property
    before, fill = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    if before and not fill:
        yield
        return
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor with NaN would hide memory that a kernel left unwritten, which this clause looks for.
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill


def called_twice(call: Invocation, mutable: bool) -> list[Evidence]:
    """Make the call twice and return the evidence of both. On the CPU, newly allocated memory is filled with different
    bytes for the two calls. If the op updates its inputs (``mutable``), their known bytes are restored after each
    call."""
    found = []
    for byte in (0, 1):
        with deterministic(), fresh_memory(call.device, byte):
            result, error = attempt(call)
        found.append(collect_evidence(call, result, error))
        if mutable:
            for each in call.inputs:
                if isinstance(each, Guarded):
                    each.lay_again()
    return found


def judge_same_bits(evidence: Sequence[Evidence], reference: ReferenceParts) -> Found:
    """Check that two equal calls gave the same bits or both raised."""
    first, second = evidence
    if (error := first.unjudged or second.unjudged) is not None:
        yield Unjudged(error)
        return
    kind = "not_deterministic"
    if first.raised is not None and second.raised is not None:
        yield None  # a permitted refusal, or a fault that layout.values reports
        return
    if first.raised is not None or second.raised is not None:
        which = "first" if first.raised is not None else "second"
        expected = "two equal calls to return the same bits, or both to raise an exception"
        yield Wrong(kind, expected, f"an exception from the {which} call only")
        return
    pairs = list(zip(tensors_of(first.read), tensors_of(second.read)))
    for place, (one, other) in enumerate(pairs):
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        if not bit_equal(one, other):
            expected = "the same bits from two equal calls"
            yield Wrong(kind, expected, "different bits", f"output {place}")
            return
    if not pairs and first.read != second.read and first.read == first.read:
        expected = f"{first.read!r} from both calls"
        yield Wrong(kind, expected, f"{second.read!r} from the second call")
        return
    yield None


def judge_same_bits_and_values(evidence: Sequence[Evidence], reference: ReferenceParts) -> Found:
    """Check that two equal calls gave the same bits or both raised, and that the result has the CPU's values."""
    yield from judge_same_bits(evidence, reference)
    first, want = evidence[0], reference.value
    if not (reference.free or want.raises or first.raised or first.unjudged):
        yield differs(first.read, want.result, reference, lambda: reference.exact.result)


_SAME_BITS: dict[str, Judge] = {DETERMINISM: judge_same_bits}
_SAME_BITS_AND_VALUES: dict[str, Judge] = {DETERMINISM: judge_same_bits_and_values}
