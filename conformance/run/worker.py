"""The code of a process that runs items: a worker of pytest-xdist, or pytest's own process. The code of the controller
is in session.py."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import msgspec

from conformance.checks.cases.cases import BehaviourCase, OpCheck
from conformance.checks.cases.execution import PATIENCE
from conformance.checks.cases.processes import START_SECONDS, DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.checks.repro.modules import NotCarried
from conformance.checks.scratch import keep_scratch_in
from conformance.contract import load
from conformance.plan.planner import undeclared_clauses, untried_with
from conformance.plan.selection import Item, Machine, named
from conformance.plan.usage import known_layouts
from conformance.run.isolation.watch import CellLimits, DeviceLock, Place, Watch
from conformance.run.item_report import (
    BAD,
    ItemReport,
    Lost,
    LostCells,
    fails_its_item,
    may_run_again,
    runs_of,
    share_out,
    together,
    verdict_of,
    with_rest,
)
from conformance.search.explore.pins import run_pins, run_programs, unknown_here
from conformance.search.minimise.tasks import Bench
from conformance.search.repros import write_repro
from conformance.suites import find_case, planned_op_checks
from devices import registry
from devices.cell import CallKey, CellKey, CellOutcome
from devices.files import cache_root
from devices.manifest import Manifest
from devices.pinned import Pinned, by_item, read_pinned
from devices.verdicts import Matcher
from opinfo.axes import samples_of
from opinfo.axes.acceptance_cache import kept_in
from opinfo.device import Device, first_index, open_device, preflight
from opinfo.exceptions import exceptions
from opinfo.plan import plan_spec
from opinfo.reference import ReferenceCache, StrideReference, forget_dispatches
from opinfo.sample_source import SampleSource
from opinfo.samples import Sample, Traits, choose, probe
from opinfo.subject import Subject

#: Why clauses that are planned for a recorded call are not checked.
_UNSUITED: Final = "the recorded call does not suit the clause"
_RAISES: Final = (
    "the CPU, which is the reference, raises for the recorded call with elements drawn from the recorded range; "
    "record with --values to keep the elements"
)

#: New objects before Python collects cycles: with its default of 700 the collector takes 5 % of a run.
_YOUNG: Final = 5_000


class WorkerOrders(msgspec.Struct, frozen=True):
    """The data that the controller sends to a process that runs items."""

    bench: Bench
    manifest: str | None  # its text: the file need not exist on the worker's machine
    reference_cache: bool
    torch_build: str
    deadline: float | None  # time.time() after which no item starts
    items: tuple[Item, ...]  # in the order in which to run them
    last: tuple[Item, ...]  # expected to crash or hang: they run last, alone
    limits: CellLimits
    machine: Machine  # what every worker's machine must be

    def items_by_id(self) -> dict[str, Item]:
        """Builds a dictionary of the items by their id, in the order in which they run. Call it once: a plan may have
        100,000 items."""
        return named(self.items, self.last)

    @property
    def out_of_time(self) -> bool:
        """True if the time given by ``--max-time`` is over."""
        return self.deadline is not None and time.time() > self.deadline


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task for a worker: run the cells of an item, or only those of ``clauses``. The cells in ``lost``, which have
    already ended a process, are skipped. ``only`` restricts an op to one call. If ``again`` is True, the cells of
    ``clauses`` run although they are in ``lost``, but without the calls that ended a process. If ``told`` has outcomes,
    no cell runs, and the worker only decides which of these outcomes make the item fail."""

    item: str
    clauses: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    only: CallKey | None = None
    told: tuple[CellOutcome, ...] = ()
    again: bool = False


write_orders: Final = msgspec.msgpack.Encoder().encode
read_orders: Final = msgspec.msgpack.Decoder(WorkerOrders).decode


# The items of an op come one after another, and take the same samples.
@lru_cache(maxsize=1)
def _source_samples(source: SampleSource, op: Subject, dtype: str) -> list[Sample]:
    return source.samples(op, dtype)


@lru_cache(maxsize=1)
def _upstream(
    source: SampleSource, op: Subject, dtype: str, count: int
) -> tuple[list[Sample], Traits]:
    """Returns up to ``count`` samples of an op and dtype from a source of samples, and the traits of the op that follow
    from these samples."""
    samples = choose(_source_samples(source, op, dtype), count)
    return samples, probe(op, dtype, samples, exceptions())


