"""Check of the clause graphs.every_op: each op that the device declares capturable is captured on inputs of
zeros and replayed on the real inputs."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch

from conformance.checks.cells import VALUES
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import ReferenceParts, differs
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.failures import spoken
from conformance.checks.ops.modes import (
    BesideEager,
    Mode,
    NotReplayed,
    called_beside_eager,
    replayed,
)
from devices.descriptor import Descriptor
from opinfo.compare import Wrong, raised, tensors_of
from opinfo.samples import Traits

CLAUSE = "graphs.every_op"

#: The seed set before each eager call and before each replay, so that both draw the same random numbers.
#: Functions of torch's database use the same seed.
SEED = 42


def applies(traits: Traits) -> bool:
    """Returns True for ops that return dense tensors whose shapes do not depend on the values of the inputs.
    The decision is based on the tags in the schemas of the ops."""
    capturable = not traits.subject.unsafe_in_graphs
    return traits.returns_tensors and traits.dense and traits.reads_strided and capturable


def untried(descriptor: Descriptor, op: str, source: object = None) -> str:
    """Returns the reason why an op is not tried on the device: the descriptor declares that graphs cannot
    contain the op. The reason is empty if the op is tried."""
    if any(fnmatchcase(op, glob) for glob in descriptor.not_captured):
        return "by declaration: the descriptor says that graphs cannot contain the op"
    return ""


def check(ctx: OpContext) -> None:
    own = ctx.device.descriptor.functions.get("graph", "")
    mode = Mode("replayed", replayed, {"own": own})
    with ctx.running(CLAUSE) as record:
        refusals: list[Exception] = []
        for sample in ctx.common:
            if not sample.tensors or any(t.layout != torch.strided for t in sample.tensors):
                continue
            given = (called_beside_eager, (SEED,), Reference(ctx, ctx.laid_contiguous(sample)))
            found = ctx.judge({CLAUSE: judge_replay}, *given, mode=mode)
            if found is not None and found.eager.raised is not None:
                refusals.append(found.eager.raised)
        if not record.checks:
            for refusal in refusals:
                if isinstance(refusal, NotImplementedError):
                    record.refuse(refusal)
            if not record.unsupported and refusals:
                name, text = spoken(refusals[0])
                record.block(
                    VALUES,
                    f"every eager call of the op raised an exception; the first was {name}: {text}",
                    (name, text),
                )


def judge_replay(evidence: BesideEager, reference: ReferenceParts) -> Iterator[Wrong | None]:
    """Compares the result of the replay with the result of the eager call. Yields the fault, or None if there is
    none."""
    if evidence.made is None or evidence.eager.unjudged is not None:
        return
    error = evidence.made.raised or evidence.made.unjudged
    if isinstance(error, NotReplayed):
        yield raised(error.__cause__ or error, subject=error.stage)
        return
    if error is not None:
        yield raised(error, subject="while the result of the replay was read")
        return
    want, got = evidence.eager.read, evidence.made.read
    if reference.free:
        form, other = ([(t.dtype, t.shape) for t in tensors_of(each)] for each in (want, got))
        yield None if form == other else Wrong("shape", form, other, "the replay")
        return
    wrong = differs(got, want, reference)
    yield wrong.about("the replay compared with eager execution") if wrong is not None else None
