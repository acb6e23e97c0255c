"""The items of an op on the simulated device, run in process as a worker runs them: once clean, then with mutants."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache, lru_cache

from conformance import contract
from conformance.checks.cases.cases import Case
from conformance.checks.cases.context import Where
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import ItemContext, run_checks
from conformance.plan.planner import untried_with
from conformance.run.outcomes import BAD, verdict_of
from conformance.suites import planned_op_checks
from devices import registry
from devices.cell import Outcome
from devices.files import cache_root
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.device import Device, open_device
from opinfo.exceptions import exceptions
from opinfo.layouts import forget_geometries
from opinfo.plan import plan_spec
from opinfo.reference import ReferenceCache, StrideReference, forget_dispatches
from opinfo.samples import probe

#: Outcomes by which a run says that something is wrong.
RED = frozenset({Outcome.FAIL, Outcome.ERROR, Outcome.BLOCKED})


@cache
def device() -> Device:
    """The simulated device, open."""
    return open_device(registry.get("simulated"))


@cache
def matcher() -> Matcher:
    """The manifest of the device: what it expects, it may have without being told."""
    descriptor = device().descriptor
    assert descriptor.expectations is not None
    manifest = Manifest.load(descriptor.expectations)
    return Matcher(manifest.active(descriptor.facts()))


class Subject:
    """An op and dtype with what its runs share."""

    def __init__(self, op: str, dtype: str, run: bool = True) -> None:
        forget_geometries()
        self.op, self.dtype = catalogue()[op], dtype
        declared = device().descriptor.dtypes
        self.samples = samples_of(self.op, dtype, plan_spec("quick").samples, declared)
        self.traits = probe(self.op, dtype, self.samples, exceptions())
        self.cache = ReferenceCache(cache_root(), "mutation", "simulated", f"{op}-{dtype}")
        self.clean = self.run() if run else {}

    def run(self) -> dict[str, bool]:
        """Whether the gate refuses the cell, of every clause that applies."""
        known, checks = exceptions(), planned_op_checks(contract.load())
        name, dtype = self.op.id, self.dtype
        clauses = [
            check.clause
            for check in checks
            if check.applies(self.traits)
            and known.excluded(check.clause, name, dtype, fake_only=False) is None
        ]
        context = self.context(clauses)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_checks(context, checks)
        forget_dispatches()
        return {
            clause: verdict_of(matcher(), record.told())[0] in BAD
            for clause, record in context.recorder.cells.items()
        }

    def context(self, clauses: Sequence[str]) -> ItemContext:
        """What the checks of these clauses share in one run."""
        name, dtype = self.op.id, self.dtype
        withheld = untried_with([name], device().descriptor, contract.load(), clauses)[name]
        recorder = Recorder(name, dtype, clauses, {}, withheld)
        strides = StrideReference("simulated", self.cache)
        about = (self.op, dtype, self.traits, self.samples, device(), strides, recorder)
        return ItemContext(*about, exceptions())

    def noticed(self) -> list[str]:
        """The clauses that the gate refuses now, and did not in the clean run."""
        return [clause for clause, bad in self.run().items() if bad and not self.clean[clause]]


@lru_cache(maxsize=6)
def subject(op: str, dtype: str) -> Subject:
    return Subject(op, dtype)


def dtypes_of(op: str, plan: str) -> list[str]:
    """The dtypes in which a plan runs an op, float32 first."""
    mine = device().descriptor.dtypes_of(op) & catalogue()[op].dtypes
    taken = [d for d in plan_spec(plan).dtypes if d in mine]
    return sorted(taken, key=lambda d: (d != "float32", taken.index(d)))


def outcome_of(case: Case, on: Device) -> Outcome:
    """The outcome of one case, run in this process."""
    recorder = Recorder(case.name, "", [case.clause])
    run_case(case, recorder.cells[case.clause], on, Where(device="simulated"))
    return recorder.cells[case.clause].outcome()