@lru_cache(maxsize=1)
def _with_axes(
    source: SampleSource, op: Subject, dtype: str, count: int, declared: frozenset[str], kept: bool
) -> list[Sample]:
    decisions = kept_in(cache_root(), op.id, dtype) if kept else None
    return samples_of(op, dtype, count, declared, _source_samples(source, op, dtype), decisions)


@lru_cache(maxsize=1)
def _manifest(text: str, device: str, path: str | None) -> Manifest:
    """Returns the manifest of a device, parsed from its text."""
    known = {"clause": load().clauses, "layouts": known_layouts(registry.find(device, path))}
    return Manifest.parse(text, None, known)


def manifest_of(orders: WorkerOrders) -> Manifest:
    """Returns the manifest of the run; an empty manifest if the run has none. Raises ConformError if the manifest is
    not valid."""
    if orders.manifest is None:
        return Manifest()
    return _manifest(orders.manifest, orders.bench.device, orders.bench.descriptor)


def prepare(orders: WorkerOrders) -> None:
    """Loads the data that all forks of this process need and for which no device is needed: the op database and the
    manifest. Raises ConformError if the manifest is not valid."""
    orders.bench.source().subjects()
    manifest_of(orders)
    wanted = {clause for item in orders.items for clause in item.clauses}
    for check in planned_op_checks(load()):
        if check.loads is not None and check.clause in wanted:
            check.loads()


