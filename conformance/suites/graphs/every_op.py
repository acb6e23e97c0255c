"""graphs.every_op: each op that the device declares capturable, captured on blank inputs and replayed on real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

import torch

from conformance.checks.cells import VALUES
from conformance.checks.ops.calls import Call, differs
from conformance.checks.ops.context import ItemContext, Reference
from conformance.checks.ops.failures import spoken
from conformance.suites.graphs.capturing import OwnGraph, chain, general_graph
from devices.descriptor import Descriptor
from opinfo.catalog import catalogue
from opinfo.compare import Wrong, raised, replace_tensors, tensors_of
from opinfo.samples import Traits

CLAUSE = "graphs.every_op"

#: The database's own functions seed with it before they draw; a replay draws from what it is seeded with.
SEED = 42


def applies(traits: Traits) -> bool:
    """Ops that return tensors whose shapes are known without their inputs' values, as the schemas' tags say."""
    op = catalogue()[traits.op]
    return (
        traits.returns_tensors and traits.dense and traits.reads_strided and not op.unsafe_in_graphs
    )


def untried(descriptor: Descriptor, op: str) -> str:
    """Why the device is not tried with an op: the descriptor declares that graphs cannot hold it."""
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
            answer = ctx.judge({CLAUSE: judge_replay}, called_in_graph, (SEED, own), reference)
            if answer is not None and answer.refused is not None:
                refusals.append(answer.refused)
        if not record.checks:
            for refusal in refusals:
                if isinstance(refusal, NotImplementedError):
                    record.refuse(refusal)
            if not record.unsupported and refusals:
                name, text = spoken(refusals[0])
                record.block(VALUES, f"no sample ran eagerly: {name}: {text}", (name, text))


@dataclass(slots=True)
class Replayed:
    """What became of a call, run eagerly and then in a graph. ``refused`` is why it did not run eagerly: other
    clauses judge that. ``error`` is what was raised while it was captured or replayed."""

    refused: Exception | None = None
    eager: Any = None
    read: Any = None
    error: BaseException | None = None
    stage: str = ""


def called_in_graph(call: Call, seed: int, own: str) -> Replayed:
    """Run the call eagerly, capture it on inputs of zeros, and replay it on the real ones."""
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
        made.stage = "while it was captured"
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
        made.stage = "while it was replayed"
        with stream:
            graph.replay()
        torch.accelerator.synchronize()
        made.read = replace_tensors(got, call.back)
    except Exception as error:
        made.error = chain(error)[-1]
    return made


def end_capture(own: str, device: torch.device) -> None:
    """After a capture that failed, make one that succeeds. Until then, a device may refuse to draw random numbers
    (``graphs.recovery`` judges that), and the next call is not to blame."""
    x = torch.zeros(1, device=device)
    torch.accelerator.synchronize()
    with suppress(Exception), torch.Stream(device=device), make_graph(own, device):
        x.add_(1)
    torch.accelerator.synchronize()


def make_graph(own: str, device: torch.device) -> Any:
    """``torch.accelerator.Graph``; where it does not serve the device, the class of this name in the device's own
    module."""
    general = general_graph(not own)
    if general is None:
        return OwnGraph(attrgetter(own)(getattr(torch, device.type))(False))
    return general


def judge_replay(call: Call, answer: Replayed, reference: Any) -> Iterator[Wrong | None]:
    """A replay gives what the call gives eagerly."""
    if answer.refused is not None:
        return
    if answer.error is not None:
        yield raised(answer.error, subject=answer.stage)
        return
    if reference.free:
        want, got = (
            [(t.dtype, t.shape) for t in tensors_of(each)] for each in (answer.eager, answer.read)
        )
        yield None if got == want else Wrong("shape", want, got, "the replay")
        return
    wrong = differs(answer.read, answer.eager, reference)
    yield wrong.about("the replay against eager execution") if wrong is not None else None
