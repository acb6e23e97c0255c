"""Measures, on the CPU, which aten overloads the suite's checks call; ``python -m conformance.coverage`` writes the
result to ``calls.json``."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

import torch

from conformance.checks.cases.cases import BehaviourCase, OpCheck
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.contract import load
from conformance.coverage.call_map import MOST_REACHING, CallMap, judged_by
from conformance.coverage.dataflow import returns_or_writes_tensors
from conformance.coverage.measuring import Noted
from conformance.coverage.observer import Observer
from conformance.plan.planner import make_plan, torch_build, undeclared_clauses
from conformance.plan.selection import Item, items_of
from conformance.suites import find_case, planned_op_checks, suite_of
from devices import registry
from devices.cell import Outcome
from devices.files import cache_root
from opinfo.axes import samples_of
from opinfo.axes.acceptance_cache import kept_in
from opinfo.database import DATABASE
from opinfo.device import Device, limit_threads, open_device
from opinfo.exceptions import exceptions
from opinfo.layouts import covering_set
from opinfo.plan import plan_spec
from opinfo.reference import ReferenceCache, StrideReference, forget_dispatches
from opinfo.samples import choose, probe

PLAN: Final = "quick"
_DEVICE: Final = "cpu"
#: Suites whose cases compile programs, start processes or fill memory. What they call, others call too.
_LEFT_OUT: Final = frozenset({"compile", "distributed", "profiler", "size"})


@dataclass(slots=True)
class Measured:
    """The measured calls of some items: ``judged`` maps a cell to the overloads that it judges, ``reached`` maps an
    overload to some cells that call it, and ``cases`` lists the cells that are cases. ``units`` lists the measured ops,
    and the measured cases of clauses that can judge overloads, whether they judge one or not."""

    judged: dict[str, set[str]] = field(default_factory=dict)
    reached: dict[str, list[str]] = field(default_factory=dict)
    cases: set[str] = field(default_factory=set)
    units: set[str] = field(default_factory=set)

    def judge(self, cell: str, overloads: Collection[str]) -> None:
        self.judged.setdefault(cell, set()).update(overloads)

    def reach(self, overload: str, cell: str) -> None:
        cells = self.reached.setdefault(overload, [])
        if len(cells) < MOST_REACHING and cell not in cells:
            cells.append(cell)


class Measurement:
    """Measures the calls of items of the plan. ``found`` has the calls of all items measured so far."""

    def __init__(self) -> None:
        limit_threads()
        self._contract, self._spec = load(), plan_spec(PLAN)
        self._descriptor = registry.get(_DEVICE)
        self._device: Device = open_device(self._descriptor)
        self._checks = planned_op_checks(self._contract)
        self._undeclared = undeclared_clauses(self._descriptor, self._contract)
        self._cases, self._targets = covering_set().cases[:1], covering_set().targets[:1]
        self._observer = Observer()
        self.found = Measured()

    def items(self) -> list[Item]:
        """Returns the items of the plan to measure: the ops with the clauses that judge values, and the cases that can
        run in this process."""
        plan = make_plan(self._spec, self._descriptor, self._contract, cache_root())
        judging = judged_by().clauses
        cells = [
            cell
            for cell in plan.cells
            if cell.clause not in self._undeclared
            and (cell.clause in judging if cell.dtype else suite_of(cell.clause) not in _LEFT_OUT)
        ]
        items = [item for item in items_of(cells) if not item.is_case or _is_plain(item)]
        return [*items, *self._of_other_dtypes({item.unit for item in items})]

    def _of_other_dtypes(self, planned: Collection[str]) -> Iterator[Item]:
        """Yields an item for each op that does not support float32, such as ops on integers, because only larger plans
        contain these."""
        checks = [check for check in self._checks if check.clause in judged_by().clauses]
        for op in DATABASE.subjects().values():
            dtype = next((each for each in ("int64", "complex64", "bool") if each in op.dtypes), "")
            if op.id in planned or "float32" in op.dtypes or not dtype:
                continue
            samples = choose(DATABASE.samples(op, dtype), self._spec.samples)
            traits = probe(op, dtype, samples, exceptions())
            applying = [
                check.clause for check in checks if traits.returns and check.applies(traits)
            ]
            if applying:
                yield Item(op.id, dtype, applying)

    def measure(self, item: Item) -> None:
        """Runs an item and adds the calls that it makes to the calls measured so far."""
        if (unit := unit_of(item)) is not None:
            self.found.units.add(unit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if item.is_case:
                for cell in item.cells:
                    if (case := find_case(cell)) is not None:
                        self._measure_case(case)
            else:
                self._measure_op(item)

    def _measure_case(self, case: BehaviourCase) -> None:
        name = f"{case.clause}::{case.cell.unit}"
        with self._observer.on():
            passed = self._passes(case)
            calls = Counter(call.overload for call in self._observer.take())
        taken = set()
        for overload, times in sorted(calls.items()):
            named = passed and judged_by().takes(case.clause, overload)
            if named and self._decides(case, overload, times):
                taken.add(overload)
            elif overload.startswith("aten::"):
                self.found.reach(overload, name)
        if taken:
            self.found.cases.add(name)
            self.found.judge(name, taken)

    def _passes(self, case: BehaviourCase) -> bool:
        recorder = Recorder(
            case.cell.unit, case.cell.dtype, (case.clause,), {}, variant=case.cell.variant
        )
        record = recorder.cells[case.clause]
        run_case(case, record, self._device, DeviceLocator(_DEVICE, ""))
        return record.outcome() is Outcome.PASS

    def _decides(self, case: BehaviourCase, overload: str, times: int) -> bool:
        """Returns True if the verdict of a passing case depends on the results of an overload: the case fails once the
        results of all ``times`` calls, of the first call or of the last call are replaced by wrong values. This test is
        needed because on the CPU the case may compute its expected values with the same overload, and the same fault on
        both sides goes unnoticed. A result that is a number cannot be replaced; the verdict is assumed to depend on
        it."""
        if not returns_or_writes_tensors(overload):
            return True
        for which in (-1, 0, times - 1):
            with self._observer.on(), self._observer.spoiling(overload, which):
                if not self._passes(case):
                    return True
        return False

    def _measure_op(self, item: Item) -> None:
        op, dtype, spec = DATABASE.subjects()[item.unit], item.dtype, self._spec
        drawn = DATABASE.samples(op, dtype)
        samples = choose(drawn, spec.samples)
        traits, known = probe(op, dtype, samples, exceptions()), exceptions()
        recorder = Recorder(op.id, dtype, item.clauses, {}, variant=item.variant)
        if any(check.axes and recorder.get(check.clause) for check in self._checks):
            declared = frozenset(self._descriptor.dtypes)
            decisions = kept_in(cache_root(), op.id, dtype)
            samples = samples_of(op, dtype, spec.samples, declared, drawn, decisions)
        cache = ReferenceCache(cache_root(), torch_build(), _DEVICE, f"{op.id}-{dtype}")
        noted, strides = Noted(self._observer), StrideReference(_DEVICE, cache)
        about = (op, dtype, traits, samples, self._device, strides, recorder, known)
        # An overload depends on the arguments, not on the layout: the first layout of inputs and targets is enough.
        context = OpContext(*about, noted, noted.mode, self._cases, self._targets)
        with self._observer.on():
            run_checks(context, self._checks, self._budget)
        forget_dispatches()
        # Of a result whose values are free, the judges compare only the shape and the dtype.
        compared = () if "values.free" in traits.families else judged_by().clauses
        for clause, overloads in noted.judged.items():
            name = f"{clause}::{op.id}"
            if clause in compared and overloads:
                self.found.judge(name, overloads)
            else:
                noted.reached.update(overloads)
        for overload in noted.reached:
            self.found.reach(overload, f"{item.clauses[0]}::{op.id}")

    def _budget(self, check: OpCheck) -> int | None:
        return check.most_samples(more=self._spec.more_cases, whole=self._spec.whole)

    def add(self, part: Measured) -> None:
        """Adds the calls of items that another process measured."""
        for cell, overloads in part.judged.items():
            self.found.judge(cell, overloads)
        for overload, cells in part.reached.items():
            for cell in cells:
                self.found.reach(overload, cell)
        self.found.cases |= part.cases
        self.found.units |= part.units

    def result(self) -> CallMap:
        """Returns the map."""
        judged = {cell: tuple(sorted(each)) for cell, each in self.found.judged.items()}
        known = {overload for each in judged.values() for overload in each}
        reached = {n: tuple(each) for n, each in self.found.reached.items() if n not in known}
        units = tuple(sorted(self.found.units))
        return CallMap(str(torch.__version__).partition("+")[0], PLAN, units, judged, reached)


def unit_of(item: Item) -> str | None:
    """Returns the name under which an item is listed in ``CallMap.units``: the op, or the clause and the case. Returns
    None for a case whose clause judges no overload."""
    if not item.is_case:
        return item.unit
    clauses = {clause for entry in judged_by().cases for clause in entry.clauses}
    return next((f"{c}::{item.unit}" for c in item.clauses if c in clauses), None)


def _is_plain(item: Item) -> bool:
    """Returns True if the item is a case that runs in this process."""
    cases = [find_case(cell) for cell in item.cells]
    return all(
        case is not None and not (case.own_process or case.ranks or case.alone or case.memory)
        for case in cases
    )


def measured(
    units: Collection[str] = (),
    say: Callable[[str], None] = lambda line: None,
    processes: int = 1,
) -> Measurement:
    """Measures the calls of the ops and cases with the given names (all if ``units`` is empty) in ``processes``
    processes, and returns the Measurement with the results. ``say`` is called with lines about the progress."""
    found = Measurement()
    items = [item for item in found.items() if not units or item.unit in units]
    if processes == 1:
        for item in items:
            found.measure(item)
        return found
    # Not forked: torch has threads by now.
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin_worker) as pool:
        for number, part in enumerate(pool.map(_measure_in_worker, items, chunksize=4), 1):
            found.add(part)
            if number % 100 == 0:
                say(f"{number:,} of {len(items):,} items")
    return found


_worker: Measurement


def _begin_worker() -> None:
    global _worker
    _worker = Measurement()


def _measure_in_worker(item: Item) -> Measured:
    _worker.found = Measured()
    _worker.measure(item)
    return _worker.found
