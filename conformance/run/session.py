"""The part of a run that happens in the process that the user started. The code prepares the run, collects the reports
of the workers, determines the verdict on each cell, and writes the results folder.

The code of the processes that run items is in worker.py.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch

from conformance.checks.scratch import delete_scratch
from conformance.contract import Contract, load
from conformance.contract.bugs import bugs
from conformance.contract.levels import stated
from conformance.onboarding.questions import Question, ask
from conformance.plan import planner, selection, usage
from conformance.plan.options import Request
from conformance.plan.selection import Item, Machine, item_of, items_of
from conformance.recordings.fidelity import fidelity_of
from conformance.recordings.opening import OpenedRecording
from conformance.recordings.outcomes import judge_calls, keep_recording, lines_of
from conformance.run import progress
from conformance.run.cpu_failures import CPU, reason_on_cpu
from conformance.run.device_survey import surveyed
from conformance.run.fork_client import ForkServer
from conformance.run.isolation.controller import Controller, Watchdog
from conformance.run.isolation.watch import CellLimits, limits_for
from conformance.run.item_report import (
    ItemReport,
    Lost,
    LostCells,
    fails_its_item,
    may_run_again,
    result_of,
    verdict_of,
)
from conformance.run.progress import Begun, Done, Finished, Identity, Pace, Planning, Progress
from conformance.run.worker import WorkerOrders
from conformance.search.explore.exploration import drawing_cells, explore
from conformance.search.minimise.tasks import Bench
from conformance.search.repros import Unfinished, with_examples, with_repros, write_repro
from conformance.suites import SEARCHED, suite_of
from conformance.version import VERSION
from devices.cell import CellKey, CellOutcome, Outcome, Verdict
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.files import cache_root
from devices.manifest import ExpectedOutcome
from devices.verdicts import Matcher
from opinfo.database import DATABASE
from opinfo.device import Device, Survey, is_foreign, open_device
from opinfo.plan import Plan, plan_spec
from opinfo.samples import SEED
from reports import model
from reports.failures import write_failures
from reports.folder import RECORD_FILE
from reports.gate import GateResult, gate, number
from reports.model import CellResult, PlanDocument, Provenance, by_declaration
from reports.replayed_calls import write_calls
from reports.run import write_run
from reports.weights import use_of

_RED: Final = frozenset(Outcome) - {Outcome.PASS, Outcome.NOT_RUN}
_DEADLY: Final = (ExpectedOutcome.CRASH, ExpectedOutcome.HANG)

Say = Callable[[str], None]


@dataclass
class Session:
    """The state of a run in the process that the user started: the plan, the selected cells and their outcomes so
    far."""

    request: Request
    descriptor: Descriptor
    survey: Survey
    device: (
        Device | None
    )  # open in this process only if items run here, or no other process could ask it
    contract: Contract
    plan: Plan
    selected: list[CellKey]
    expectations: Path | None
    matcher: Matcher
    folder: Path
    started: datetime
    progress: Progress
    lost: LostCells
    facts: Mapping[str, str]
    failed_before: frozenset[CellKey] = frozenset()  # unexpectedly, in an earlier run
    outcomes: dict[CellKey, CellOutcome] = field(default_factory=dict)
    asked: int = 0  # expected strides that were asked for
    missed: int = 0  # of these, computed in this run
    shipped: int = 0  # of these, from the file that comes with this package
    collected: set[CellKey] | None = None  # of the items that pytest kept; None: not known yet
    hosts: set[str] = field(default_factory=set)  # other machines with workers
    cut_short: str = ""  # why the run ended early, if it did
    recording: OpenedRecording | None = None  # what the run replays
    too_large: frozenset[str] = frozenset()  # the recorded calls that --max-elements leaves out
    deadline: float | None = None  # time.time() after which nothing starts
    played: tuple[str, ...] = ()  # the outcomes of the recorded calls
    explored: str = ""  # what --explore tried and found
    failing: set[CellKey] = field(default_factory=set)  # cells so far that fail unexpectedly
    ended: set[CellKey] = field(default_factory=set)  # that ended a process, not reported since
    _watched: Watchdog | None = None

    @cached_property
    def limits(self) -> CellLimits:
        """The time limits that apply to the cells in this run."""
        device, given = self.descriptor, self.request.cell_timeout
        return limits_for(self.plan.spec.name, device.time_scale, device.first_use, given)

    # -- gather

    def gather(self, report: ItemReport, worker: str) -> None:
        """Adds the report of a worker about an item to the outcomes, and writes it to the progress file for
        ``--resume``."""
        for found in report.cells:
            if found.script is not None:  # of a worker on another machine
                rest = found.rest is not None
                write_repro(self.folder, found.cell, found.script, rest=rest)
        cells = tuple(msgspec.structs.replace(found, script=None) for found in report.cells)
        report = msgspec.structs.replace(report, cells=cells)
        self._take(report, worker)
        self.progress.add(Finished(worker, report))

    def _take(self, report: ItemReport, worker: str) -> None:
        red = (each for each in report.cells if each.outcome in _RED and not each.declared)
        clauses = self.contract.clauses
        # A cell may be reported again, if its worker died before its item had ended.
        self.failing.difference_update(each.cell for each in report.cells)
        self.failing.update(
            each.cell
            for each in red
            if fails_its_item(self.matcher, each, clauses[each.cell.clause])
        )
        self.ended.difference_update(each.cell for each in report.cells)
        self.asked += report.asked
        self.missed += report.missed
        self.shipped += report.shipped
        for found in report.cells:
            self.outcomes[found.cell] = msgspec.structs.replace(found, worker=worker)

    def lose(self, lost: Lost, worker: str) -> None:
        """Records the outcome of a cell that ended its process. If several calls of the cell end a process, the first
        of them counts. The cell is not done until its other checks have run, see ``is_done``."""
        self.progress.add(lost)
        if lost.cell not in self.outcomes:
            self._take(ItemReport((lost.as_outcome,)), worker)
        self.ended.add(lost.cell)

    def is_done(self, cell: CellKey) -> bool:
        """Returns True if a cell has its final outcome. A cell that ended a process runs once more without the calls
        that did, if that is possible."""
        waits = cell in self.ended and may_run_again(self.lost.deaths_of(cell))
        return cell in self.outcomes and not waits

    def pace(self) -> Pace:
        """Returns a new Pace, which estimates the remaining time of the run from now on."""
        return Pace(len(self.selected), len(self.outcomes), time.monotonic())

    def unexpected(self, lost: Lost) -> bool:
        """Returns True if a cell crashed or hung although the manifest does not expect that."""
        return verdict_of(self.matcher, lost.as_outcome)[0] is not Verdict.EXPECTED

    def resume(self, before: Done) -> None:
        """Adds the outcomes of the interrupted run that is resumed."""
        for lost in reversed(before.lost):
            self._take(ItemReport((lost.as_outcome,)), "")
        self.ended.update(lost.cell for lost in before.lost)
        # A report about the item of a lost cell is later than the loss, and has more.
        for finished in before.items:
            self._take(finished.report, finished.worker)

    def record_items(self, items: Iterable[Item]) -> None:
        """Records the items that pytest collected, after its own options such as ``-k`` have deselected items."""
        found = {cell for item in items for cell in item.cells}
        self.collected = found | (self.collected or set())

    # -- workers

    def orders(self) -> WorkerOrders:
        """Returns the data that the controller sends to each worker: the items in the order in which they run, the
        manifest and the time limits."""
        expected = {c: e for c in self.selected if (e := self.matcher.expect(c)) is not None}
        deadly = {c for c, e in expected.items() if e.outcome in _DEADLY}
        left = [cell for cell in self.selected if not self.is_done(cell)]
        items = items_of(cell for cell in left if cell not in deadly)
        if self.deadline is not None:
            items = selection.informative_first(
                items, self.failed_before, expected, self.plan.families
            )
        return WorkerOrders(
            bench=self.bench,
            manifest=self.expectations.read_text("utf-8-sig") if self.expectations else None,
            reference_cache=not self.request.no_reference_cache,
            torch_build=planner.torch_build(),
            deadline=self.deadline,
            items=tuple(items),
            last=tuple(Item.of(cell, cell.clause) for cell in left if cell in deadly),
            limits=self.limits,
            machine=Machine.of(self.facts),
        )

    def waits_for(self) -> str:
        """Returns a text about the processes for which an interrupted run must wait, such as "2 workers"."""
        count = len(self._watched.watched) if self._watched is not None else 0
        return number(count, "worker") if count else "the running call"

    def kill_workers(self) -> None:
        """Kills all workers of the run."""
        if self._watched is not None:
            self._watched.kill_all()

    def controller(self, orders: WorkerOrders, say: Say) -> Controller:
        """Creates the controller that watches the workers of the run."""
        found = Controller(
            folder=self.folder / "journal",
            results=self.folder,
            items=orders.items_by_id(),
            limits=self.limits,
            indices=range(max(1, self.descriptor.device_count())),
            judge=self.unexpected,
            is_done=self.is_done,
            record=self.lose,
            lost=self.lost,
            on_host=self.hosts.add,
            say=say,
        )
        self._watched = found.watchdog
        return found

    # -- judge and write

    def look_ahead(self) -> None:
        """Computes data that ``finish`` needs, while the workers still import torch."""
        _ = self._untried, self._levels
        importlib.import_module("hypothesis")  # its pytest plugin imports it as it ends

    @cached_property
    def _untried(self) -> Mapping[str, Mapping[str, str]]:
        ops = {cell.unit: None for cell in self.plan.cells if cell.dtype}
        clauses = {cell.clause for cell in self.selected}
        return planner.untried(self.descriptor, self.contract, ops, clauses, self.bench.source())

    def _never_tried(self) -> dict[str, dict[str, str]]:
        """Returns the reasons why cells were not tried on the device, by clause and then by op or case. Some reasons
        are known from planning, others were found in the run."""
        found = {clause: dict(of_op) for clause, of_op in self._untried.items()}
        undeclared = planner.undeclared_clauses(self.descriptor, self.contract)
        for cell, outcome in self.outcomes.items():
            if outcome.declared and not undeclared.get(cell.clause):
                found.setdefault(cell.clause, {}).setdefault(cell.unit, outcome.message)
        return found

    @cached_property
    def _levels(self) -> list[dict[str, Any]]:
        return [] if self.partial else stated(self.plan.cells)  # no partial run has a level

    @property
    def partial(self) -> bool:
        """True if an option or a path restricts the run to a part of the plan."""
        return bool(self.request.selection)

    def finish(self, junitxml: Path | None, *, stopped: bool, say: Say) -> GateResult:
        """Determines the verdict on every cell, minimises new failures, writes the results folder, and returns the
        gate's result.

        ``stopped`` is True if ``-x`` or ``--maxfail`` ended the run; the items that did not run then count as
        deselected. ``say`` prints a line before each step that takes time.
        """
        self.progress.begin()  # a resumed run may have nothing left to run
        wanted = self._counted_cells(stopped=stopped)
        done = (self.outcomes[c] for c in wanted if c in self.outcomes)
        results = {found.cell: result_of(self.matcher, found) for found in done}
        if any(result.outcome is not Outcome.PASS for result in results.values()):
            results = self._explained(results, say)
        manifest = self.expectations.read_bytes() if self.expectations else b""
        run = write_run(
            self.folder,
            self._plan_document(wanted),
            results,
            self._provenance(manifest),
            junitxml=junitxml,
            redact=self.request.redact,
            manifest=manifest,
        )
        result = gate(run, partial=self.partial or self.request.shard is not None)
        self.clean_up(complete=not self.cut_short and all(c in results for c in wanted))
        write_failures(result)
        if self.recording is not None:
            self.played = self._write_calls(results, self.recording)
        if not self.cut_short:
            self.explored = self._explore(wanted, say)
        return result

    def _write_calls(
        self, results: Mapping[CellKey, CellResult], recording: OpenedRecording
    ) -> tuple[str, ...]:
        """Writes the outcomes of the recorded calls and a copy of the recording into the results folder. Returns the
        lines about the calls for the end of the run."""
        source = recording.source
        left_out = dict(source.left_out)
        for excluded in self.plan.excluded:
            left_out |= {call: excluded.reason for call, _ in excluded.cells}
        ended = {cell.unit for cell in self._counted_cells(stopped=False) if cell not in results}
        judged = judge_calls(
            source.recording,
            results,
            left_out,
            source.of_any_values(),
            too_large=self.too_large,
            unfinished=ended,
        )
        if self.request.names_cells:
            selected = {cell.unit for cell in self.selected} | self.too_large
            judged = [each for each in judged if each.call in selected]
        write_calls(self.folder, judged, source.recording.header.command or recording.given)
        keep_recording(self.folder, recording.path)
        made = {cell.unit for cell in results}
        fidelity = fidelity_of(source, made, self.deadline)
        lines = lines_of(judged, self.request.max_elements)
        return (*lines, *source.recording.header.lacks, str(fidelity))

    def _explained(self, results: dict[CellKey, CellResult], say: Say) -> dict[CellKey, CellResult]:
        """Returns the results with minimal examples, repro scripts and known bugs added. Ctrl-C ends only this step;
        the results are then written with the examples and scripts that exist so far."""
        try:
            if not self.cut_short:
                about = (self.bench, self.plan.families, self.folder, self.request.minimise, say)
                results = with_examples(results, *about, self.deadline)
            results = with_repros(results, self._unfinished(results), self.bench, self.folder)
        except KeyboardInterrupt:
            say("interrupted: the results are written, but some repro scripts are missing")
        return {cell: _with_context(result, self.plan.device) for cell, result in results.items()}

    def _plan_document(self, wanted: Iterable[CellKey]) -> PlanDocument:
        """Returns the plan as it is stored in the results, so that reports can be made without torch and without the
        suite."""
        plan = self.plan
        answers = {} if self.partial else self._capability_answers()
        asked = {"strides": self.survey.strides, "storage": self.survey.storage}
        states = planner.capability_states(self.descriptor.capabilities, {**answers, **asked})
        return PlanDocument(
            hash=plan.hash,
            device=plan.device,
            plan=plan.spec.name,
            torch=str(torch.__version__),
            suite=VERSION,
            partial=self.partial,
            selection=dict(self.request.selection),
            recipe=dict(plan.recipe),
            clauses=msgspec.convert(self.contract.snapshot()["clauses"], list[model.Clause]),
            capabilities=states,
            facts=dict(self.facts),
            untried=self._never_tried(),
            layouts_version=plan.recipe["layouts"],
            exclusions=[
                model.Exclusion(e.clause, sorted({op for op, _ in e.cells}), e.reason, len(e.cells))
                for e in plan.excluded
            ],
            families=dict(plan.families),
            levels=msgspec.convert(self._levels, list[model.StatedLevel]),
            cells=model.fold(plan.cells),
            selected=model.fold(wanted) if self.partial or self.request.shard else None,
        )

    def _unfinished(self, results: Mapping[CellKey, CellResult]) -> list[Unfinished]:
        """Returns the cells that ended their process, or whose check raised an error, and that have no repro script."""
        return [
            Unfinished(
                cell,
                msgspec.structs.replace(result, rest=None).message,
                self.limits.at_first(cell),
                made.call,
                made.judged,
            )
            for cell, result in results.items()
            if result.outcome in (Outcome.CRASH, Outcome.HANG, Outcome.ERROR)
            and result.repro is None
            and (made := self.outcomes[cell])
        ]

    def _counted_cells(self, *, stopped: bool) -> list[CellKey]:
        """Returns the cells that count for the verdict on the run."""
        wanted = self.selected
        kept = self.collected
        # A resumed run may have no item left: then those that were deselected are the ones without an outcome.
        if self.partial and kept is not None and (kept or self.outcomes):
            wanted = [c for c in wanted if c in kept or c in self.outcomes]
        if self.partial and stopped:
            begun = {item_of(c) for c in self.outcomes}
            wanted = [c for c in wanted if item_of(c) in begun]
        return wanted

    def _capability_answers(self) -> Mapping[str, bool | None]:
        """Returns for each capability whether the device has it, as found by a test in a subprocess; None if it was not
        tested."""
        path = self.bench.descriptor
        return ask(Question(path=path) if path else Question(name=self.bench.device)).capabilities

    def _explore(self, cells: Iterable[CellKey], say: Say) -> str:
        """Searches for failures with random calls of the selected cells, if ``--explore`` was given. Returns a line for
        the user about the number of calls and findings."""
        seconds, seed = self.request.explore, self.request.explore_seed
        if seconds is None:
            return ""
        cells = list(cells)
        calls = [cell for cell in cells if suite_of(cell.clause) in SEARCHED and cell.dtype]
        programs = drawing_cells(cells, self.descriptor, self.contract)
        items = items_of([*calls, *programs])
        if not items:
            return ""
        return explore(self.bench, items, self.matcher, self.folder, seed, seconds, say)

    @property
    def bench(self) -> Bench:
        """The device and the plan of the run, for processes that run cells or minimise failures."""
        path, spec = self.request.descriptor, self.plan.spec
        name = str(path.absolute()) if path else None
        recording = str(self.recording.path) if self.recording is not None else None
        about = (self.descriptor.name, name, spec.samples, spec.name)
        return Bench(*about, recording, self.request.backward)

    def clean_up(self, *, complete: bool = True) -> None:
        """Deletes the files that are needed only during the run. The progress file is kept if the run is not
        ``complete``."""
        self.progress.close(complete=complete)
        for journal in (self.folder / "journal").iterdir():
            journal.unlink()
        delete_scratch(self.folder)

    def _provenance(self, manifest: bytes) -> Provenance:
        """Returns the provenance of the results: the versions of plan, suite and torch, the machine, and the
        manifest."""
        cache = "cold" if (self.missed + self.shipped) * 2 > self.asked else "warm"
        names = ("driver", "device_name", "os", "arch", "python")
        return Provenance(
            plan_hash=self.plan.hash,
            suite_version=VERSION,
            suite_commit=_commit(),
            torch=str(torch.__version__),
            **{name: self.facts.get(name, "") for name in names},
            device_uuid="",
            seed=SEED,
            manifest_hash=hashlib.blake2b(manifest, digest_size=8).hexdigest() if manifest else "",
            start=self.started.isoformat(timespec="seconds"),
            host=", ".join(dict.fromkeys((platform.node(), *sorted(self.hosts)))),
            shard=self.request.shard or "",
            device=self.plan.device,
            plan=self.plan.spec.name,
            partial=self.partial,
            expectations=str(self.expectations) if self.expectations else "none",
            reference_cache="off" if self.request.no_reference_cache else cache,
            left_behind="; ".join(self.survey.left_behind),
        )

    # -- for people

    def header(self) -> list[str]:
        """Returns the lines that pytest prints before the first test."""
        count = len({item_of(c) for c in self.selected})
        plan, request = self.plan, self.request
        lines = [
            f"device {plan.device}, plan {plan.spec.name} ({plan.hash}): "
            f"{number(len(self.selected), 'cell')} in {number(count, 'item')}",
            f"expectations {self.expectations or 'none'}",
        ]
        if request.resume:
            lines.append(f"resumed: {number(len(self.outcomes), 'cell')} done before")
        if request.selection:
            lines.append(f"partial run ({', '.join(request.selection)})")
        if request.ops is not None or request.dtypes is not None:
            cases = sum(cell.is_case for cell in plan.cells)
            options = " and ".join(n for n in ("--ops", "--dtypes") if n in request.selection)
            verb = "leave" if " and " in options else "leaves"
            lines.append(
                f"{options} {verb} out {cases:,} cells that are not about one operator (streams, allocator, …)"
            )
        return [f"conformance: {line}" for line in lines]

    def cache_line(self) -> str:
        """Returns the line about the sources of the expected strides, which is printed with ``-v``; an empty text if no
        expected stride was needed."""
        state = " (cache off)" if self.request.no_reference_cache else ""
        cached = self.asked - self.missed - self.shipped
        text = f"expected strides: {cached:,} of {self.asked:,} from the cache{state}"
        text += f", {self.shipped:,} from this package" if self.shipped else ""
        return text if self.asked else ""


def _with_context(result: CellResult, device: str) -> CellResult:
    """Returns the result of a cell on a device. If the cell did not pass, the function adds how many public models call
    its op, and the reason that the CPU's manifest gives if the CPU fails in the same way; for a failure, crash or hang
    also the known public bugs that made the same cell fail on other devices."""
    if result.outcome is Outcome.PASS or by_declaration(result):
        return result
    seen = result.seen
    if result.outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.HANG):
        seen = bugs().seen_in(result.key, result.layouts)
    on_cpu = "" if device == CPU else reason_on_cpu(result)
    return msgspec.structs.replace(result, seen=seen, called_by=use_of(result.key), on_cpu=on_cpu)


class Known(NamedTuple):
    """A device whose facts are known. The functions ``facts`` and ``device_count`` of ``descriptor`` return stored
    values instead of calling the device's module. ``device`` is None if the facts were collected in another process."""

    descriptor: Descriptor
    survey: Survey
    device: Device | None


