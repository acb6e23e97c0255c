"""graphs.every_op: each op that the device declares capturable, captured on blank inputs and replayed on real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from conformance.behaviour.context import Context
from conformance.cells import CellRecord, Failure
from conformance.graphs.capturing import new_graph
from conformance.layout import repro
from conformance.layout.context import ItemContext
from devices.descriptor import Descriptor
from opinfo.catalog import catalogue
from opinfo.reference import on_device
from opinfo.samples import Sample
from opinfo.structure import tensors_of
from opinfo.traits import Traits

CLAUSE = "graphs.every_op"

#: The database's own functions seed with it before they draw; a replay draws from what it is seeded with.
SEED = 42

_JUDGEMENT = """
static = tensors
values = [t.clone() for t in static]
args, kwargs = arguments(static)
if kwargs.get("device") is not None:
    kwargs["device"] = DEVICE
torch.manual_seed(SEED)
want = [t.cpu().clone() for t in flat(op(*args, **kwargs))]
for t in static:
    t.zero_()
torch.accelerator.synchronize()
graph = torch.accelerator.Graph()
try:
    with torch.Stream(DEVICE), graph:
        got = op(*args, **kwargs)
except Exception as exc:
    finish(f"capturing raised {type(exc).__name__}: {exc}")
for t, value in zip(static, values):
    t.copy_(value)
torch.manual_seed(SEED)
torch.accelerator.synchronize()
with torch.Stream(DEVICE):
    graph.replay()
torch.accelerator.synchronize()
finish(wrong(flat(got), want))
"""


def applies(traits: Traits) -> bool:
    """Ops that return tensors whose shapes are known without their inputs' values, as the schemas' tags say."""
    op = catalogue()[traits.op]
    return traits.returns_tensors and traits.reads_strided and not op.unsafe_in_graphs


def untried(descriptor: Descriptor, op: str) -> str:
    """Why the device is not tried with an op: the descriptor declares that graphs cannot hold it."""
    if any(fnmatchcase(op, glob) for glob in descriptor.not_captured):
        return "by declaration: the descriptor says that graphs cannot hold the op"
    return ""


@dataclass(frozen=True, slots=True)
class CapturedScript:
    """Writes the script of a failing capture or replay."""

    values: repro.CallScript

    def __call__(self) -> str:
        text = self.values().removesuffix(repro.JUDGEMENTS["values"])
        return f"{text}SEED = {SEED}\n{_JUDGEMENT}"

    def call(self) -> str:
        """The call in one line."""
        return f"captured: {self.values.call()}"


class Refused(Exception):
    """The op did not run eagerly: other clauses judge that."""


def check(ctx: ItemContext) -> None:
    """Capture and replay each sample."""
    with ctx.running(CLAUSE) as (record,):
        if record is None:
            return
        refusals: list[Exception] = []
        for sample in ctx.samples:
            if not sample.tensors or any(t.layout != torch.strided for t in sample.tensors):
                continue
            try:
                problem = _problem(ctx, sample)
            except Refused as refused:
                refusals.append(refused)
                continue
            record.check(sample.index, "")
            if problem:
                record.fail(_failure(ctx, sample, *problem))
        if not record.checks:
            _tell(record, refusals)


def _tell(record: CellRecord, refusals: Sequence[Exception]) -> None:
    causes = [each.__cause__ for each in refusals]
    for cause in causes:
        if isinstance(cause, NotImplementedError):
            record.refuse(cause)
    if not record.unsupported and causes:
        record.error(f"no sample ran eagerly: {type(causes[0]).__name__}: {causes[0]}")


def _failure(ctx: ItemContext, sample: Sample, message: str, raises: str | None) -> Failure:
    laid = next(iter(ctx.laid_out(sample, frozenset({"contiguous"}))), None)
    script = None
    if laid is not None:
        values = repro.CallScript(ctx, laid, "values", "contiguous", CLAUSE, False, {})
        script = CapturedScript(values)
    return Failure("", message, raises=raises, size=sample.numel, repro=script)


def _problem(ctx: ItemContext, sample: Sample) -> tuple[str, str | None] | None:
    """What is wrong, and the exception's type where it was one; None where all is well. Raises Refused."""
    static = [_placed(ctx, each) for each in sample.tensors]
    args, kwargs = sample.call.bind(static)
    kwargs = on_device(kwargs, ctx.device.torch_device)

    def call() -> Any:
        return ctx.op.function(*args, **kwargs)

    torch.manual_seed(SEED)
    try:
        eager = ctx.fetch(call())
    except Exception as error:
        raise Refused from error
    for each, value in zip(static, sample.tensors, strict=True):
        each.copy_(_placed(ctx, torch.zeros_like(value)))
    ctx.device.synchronise()
    graph = new_graph(Context(ctx.device, CLAUSE))
    stream = torch.Stream(device=ctx.device.torch_device)
    try:
        with stream, graph:
            got = call()
    except Exception as error:
        ctx.device.synchronise()
        return f"capturing it raised {type(error).__name__}: {_first(error)}", type(error).__name__
    for each, value in zip(static, sample.tensors, strict=True):
        each.copy_(_placed(ctx, value))
    torch.manual_seed(SEED)
    ctx.device.synchronise()
    try:
        with stream:
            graph.replay()
        ctx.device.synchronise()
        there = ctx.fetch(got)
    except Exception as error:
        return f"replaying it raised {type(error).__name__}: {_first(error)}", type(error).__name__
    if "values.free" in ctx.traits.families:
        forms = [[(t.dtype, t.shape) for t in tensors_of(each)] for each in (there, eager)]
        return None if forms[0] == forms[1] else (f"expected {forms[1]}, got {forms[0]}", None)
    found = ctx.differs_there(there, eager, sample)
    return (
        None if found is None else (f"the replay differs from eager execution: {found.text}", None)
    )


def _placed(ctx: ItemContext, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own on the device: a static input."""
    made = ctx.place(tensor)
    return made.clone() if made is tensor else made


def _first(error: Exception) -> str:
    root: BaseException = error
    while (
        root.__context__ is not None
    ):  # what happened inside the capture, not what its end made of that
        root = root.__context__
    return (str(root).strip().splitlines() or [""])[0][:300]
