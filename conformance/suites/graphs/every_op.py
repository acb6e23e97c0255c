"""Check of the clause graphs.every_op: each op that the device declares capturable is captured on inputs of
zeros and replayed on the real inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import OwnGraph, chain, general_graph
from conformance.checks.cells import VALUES
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Call, differs
from conformance.checks.ops.context import ItemContext
from conformance.checks.ops.failures import spoken
from devices.descriptor import Descriptor
from opinfo.catalog import catalogue
from opinfo.compare import Wrong, raised, replace_tensors, tensors_of
from opinfo.samples import Traits

CLAUSE = "graphs.every_op"

#: The seed set before each eager call and before each replay, so that both draw the same random numbers.
#: Functions of torch's database use the same seed.
SEED = 42


def applies(traits: Traits) -> bool:
    """Returns True for ops that return dense tensors whose shapes do not depend on the values of the inputs.
    The decision is based on the tags in the schemas of the ops."""
    op = catalogue()[traits.op]
    return (
        traits.returns_tensors and traits.dense and traits.reads_strided and not op.unsafe_in_graphs
    )


def untried(descriptor: Descriptor, op: str) -> str:
    """Returns the reason why an op is not tried on the device: the descriptor declares that graphs cannot
    contain the op. The reason is empty if the op is tried."""
    if any(fnmatchcase(op, glob) for glob in descriptor.not_captured):
        return "by declaration: the descriptor says that graphs cannot contain the op"
    return ""


def check(ctx: ItemContext) -> None:
    own = ctx.device.descriptor.functions.get("graph", "")
    with ctx.running(CLAUSE) as record:
        refusals: list[Exception] = []
        for sample in ctx.common:
            if not sample.tensors or any(t.layout != torch.strided for t in sample.tensors):
                continue
            reference = Reference(ctx, ctx.plain(sample))
            replayed = ctx.judge({CLAUSE: judge_replay}, called_in_graph, (SEED, own), reference)
            if replayed is not None and replayed.refused is not None:
                refusals.append(replayed.refused)
        if not record.checks:
            for refusal in refusals:
                if isinstance(refusal, NotImplementedError):
                    record.refuse(refusal)
            if not record.unsupported and refusals:
                name, text = spoken(refusals[0])
                record.block(
                    VALUES,
                    f"every eager call of the op raised, the first with {name}: {text}",
                    (name, text),
                )


@dataclass(slots=True)
class Replayed:
    """The results of a call that ran eagerly and then in a graph. ``refused`` is the exception of the eager
    call, which other clauses check. ``error`` is the exception that was raised while the call was captured or
    replayed, and ``stage`` says which of the two."""

    refused: Exception | None = None
    eager: Any = None
    read: Any = None
    error: BaseException | None = None
    stage: str = ""


def called_in_graph(call: Call, seed: int, own: str) -> Replayed:
    """Runs a call eagerly, captures the call on inputs of zeros, and replays the graph on the real inputs."""
    made = Replayed()
    moved = map(call.move, call.values)
    static = [
        there.clone() if there is value else there for there, value in zip(moved, call.values)
    ]
    args, kwargs = call.arguments(static, call.device)
    torch.manual_seed(seed)
    try:
        made.eager = replace_tensors(call.function(*args, **kwargs), call.back)
    except Exception as error:
        made.refused = error
        return made
    for each, value in zip(static, call.values):
        each.copy_(call.move(torch.zeros_like(value)))
    torch.accelerator.synchronize()
    graph, stream = make_graph(own, call.device), torch.Stream(device=call.device)
    try:
        made.stage = "while the call was captured"
        with stream, graph:
            got = call.function(*args, **kwargs)
    except Exception as error:
        torch.accelerator.synchronize()
        made.error = chain(error)[-1]
        end_capture(own, call.device)
        return made
    for each, value in zip(static, call.values):
        each.copy_(call.move(value))
    torch.manual_seed(seed)
    torch.accelerator.synchronize()
    try:
        made.stage = "while the graph was replayed"
        with stream:
            graph.replay()
        torch.accelerator.synchronize()
        made.read = replace_tensors(got, call.back)
    except Exception as error:
        made.error = chain(error)[-1]
    return made


def end_capture(own: str, device: torch.device) -> None:
    """Captures a simple op after a capture that failed. Until a capture succeeds, a device may refuse to draw
    random numbers, and the next call could fail because of that. The clause ``graphs.recovery`` checks that
    behaviour."""
    x = torch.zeros(1, device=device)
    torch.accelerator.synchronize()
    with suppress(Exception), torch.Stream(device=device), make_graph(own, device):
        x.add_(1)
    torch.accelerator.synchronize()


def make_graph(own: str, device: torch.device) -> Any:
    """Returns a ``torch.accelerator.Graph``. If torch has no graphs for the device, returns a graph of the
    class named ``own`` in the device's module."""
    general = general_graph(not own)
    if general is None:
        return OwnGraph(attrgetter(own)(getattr(torch, device.type))(False))
    return general


def judge_replay(evidence: Replayed, reference: Any) -> Iterator[Wrong | None]:
    """Compares the result of the replay with the result of the eager call, and yields the fault or None."""
    if evidence.refused is not None:
        return
    if evidence.error is not None:
        yield raised(evidence.error, subject=evidence.stage)
        return
    if reference.free:
        want, got = (
            [(t.dtype, t.shape) for t in tensors_of(each)]
            for each in (evidence.eager, evidence.read)
        )
        yield None if got == want else Wrong("shape", want, got, "the replay")
        return
    wrong = differs(evidence.read, evidence.eager, reference)
    yield wrong.about("the replay compared with eager execution") if wrong is not None else None