def collect_facts(descriptor: Descriptor, path: Path | None, server: ForkServer | None) -> Known:
    """Collects the facts about a device: in another process if a fork server runs and the device has code from outside
    torch and this project; otherwise in this process, which opens the device. Raises ConformError if
    the device cannot be opened."""
    found = device = None
    if server is not None and is_foreign(descriptor):
        found = surveyed(server, descriptor.name, path)
    if found is None:
        device = open_device(descriptor)
        found = Survey.of(device)
    facts, count = found.facts, found.device_count
    return Known(
        replace(descriptor, facts=lambda: facts, device_count=lambda: count), found, device
    )


def prepare(
    request: Request,
    server: ForkServer | None = None,
    files_of_user: Collection[Path] = (),
    say: Say = lambda line: None,
) -> Session:
    """Prepares a run: makes the plan, selects the cells and locks the results folder. No results of an earlier run are
    deleted yet. Returns the session. With a fork server, a device with code from outside torch and
    this project is opened only in other processes. ``say`` prints a line about a plan that takes more than some seconds.
    Raises ConformError if the request, the device, the manifest or the folder does not allow a run, and OutOfTime if
    ``--max-time`` is over before a recording is planned."""
    limit = request.max_time
    deadline = time.time() + limit if limit is not None else None
    spec = plan_spec(request.plan)
    contract = load()
    clauses = None
    if request.clauses is not None:
        clauses = frozenset(c.id for c in contract.select(request.clauses))
    descriptor = selection.find_descriptor(request.device, request.descriptor)
    if (why := descriptor.unavailable()) is not None:
        raise ConformError(f"device {descriptor.name!r} cannot be used here: {why}")
    manifest, path = usage.load_manifest(request, descriptor, contract)
    descriptor, survey, device = collect_facts(descriptor, request.descriptor, server)
    facts = descriptor.facts()
    kept = None if request.no_reference_cache else cache_root()
    recording = None
    if request.recording is not None:
        recording = OpenedRecording(
            request.recording, request.recording_format, backward=request.backward
        )
        recording.source.leave_out_large_results()
    source = DATABASE if recording is None else recording.source
    planning = Planning(say, "ops")
    if recording is not None:
        planning = Planning(say, "recorded calls", deadline)
    plan = planner.make_plan(spec, descriptor, contract, kept, source, planning.step)
    chosen_cells, too_large = selection.select(plan, request, clauses), frozenset[str]()
    if recording is not None and request.max_elements is not None:
        too_large = recording.source.larger_than(request.max_elements)
        if request.names_cells:
            too_large &= {cell.unit for cell in chosen_cells}
        chosen_cells = selection.without_units(chosen_cells, too_large, "--max-elements")
    selected = selection.shard_of(chosen_cells, request)
    matcher = Matcher(manifest.active(facts))
    for cell in plan.cells:  # finds contradicting blocks before an hour of running, not after it
        matcher.expect(cell)
    if request.collect_only:  # what an earlier run wrote stays
        folder = Path(tempfile.mkdtemp(prefix="conform-collect-"))
    else:
        folder = usage.results_folder(request, plan.device)
        progress.check_folder(folder, request, files_of_user)
    folder = folder.absolute()
    failed_before: frozenset[CellKey] = frozenset()
    if request.max_time is not None:
        earlier = (usage.whole_folder(request, plan.device), folder)
        failed_before = failed_before.union(*map(progress.failed_in, earlier))
    complete = progress.complete_run(folder) if (folder / RECORD_FILE).exists() else None
    claimed = progress.claim(folder)
    chosen = {name: value for name, value in request.selection.items() if name != "--max-time"}
    identity = Identity(plan.device, plan.hash, Machine.of(facts), chosen, request.shard or "")
    try:
        before = progress.look_back(folder, identity, resume=request.resume)
    except ConformError:
        if claimed is not None:
            os.close(claimed)
        raise
    started = datetime.fromisoformat(before.start) if before.start else datetime.now(timezone.utc)
    session = Session(
        request=request,
        descriptor=descriptor,
        survey=survey,
        device=device,
        contract=contract,
        plan=plan,
        selected=selected,
        expectations=path,
        matcher=matcher,
        folder=folder,
        started=started,
        progress=Progress(
            folder,
            Begun(identity, started.isoformat(), planned=len(selected)),
            before,
            claimed,
            complete is not None and not request.selection,
        ),
        lost=LostCells(before.lost),
        facts=facts,
        failed_before=failed_before,
        recording=recording,
        too_large=too_large,
        deadline=deadline,
    )
    session.resume(before)
    if recording is not None:
        recording.convert(folder)
    gc.freeze()  # torch and the plan live for ever: no collection needs to visit them
    return session


def _commit() -> str:
    """Returns the commit of the checkout of the suite, with ``-dirty`` at its end if the suite's own files differ from that
    commit; an empty string if the suite is installed from a package."""
    packages = ("conformance", "devices", "opinfo", "reports")
    root = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(root)]
    try:
        ran = partial(subprocess.run, capture_output=True, text=True, check=True, timeout=10)
        top, commit = ran([*git, "rev-parse", "--show-toplevel", "HEAD"]).stdout.splitlines()
        if Path(top).resolve() != root:  # a package in somebody else's checkout
            return ""
        changed = ran([*git, "status", "--porcelain", "--", *packages]).stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return f"{commit}-dirty" if changed else commit
