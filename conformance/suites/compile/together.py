"""Compiles several calls of an op together in one graph, which takes a fraction of the time of compiling each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.checks.behaviour.compiler import Compiler, compiling
from conformance.checks.cells import CellRecord
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.calls import Invocation, Judge, Laid
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.modes import EAGER
from conformance.suites.compile.compiled_calls import (
    Answer,
    Compared,
    Pair,
    answered,
    answered_together,
    compiled,
    eager_of,
    in_rows,
    together,
    varied,
)
from devices.cell import CallKey
from opinfo.compare import Wrong, raised

#: The name under which the call of a graph with several calls is known, in place of a layout.
TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Part:
    """One call of an op: the function, the tensors in one layout, and the positions of the inputs whose gradients
    are computed. ``name`` is the name of the layout, followed by the form of the call (such as in-place) if it is
    not the ordinary one."""

    name: str
    function: Callable[..., Any]
    laid: Laid
    places: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """The result of compiling several calls together: the calls that must still be compiled alone, and the first
    difference from eager execution, if any."""

    alone: list[Part]
    wrong: Wrong | None = None
    at: str = ""


def compile_together(
    ctx: OpContext,
    record: CellRecord,
    parts: Sequence[Part],
    backend: str,
    judge: Judge,
    reference: Callable[[Laid], Reference],
) -> Outcome:
    """Compile the calls in one graph and compare each with its eager call. If all are equal, the checks are counted,
    and only the calls whose eager call raises must still be compiled alone. Otherwise all must be compiled alone."""
    first = parts[0].laid.sample
    if not ctx.makes or not ctx.guard.call(CallKey(first.index, TOGETHER), (record.key.clause,)):
        return Outcome([*parts])
    trials = [Trial(part, ctx.call(part.laid, part.function, EAGER)) for part in parts]
    try:
        with compiling(backend) as compiler:
            _compile([each for each in trials if each.eager_returns()], compiler)
    except Exception as error:  # a compiler may raise any type
        return Outcome([*parts], raised(error))
    counts = []
    for each in trials:
        verdicts = list(judge(each.found, reference(each.part.laid))) if each.found.pairs else []
        for wrong in verdicts:
            if isinstance(wrong, Wrong):
                return Outcome([*parts], wrong, each.part.name)
        counts.append(len(verdicts))
    for part, count in zip(parts, counts):
        if count:
            record.check(part.laid.sample.index, part.name, count)
    return Outcome([part for part, count in zip(parts, counts) if not count])


class Trial:
    """A call with the result of its eager execution, and the evidence of its compiled calls."""

    def __init__(self, part: Part, call: Invocation) -> None:
        self.part, self.call = part, call
        self.eager = eager_of(call)
        self.values: Sequence[torch.Tensor] = call.values
        self.restrided = False
        self.want = self._answered(call.values, restrided=False)
        if self.want.during:  # the op refuses these gradients, so none are compared
            self.part = replace(part, places=())
            self.want = self._answered(call.values, restrided=False)
        self.found = Compared()

    def _answered(self, values: Sequence[torch.Tensor], *, restrided: bool) -> Answer:
        return answered(self.call, self.eager, values, self.part.places, restrided)

    def eager_returns(self) -> bool:
        return self.want.raised is None

    def take_other_values(self) -> None:
        """Makes the eager call again with other values and with other strides of the cotangents (the gradients
        passed to backward). If the op does not accept the other values, the same values are used."""
        self.values, self.restrided = list(map(varied, self.call.values)), True
        self.want = self._answered(self.values, restrided=True)
        if self.want.raised is not None:
            self.values = self.call.values
            self.want = self._answered(self.values, restrided=True)
        if self.want.raised is not None:
            self.restrided = False
            self.want = self._answered(self.values, restrided=False)


def _compile(trials: Sequence[Trial], compiler: Compiler) -> None:
    """Makes all calls twice in one compiled function, and stores the evidence of each call in its trial."""
    if not trials:
        return
    function = compiled(together([each.eager for each in trials]), compiler.backend)
    for again in (False, True):
        if again:
            for each in trials:
                each.take_other_values()
        before = compiler.graphs
        given = [(each.call, each.values, each.part.places, each.restrided) for each in trials]
        answers = answered_together(given, function)
        made = compiler.graphs - before
        for each, got in zip(trials, answers):
            for pair in each.found.pairs:
                pair.made.read_later(each.call)
            rows = not again and in_rows(each.call)
            each.found.pairs.append(Pair(each.want, got, made, again, row_major=rows))
