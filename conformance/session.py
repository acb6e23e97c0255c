"""One run, from the controller's side: prepare it, gather what workers report, judge and write it down."""

from __future__ import annotations

import gc
import importlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from conformance.asking import Question, ask
from conformance.contract import Contract, load
from conformance.explore.findings import explore
from conformance.explore.programs import drawing_cells
from conformance.flaky import observed_of
from conformance.folder import failed_in, make_folder
from conformance.isolation.controller import Controller
from conformance.isolation.keeping import Keeper, keep, look_back
from conformance.isolation.limits import limits_for
from conformance.isolation.lost import Lost
from conformance.items import Item, item_of, items_of, named
from conformance.judging import load_manifest, verdict_of
from conformance.levels import stated
from conformance.machine import machine_of
from conformance.minimise.aside import Bench
from conformance.minimise.at_end import with_examples
from conformance.minimise.script import write_repro
from conformance.options import Request
from conformance.order import informative_first
from conformance.orders import WorkerOrders
from conformance.planner import (
    capability_states,
    make_plan,
    torch_build,
    untried,
)
from conformance.provenance import provenance_of
from conformance.selection import find_descriptor, select, shard_of
from conformance.suites import LAYOUT, suite_of
from conformance.version import VERSION
from devices.block import ExpectedOutcome
from devices.cache import cache_root
from devices.cell import CellKey, Observed, Verdict
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.expectations import Manifest, Matcher
from opinfo.device import Device, open_device
from opinfo.plan import Plan, plan_document, plan_spec
from reports.failures import write_failures
from reports.gate import GateResult, gate
from reports.run import CellResult, Run, write_run

_DEADLY = (ExpectedOutcome.CRASH, ExpectedOutcome.HANG)


def _silently(text: str) -> None:
    """Nobody listens."""


