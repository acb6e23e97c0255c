"""Items and cases on the simulated device, run in this process as a worker runs them: once clean, then with mutants.

A cell is *refused* if the gate would refuse it: its outcome differs from what the device's manifest expects.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.plan.planner import untried_with
from conformance.run.item_report import BAD, verdict_of
from conformance.suites import planned_op_checks
from devices import registry
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

#: The environment variable that carries ``--not-gating`` to the processes that try mutants.
NOT_GATING: Final = "MUTATION_NOT_GATING"


@cache
def device() -> Device:
    """The simulated device, opened."""
    return open_device(registry.get("simulated"))


@cache
def matcher() -> Matcher:
    """What the device's manifest expects of each cell."""
    descriptor = device().descriptor
    assert descriptor.expectations is not None
    manifest = Manifest.load(descriptor.expectations)
    return Matcher(manifest.active(descriptor.facts()))


@cache
def not_gating() -> frozenset[str]:
    """The ids of the clauses that are reported without gating: provisional ones, and those that ``--not-gating`` names."""
    whole, globs = contract.load(), os.environ.get(NOT_GATING, "")
    named = whole.select(globs.split(",")) if globs else ()
    provisional = (clause for clause in whole.clauses.values() if clause.provisional)
    return frozenset(clause.id for clause in (*provisional, *named))


class Subject:
    """An op and dtype, with what all its runs share."""

    def __init__(self, op: str, dtype: str, run: bool = True) -> None:
        forget_geometries()
        self.op, self.dtype = catalogue()[op], dtype
        declared = device().descriptor.dtypes
        self.samples = samples_of(self.op, dtype, plan_spec("quick").samples, declared)
        self.traits = probe(self.op, dtype, self.samples, exceptions())
        self.cache = ReferenceCache(cache_root(), "mutation", "simulated", f"{op}-{dtype}")
        self.clean = self.run() if run else {}

    def run(self) -> dict[str, bool]:
        """For each clause that applies to the op: whether its cell is refused."""
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
            clause: verdict_of(matcher(), record.to_outcome())[0] in BAD
            for clause, record in context.recorder.cells.items()
        }

    def context(self, clauses: Sequence[str]) -> OpContext:
        """The context that the checks of these clauses share in one run."""
        name, dtype = self.op.id, self.dtype
        withheld = untried_with([name], device().descriptor, contract.load(), clauses)[name]
        recorder = Recorder(name, dtype, clauses, {}, withheld)
        strides = StrideReference("simulated", self.cache)
        about = (self.op, dtype, self.traits, self.samples, device(), strides, recorder)
        return OpContext(*about, exceptions())

    def noticed(self) -> list[str]:
        """The clauses whose cells are refused now and were not refused in the clean run."""
        return [clause for clause, bad in self.run().items() if bad and not self.clean[clause]]


@lru_cache(maxsize=6)
def subject(op: str, dtype: str) -> Subject:
    return Subject(op, dtype)


def dtypes_of(op: str, plan: str) -> list[str]:
    """The dtypes in which a plan runs an op; float32 comes first."""
    mine = device().descriptor.dtypes_of(op) & catalogue()[op].dtypes
    taken = [d for d in plan_spec(plan).dtypes if d in mine]
    return sorted(taken, key=lambda d: (d != "float32", taken.index(d)))


def is_refused(case: BehaviourCase) -> bool:
    """Run a case in this process; whether its cell is refused."""
    recorder = Recorder(case.name, "", [case.clause])
    record = recorder.cells[case.clause]
    run_case(case, record, device(), DeviceLocator(device="simulated"))
    return verdict_of(matcher(), record.to_outcome())[0] in BAD
