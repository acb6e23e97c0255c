"""An op of the database with a fault in this process: torch's own CPU as a device on which the op misbehaves."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterable, Sequence
from functools import cache

import torch

from conformance.checks.call_hooks import UNWATCHED, Guard
from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from devices import registry
from devices.cell import CallKey, Outcome
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.database import DATABASE
from opinfo.device import Device
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.plan import plan_specs
from opinfo.reference import StrideReference
from opinfo.samples import Sample, probe
from opinfo.subject import Subject
from tests.planting.calls import Effect
from tests.planting.places import Here, in_front_of

#: Outcomes by which a fault is noticed.
NOTICED = frozenset({Outcome.FAIL, Outcome.CRASH, Outcome.HANG})


class Moved:
    """The tensors that were moved to the faulty device, by which it differs from the CPU."""

    def __init__(self) -> None:
        self._moved: dict[int, torch.Tensor] = {}  # kept alive, so that no storage's id comes again

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.clone()
        if there.layout == torch.strided:
            self._moved[there.untyped_storage()._cdata] = there
        return there

    def here(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the storage of one that was moved."""
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._moved


def faulty(op: Subject, effect: Effect, here: Here | None) -> Subject:
    """An entry of the database whose function and in-place variant have a fault. Its reference stays as it is, and it
    still counts as a function that runs on the CPU too: the checks that compare it with itself there are made."""
    made = copy.copy(op)
    variants = {"function": op.function, "inplace": op.inplace}
    vars(made).update(
        {name: f and in_front_of(f, effect, here) for name, f in variants.items()},
    )
    return made


class _Found(BaseException):
    """A check has failed: the rest need not run. No exception that a check takes for the device's."""

    def __init__(self, clauses: tuple[str, ...]) -> None:
        self.clauses = clauses


class _UntilFound(Guard):
    """Ends the item at the first failure."""

    def __init__(self) -> None:
        self._records: Sequence[CellRecord] = ()

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        self._records = records

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        if any(record.failed for record in self._records):
            raise _Found(tuple(record.key.clause for record in self._records if record.failed))
        return True


@cache
def samples_of_every_plan(op: str, dtype: str) -> list[Sample]:
    declared = registry.get("cpu").dtypes
    return samples_of(catalogue()[op], dtype, plan_specs()["quick"].samples, declared)


def clauses_that_fail(
    op: str, dtype: str, checks: Iterable[OpCheck], effect: Effect, *, everywhere: bool = False
) -> tuple[str, ...]:
    """The clauses of the first check that fails with a fault in front of an op, on the samples that every plan has; none if
    the fault is not noticed."""
    about = op, dtype, samples_of_every_plan(op, dtype), checks, effect
    try:
        recorder = run_faulty(*about, _UntilFound(), everywhere=everywhere)
    except _Found as found:
        return found.clauses
    cells = recorder.cells.values()
    return tuple(record.key.clause for record in cells if record.outcome() in NOTICED)


def run_faulty(
    op_id: str,
    dtype: str,
    samples: list[Sample],
    checks: Iterable[OpCheck],
    effect: Effect,
    guard: Guard = UNWATCHED,
    *,
    everywhere: bool = False,
) -> Recorder:
    """The cells of an op with a fault: those of the checks that apply to it. The fault affects calls with tensors that
    were moved to the device, or all calls."""
    op, known, checks, moved = DATABASE.subjects()[op_id], exceptions(), tuple(checks), Moved()
    traits = probe(op, dtype, [s for s in samples if not s.axis], known)
    planned = [
        check.clause
        for check in checks
        if check.applies(traits)
        and known.excluded(check.clause, op_id, dtype, fake_only=True) is None
    ]
    recorder = Recorder(op_id, dtype, planned)
    context = OpContext(
        subject=faulty(op, effect, None if everywhere else moved.here),
        dtype=dtype,
        traits=traits,
        samples=samples,
        device=Device(registry.get("cpu"), torch.device("cpu"), moved.move, identity),
        strides=StrideReference("cpu", None),
        recorder=recorder,
        known=known,
        guard=guard,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_checks(context, checks)
    return recorder