@dataclass
class Session:
    """The controller's state of one run."""

    request: Request
    descriptor: Descriptor
    device: Device
    contract: Contract
    plan: Plan
    selected: list[CellKey]
    manifest: Manifest
    expectations: Path | None
    matcher: Matcher
    folder: Path
    started: datetime
    keeper: Keeper
    facts: Mapping[str, str]
    failed_before: frozenset[CellKey] = frozenset()  # in the run that the folder held
    documents: dict[CellKey, dict[str, Any]] = field(default_factory=dict)
    asked: int = 0  # questions to the stride reference
    missed: int = 0  # … that the cache could not answer
    collected: set[CellKey] = field(default_factory=set)  # of the items that pytest kept
    hosts: set[str] = field(default_factory=set)  # other machines with workers
    cut_short: str = ""  # why the run ended before its end, if it did

    # -- while it runs

    def gather(self, documents: Iterable[dict[str, Any]], worker: str) -> None:
        """Take the cells of one item, and keep them."""
        documents = list(documents)
        self._take(documents, worker)
        self.keeper.cells(worker, documents)

    def _take(self, documents: Iterable[dict[str, Any]], worker: str) -> None:
        for document in documents:
            if document.get("references"):
                self.asked += document["references"][0]
                self.missed += document["references"][1]
                continue
            cell = CellKey(*document["cell"])
            if (script := document.pop("script", None)) is not None:  # of a worker elsewhere
                write_repro(self.folder, cell, script)
            self.documents[cell] = {**document, "worker": worker}

    def lose(self, lost: Lost, worker: str) -> None:
        """Take down a cell that ended the process that ran it."""
        self.keeper.lose(lost)
        self._lost(lost, worker)

    def _lost(self, lost: Lost, worker: str) -> None:
        self.documents[lost.cell] = {
            "cell": list(lost.cell),
            "outcome": lost.outcome.value,
            "message": lost.message,
            "worker": worker,
        }

    def unexpected(self, lost: Lost) -> bool:
        """Whether the manifest does not expect what became of it."""
        observed = Observed(lost.outcome, message=lost.message)
        verdict, _ = verdict_of(self.matcher, lost.cell, observed, None)
        return verdict is not Verdict.EXPECTED

    def go_on(self) -> None:
        """Take what an earlier run of the folder had done."""
        for worker, documents in self.keeper.before.reports:
            self._take(documents, worker)
        for lost in self.keeper.before.lost:
            self._lost(lost, "")

    # -- at the end

    def look_ahead(self) -> None:
        """Do now what the end needs, while workers load what they need."""
        for name in ("_untried", "_levels"):
            getattr(self, name)
        importlib.import_module("hypothesis")  # which its plugin for pytest does as it ends

    @cached_property
    def _untried(self) -> Mapping[str, Mapping[str, str]]:
        ops = {cell.op: None for cell in self.plan.cells if cell.dtype}
        return untried(self.descriptor, self.contract, ops)

    @cached_property
    def _levels(self) -> list[dict[str, Any]]:
        return stated(self.plan.cells)

    def finish(
        self, junitxml: Path | None, *, stopped: bool, say: Callable[[str], None] = _silently
    ) -> tuple[Run, GateResult]:
        """Judge every cell, minimise what is new, write the results folder, and gate. The orders file
        goes.

        ``stopped`` says that ``-x`` or ``--maxfail`` ended the run: the items behind are left out, as
        those that ``-k`` takes away. ``say`` is told what takes time.
        """
        results: dict[CellKey, CellResult] = {}
        partial = bool(self.request.selection)
        wanted = self.selected
        if partial and self.collected:
            wanted = [c for c in self.selected if c in self.collected or c in self.documents]
        if partial and stopped:
            begun = {item_of(c) for c in self.documents}
            wanted = [c for c in wanted if item_of(c) in begun]
        for cell in wanted:
            document = self.documents.get(cell)
            if document is not None:
                results[cell] = self._result(cell, document)
        if not self.cut_short:
            results = with_examples(
                results, self.bench, self.plan.families, self.folder, self.request.minimise, say
            )
        document = plan_document(
            self.plan,
            torch_version=torch.__version__,
            suite=VERSION,
            contract=self.contract.snapshot()["clauses"],
            capabilities=capability_states(self.device, {} if partial else self._answers()),
            facts=self.facts,
            selection=self.request.selection,
            partial=partial,
            selected=wanted if partial or self.request.shard else None,
            untried=self._untried,
            levels=self._levels,
        )
        run = write_run(
            self.folder,
            document,
            results,
            provenance_of(self, partial),
            junitxml=junitxml,
            redact=self.request.redact,
            manifest=self.expectations.read_bytes() if self.expectations else b"",
        )
        result = gate(run, partial=partial or self.request.shard is not None)
        self.clean_up(complete=not self.cut_short and all(c in results for c in wanted))
        write_failures(run, result.judgement)
        if not self.cut_short:
            self._explore(wanted, say)
        return run, result

    def _answers(self) -> Mapping[str, bool | None]:
        """What the device answers when it is asked for its capabilities, in a process of its own."""
        path = self.request.descriptor
        question = (
            Question(path=str(path.absolute())) if path else Question(name=self.descriptor.name)
        )
        return ask(question).capabilities

    def _explore(self, cells: Iterable[CellKey], say: Callable[[str], None]) -> None:
        """Random search over the selected cells, where it was asked for."""
        request = self.request
        if request.explore_seconds is None:
            return
        cells = list(cells)
        calls = [cell for cell in cells if suite_of(cell.clause) == LAYOUT and cell.dtype]
        programs = drawing_cells(cells, self.descriptor, self.contract)
        if items := items_of([*calls, *programs]):
            explore(
                *(self.bench, items, self.matcher, self.folder),
                *(request.explore_seed, request.explore_seconds, say),
            )

    @property
    def bench(self) -> Bench:
        """What a process aside needs to know of this run."""
        path = self.request.descriptor
        return Bench(
            self.descriptor.name, str(path.absolute()) if path else None, self.plan.spec.samples
        )

    def clean_up(self, *, complete: bool = True) -> None:
        """Remove what only the running needs; what a run that is not ``complete`` had done stays."""
        self.keeper.close(complete=complete)
        for journal in (self.folder / "journal").iterdir():
            journal.unlink()

    def _result(self, cell: CellKey, document: dict[str, Any]) -> CellResult:
        observed = observed_of(document)
        others = [observed_of(other) for other in document.get("seen", ())]
        verdict, why = verdict_of(self.matcher, cell, observed, document.get("ran"), others)
        return CellResult(
            key=cell,
            outcome=observed.outcome,
            verdict=verdict,
            why=why,
            checks=document.get("checks", 0),
            samples=document.get("samples", 0),
            layouts=tuple(document.get("layouts", ())),
            ran_layouts=tuple(document.get("ran", ())),
            worst_error=document.get("worst_error"),
            raises=observed.raises,
            message=observed.message,
            repro=document.get("repro"),
            seconds=document.get("seconds", 0.0),
            worker=document.get("worker", ""),
        )