class Worker:
    """The worker that runs items. It writes repro scripts into ``results``, or into the folder ``place.scripts`` if
    that is set."""

    def __init__(
        self,
        orders: WorkerOrders,
        place: Place,
        results: Path,
        device: Device | None = None,
        source: SampleSource | None = None,
    ) -> None:
        gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
        self.orders, self.place = orders, place
        self.source = orders.bench.source() if source is None else source
        self.items = orders.items_by_id()
        self.alone = frozenset(named((), orders.last))
        self.deadly: dict[tuple[str, ...], list[str]] = {}
        for each in orders.last:
            self.deadly.setdefault(each.key, []).extend(each.clauses)
        descriptor = registry.find(orders.bench.device, orders.bench.descriptor)
        self.device = device or open_device(descriptor, place.index)
        facts = self.device.descriptor.facts()
        orders.machine.check(Machine.of(facts))
        self.matcher = Matcher(manifest_of(orders).active(facts))
        self.pins = by_item(read_pinned(descriptor.folder))
        self.undeclared = undeclared_clauses(descriptor, load())
        self.folder = place.scripts or results
        keep_scratch_in(self.folder)
        self.watch = Watch(
            place.journal,
            orders.limits,
            # of all indices: cases take several, from 0 up
            DeviceLock(descriptor.name, 0, say=place.say),
            partial(preflight, self.device),
            place.leave,
        )
        self.where = DeviceLocator(device=orders.bench.device, path=orders.bench.descriptor or "")
        self.op_checks = planned_op_checks(load())
        self.spec = plan_spec(orders.bench.plan)
        self.littered = (
            False  # an op has run, or a case has failed, since cycles were last collected
        )

    @property
    def out_of_time(self) -> bool:
        """True if the time given by ``--max-time`` is over."""
        return self.orders.out_of_time

    def run(self, item_id: str) -> tuple[ItemReport, list[str]]:
        """Runs one item. Returns the report of the item, and lines of text about the cells that make the item fail. If
        a cell has ended a process earlier, it is run without the calls that ended the process."""
        lost, item = self.place.lost, self.items[item_id]
        report, lines = self.do(Task(item_id, lost=tuple(lost.all)))
        ended = []
        for cell in item.cells:
            if deaths := lost.deaths_of(cell):
                found = deaths[0].as_outcome
                if may_run_again(deaths):
                    found = with_rest(found, self.run_again(item_id, cell, lost.all))
                ended.append(found)
        # The controller has reported the ends of the processes.
        lines += self._failures(each for each in ended if each.rest is not None)
        return msgspec.structs.replace(report, cells=(*report.cells, *ended)), lines

    def run_again(self, item_id: str, cell: CellKey, lost: Iterable[Lost]) -> CellOutcome:
        """Runs a cell that ended a process once more, without the calls that ended it. Returns the outcome, with the
        result of the cell's other checks."""
        report, _ = self.do(Task(item_id, (cell.clause,), tuple(lost), again=True))
        return report.cells[0]

    def do(self, task: Task) -> tuple[ItemReport, list[str]]:
        """Runs a task. Returns the report of its item, and lines of text about the cells that make the item fail."""
        item_id, item = task.item, self.items[task.item]
        if task.told:
            return ItemReport(), list(self._failures(task.told))
        guilty = LostCells(task.lost).of(item)
        wanted = task.clauses or item.clauses
        skipped = () if task.again else guilty.clauses
        left = item._replace(clauses=[c for c in wanted if c not in skipped])
        if not left.clauses:
            return ItemReport(), []
        cell = left.cells[0]
        case = find_case(cell)
        alone = item_id in self.alone or (case is not None and case.alone)
        run: Callable[[Item], ItemReport] = self._run_op
        if item.is_case:
            run = self._run_lost if case is None else partial(self._run_case, case)
        deadly = self.deadly.get(item.key, ())
        with self.watch.item(
            cell, guilty, alone=alone, elsewhere=deadly, only=task.only, again=task.again
        ):
            began = time.perf_counter()  # after the wait for the device's lock
            report = run(left)
            cells = report.cells if task.again else self._rerun_flaky(left, run, report.cells)
            cells = share_out(cells, time.perf_counter() - began)
        lines = [] if task.again else list(self._failures(cells))  # of no use without the crash
        return msgspec.structs.replace(report, cells=cells), lines

    def _rerun_flaky(
        self, item: Item, run: Callable[[Item], ItemReport], cells: tuple[CellOutcome, ...]
    ) -> tuple[CellOutcome, ...]:
        """Runs the flaky cells of an item again. Returns the outcomes of all cells; the outcome of a flaky cell
        includes its further runs."""
        times = runs_of(self.matcher, item.cells)
        if not times:
            return cells
        runs = {found.cell.clause: [found] for found in cells}
        for turn in range(1, max(times.values())):
            clauses = [clause for clause in item.clauses if times.get(clause, 0) > turn]
            for found in run(item._replace(clauses=clauses)).cells:
                runs[found.cell.clause].append(found)
        return tuple(
            together(of_cell, [verdict_of(self.matcher, found)[0] in BAD for found in of_cell])
            for of_cell in runs.values()
        )

    def _failures(self, cells: Iterable[CellOutcome]) -> Iterator[str]:
        clauses = load().clauses
        for found in cells:
            if fails_its_item(self.matcher, found, clauses[found.cell.clause]):
                verdict, why = verdict_of(self.matcher, found)
                yield f"{verdict} {found.cell}: {found.message or why}"
                if found.repro:
                    yield f"    repro: python {self.folder / found.repro}"

    def _run_case(self, case: BehaviourCase, item: Item) -> ItemReport:
        recorder = Recorder(
            item.unit, item.dtype, item.clauses, self.undeclared, variant=item.variant
        )
        record = recorder.cells[case.clause]
        if self.littered:  # cycles hold tensors, which would be freed, and counted, during a case
            gc.collect()
            self.littered = False
        # What runs in a subprocess has limits of its own, there.
        first_time = self.device.descriptor.first_time
        each = first_time(case.seconds) + first_time(START_SECONDS)
        at_least = len(PATIENCE) * each if case.own_process else 0.0
        self.watch.begin((case.clause,), [record], at_least)
        with first_index(self.device) as device:  # cases name indices, from 0 up
            run_case(case, record, device, self.where)
            self.watch.end()
            run_programs(case, record, device, self.where, self._pins(item), self.watch)
        self.littered = record.troubles > 0  # cycles of exceptions hold tensors, too
        return ItemReport(self._outcomes(item, recorder))

    def _run_lost(self, item: Item) -> ItemReport:
        """Returns the report for a case that this version of the suite does not have, or for an op that this version of
        torch does not have. Such an item is planned only because of a pinned example."""
        return ItemReport(self._outcomes(item, unknown_here(item, self._pins(item))))

    def _pins(self, item: Item) -> Sequence[Pinned]:
        return () if item.variant else self.pins.get((item.unit, item.dtype), ())

    def _run_op(self, item: Item) -> ItemReport:
        op_id, dtype, clauses = item.unit, item.dtype, item.clauses
        self.littered = True
        op, known = self.source.subjects().get(op_id), exceptions()
        if op is None:
            return self._run_lost(item)
        declared_by = self.device.descriptor
        withheld = untried_with([op_id], declared_by, load(), clauses, self.source)[op_id]
        recorder = Recorder(op_id, dtype, clauses, self.undeclared, withheld, variant=item.variant)
        pins = self._pins(item)
        if not (pins or any(map(recorder.get, clauses))):
            return ItemReport(self._outcomes(item, recorder))  # nothing is tried
        count, declared = self.orders.bench.samples, frozenset(self.device.descriptor.dtypes)
        samples, traits = _upstream(self.source, op, dtype, count)
        if traits.recorded and not self._suits(traits, recorder):
            return ItemReport(self._outcomes(item, recorder))
        if any(check.axes and recorder.get(check.clause) for check in self.op_checks):
            # The samples of a recording are not those of the cached decisions.
            kept = self.orders.reference_cache and not self.spec.recorded
            samples = _with_axes(self.source, op, dtype, count, declared, kept)
        cache = None
        if self.orders.reference_cache:
            kind = self.device.descriptor.torch_type
            cache = ReferenceCache(cache_root(), self.orders.torch_build, kind, f"{op_id}-{dtype}")
        strides = StrideReference(self.device.descriptor.torch_type, cache)
        about = (op, dtype, traits, samples, self.device, strides)
        context = OpContext(*about, recorder, known, self.watch)
        run_checks(context, self.op_checks, self._budget)
        if traits.recorded:
            for record in recorder.cells.values():
                record.pass_over_unless_checked(_UNSUITED)
        if pins:
            run_pins(context, pins)
        forget_dispatches()
        if cache is not None:
            cache.save()
        if strides.mistaken:  # from now on, none is taken for this op
            self.place.say(
                f"{op_id} in {dtype} runs again: an expected stride that comes with this package "
                "differs from the stride that this torch computes"
            )
            return self._run_op(item)
        told = strides.asked, strides.missed, strides.shipped
        return ItemReport(self._outcomes(item, recorder), *told)

    def _suits(self, traits: Traits, recorder: Recorder) -> bool:
        """Drops the clauses that do not apply to a recorded call, which was planned from its shapes alone. Returns False if
        no clause is left."""
        why = _UNSUITED if traits.returns else _RAISES
        for check in self.op_checks:
            suits = traits.returns and check.applies(traits)
            if not suits and recorder.get(check.clause) is not None:
                recorder.drop(check.clause, why)
        return any(map(recorder.get, recorder.cells))

    def _budget(self, check: OpCheck) -> int | None:
        return check.most_samples(more=self.spec.more_cases, whole=self.spec.whole)

    def _outcomes(self, item: Item, recorder: Recorder) -> tuple[CellOutcome, ...]:
        return tuple(self._outcome(recorder.cells[clause]) for clause in item.clauses)

    def _outcome(self, record: CellRecord) -> CellOutcome:
        """Returns the outcome of a cell, and writes the repro script of a failed cell."""
        found, shown = self.watch.noted(record.to_outcome()), record.smallest
        if shown is None or shown.repro is None:
            return found
        try:
            script = shown.script()
        except Exception as error:  # a fault of the suite, for which no outcome is lost
            what = "" if isinstance(error, NotCarried) else f"{type(error).__name__}: "
            without = f"no repro script could be written: {what}{error}"
            return _with_note(found, without)
        path = write_repro(self.folder, found.cell, script, rest=found.rest is not None)
        # The controller writes it again if this folder is on another machine.
        sent = script if self.place.scripts is not None else None
        if found.rest is not None:
            rest = msgspec.structs.replace(found.rest, repro=path)
            return msgspec.structs.replace(found, rest=rest, script=sent)
        return msgspec.structs.replace(found, repro=path, script=sent)


def _with_note(found: CellOutcome, note: str) -> CellOutcome:
    """Returns the outcome with a further note. For a cell that ended its process, the note is added to the result of
    its other checks."""
    if found.rest is not None:
        joined = "; ".join(filter(None, (found.rest.note, note)))
        return msgspec.structs.replace(found, rest=msgspec.structs.replace(found.rest, note=joined))
    return msgspec.structs.replace(found, note="; ".join(filter(None, (found.note, note))))