def prepare(request: Request) -> Session:
    """Everything before the first item. Raises ConformError with one clear message."""
    spec = plan_spec(request.plan)
    contract = load()
    clauses = (
        frozenset(c.id for c in contract.select(request.clauses))
        if request.clauses is not None
        else None
    )
    descriptor = find_descriptor(request)
    if (why := descriptor.unavailable()) is not None:
        raise ConformError(f"device {descriptor.name!r} cannot be used here: {why}")
    manifest, path = load_manifest(request, descriptor, contract)
    device = open_device(descriptor)
    facts = descriptor.facts()  # the device's module, imported by now, may be asked
    active = manifest.active(facts)
    plan = make_plan(spec, device, contract, cache_root() if request.reference_cache else None)
    selected = shard_of(select(plan, request, clauses), request)
    matcher = Matcher(active)
    for cell in plan.cells:  # contradicting blocks are found before an hour of running, not after
        matcher.expect(cell)
    if request.collect_only:  # what an earlier run wrote stays
        folder = Path(tempfile.mkdtemp(prefix="conform-collect-"))
    else:
        shard = f"-shard-{request.shard.replace('/', '-of-')}" if request.shard else ""
        folder = request.results or Path("conform-results") / f"{plan.device}-{spec.name}{shard}"
    folder = folder.absolute()
    failed_before = failed_in(folder) if request.max_seconds is not None else frozenset()
    identity = identity_of(plan, request, facts)
    before = look_back(folder, identity, resume=request.resume)
    make_folder(folder, resume=request.resume)
    started = datetime.fromisoformat(before.start) if before.start else datetime.now(timezone.utc)
    session = Session(
        request=request,
        descriptor=descriptor,
        device=device,
        contract=contract,
        plan=plan,
        selected=selected,
        manifest=active,
        expectations=path,
        matcher=matcher,
        folder=folder,
        started=started,
        keeper=keep(folder, identity, started.isoformat(), before),
        facts=facts,
        failed_before=failed_before,
    )
    session.go_on()
    gc.freeze()  # torch's modules and the plan live for ever: no collection need walk through them
    return session


def identity_of(plan: Plan, request: Request, facts: Mapping[str, str]) -> dict[str, Any]:
    """What must be the same for a run to be resumed."""
    selection = {name: said for name, said in request.selection.items() if name != "--max-time"}
    chosen = {"selection": selection, "shard": request.shard or ""}
    return {"device": plan.device, "plan": plan.hash, **machine_of(facts), **chosen}


def orders_for(session: Session) -> WorkerOrders:
    """What this session's workers are told."""
    request = session.request
    limit = request.max_seconds
    expected = {c: e for c in session.selected if (e := session.matcher.expect(c)) is not None}
    deadly = {c for c, e in expected.items() if e.outcome in _DEADLY}
    left = [cell for cell in session.selected if cell not in session.documents]
    items = items_of(cell for cell in left if cell not in deadly)
    if limit is not None:
        items = informative_first(items, session.failed_before, expected, session.plan.families)
    return WorkerOrders(
        device=session.descriptor.name,
        descriptor=str(request.descriptor.absolute()) if request.descriptor else None,
        results=str(session.folder),
        samples=session.plan.spec.samples,
        manifest=session.expectations.read_text("utf-8-sig") if session.expectations else None,
        reference_cache=request.reference_cache,
        torch_build=torch_build(),
        deadline=time.time() + limit if limit is not None else None,
        items=items,
        last=[Item(cell.op, cell.dtype, [cell.clause]) for cell in left if cell in deadly],
        plan=session.plan.spec.name,
        cell_timeout=request.cell_timeout,
        machine=machine_of(session.facts),
    )


def controller_for(session: Session, orders: WorkerOrders) -> Controller:
    """What watches this session's workers."""
    descriptor = session.descriptor
    return Controller(
        folder=session.folder / "journal",
        items=named(orders.items, orders.last),
        limits=limits_for(orders.plan, descriptor.time_scale, orders.cell_timeout),
        indices=range(max(1, descriptor.device_count())),
        judge=session.unexpected,
        is_done=session.documents.__contains__,
        record=session.lose,
        lost=session.keeper.lost,
        meet=session.hosts.add,
    )
