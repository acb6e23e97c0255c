"""One run, from the controller's side: prepare it, gather what workers report, judge and write it down."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import torch

from conformance.contract import Contract, load
from conformance.explore.findings import explore
from conformance.folder import failed_in, make_folder
from conformance.items import ItemId, item_of, items_of
from conformance.levels import stated
from conformance.minimise.aside import Bench
from conformance.minimise.at_end import with_examples
from conformance.options import Request
from conformance.order import informative_first
from conformance.orders import WorkerOrders
from conformance.planner import (
    capability_states,
    known_layouts,
    make_plan,
    torch_build,
    untried_cases,
)
from conformance.selection import find_descriptor, select
from conformance.suites import LAYOUT, suite_of
from conformance.version import VERSION
from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.expectations import Manifest, Matcher, judge
from opinfo.device import Device, open_device
from opinfo.plan import Plan, plan_document, plan_spec
from opinfo.samples import SEED
from reports.failures import write_failures
from reports.gate import GateResult, gate
from reports.run import CellResult, Provenance, Run, write_run


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
    facts: Mapping[str, str]
    failed_before: frozenset[CellKey] = frozenset()  # in the run that the folder held
    documents: dict[CellKey, dict[str, Any]] = field(default_factory=dict)
    asked: int = 0  # questions to the stride reference
    missed: int = 0  # … that the cache could not answer
    collected: set[ItemId] = field(default_factory=set)  # items that pytest kept

    # -- while it runs

    def gather(self, documents: Iterable[dict[str, Any]], worker: str) -> None:
        """Take the cells of one item. What a crash left behind does not overwrite a real outcome."""
        for document in documents:
            if document.get("references"):
                self.asked += document["references"][0]
                self.missed += document["references"][1]
                continue
            self.documents[CellKey(*document["cell"])] = {**document, "worker": worker}

    def crashed(self, op: str, dtype: str, clause: str | None, death: str, worker: str) -> str:
        """Note that a worker died in an item: the guilty cell crashed, its others were not run.

        Returns the text for the report. Without a guilty clause every cell of the item is ``not-run``.
        """
        lost, item = [], item_of(CellKey(clause or LAYOUT, op, dtype))
        for cell in self.selected:
            if item_of(cell) != item or cell in self.documents:
                continue
            guilty = cell.clause == clause
            outcome = Outcome.CRASH if guilty else Outcome.NOT_RUN
            message = (
                f"worker {worker} {death}" if guilty else f"not run: worker {worker} died before it"
            )
            self.documents[cell] = {
                "cell": list(cell),
                "outcome": outcome.value,
                "message": message,
                "worker": worker,
            }
            lost.append(cell)
        named = str(CellKey(clause, op, dtype)) if clause else f"{op}[{dtype}]"
        return (
            f"crash in {named}: worker {worker} {death}; {max(len(lost) - 1, 0)} more cells not run"
        )

    # -- at the end

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
            wanted = [c for c in self.selected if item_of(c) in self.collected]
        if partial and stopped:
            begun = {item_of(c) for c in self.documents}
            wanted = [c for c in wanted if item_of(c) in begun]
        for cell in wanted:
            document = self.documents.get(cell)
            if document is not None:
                results[cell] = self._result(cell, document)
        results = with_examples(
            results, self.bench, self.plan.families, self.folder, self.request.minimise, say
        )
        document = plan_document(
            self.plan,
            torch_version=torch.__version__,
            suite=VERSION,
            contract=self.contract.snapshot()["clauses"],
            capabilities=capability_states(self.device),
            facts=self.facts,
            selection=self.request.selection,
            selected=wanted if partial else None,
            untried=untried_cases(self.descriptor, self.contract, self.plan.cells),
            levels=stated(self.plan.cells),
        )
        run = write_run(
            self.folder,
            document,
            results,
            self._provenance(partial),
            junitxml=junitxml,
            redact=self.request.redact,
            manifest=self.expectations.read_bytes() if self.expectations else b"",
        )
        self.clean_up()
        result = gate(run, partial=partial)
        write_failures(run, result.judgement)
        self._explore(wanted, say)
        return run, result

    def _explore(self, cells: Iterable[CellKey], say: Callable[[str], None]) -> None:
        """Random search over the selected cells, where it was asked for."""
        request = self.request
        if request.explore_seconds is None:
            return
        items = items_of(cell for cell in cells if suite_of(cell.clause) == LAYOUT)
        if items:
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

    def clean_up(self) -> None:
        """Remove what only the running needs."""
        (self.folder / WorkerOrders.FILE).unlink(missing_ok=True)
        for journal in (self.folder / "journal").glob("*"):
            journal.unlink()

    def _result(self, cell: CellKey, document: dict[str, Any]) -> CellResult:
        observed = Observed(
            Outcome(document["outcome"]),
            frozenset(document.get("layouts", ())),
            document.get("raises"),
            document.get("message", ""),
            document.get("declared", False),
        )
        verdict, why = self.judge(cell, observed, document.get("ran"))
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

    def judge(
        self, cell: CellKey, observed: Observed, ran: Iterable[str] | None
    ) -> tuple[Verdict, str]:
        return verdict_of(self.matcher, cell, observed, ran)

    def _provenance(self, partial: bool) -> Provenance:
        manifest = self.expectations.read_bytes() if self.expectations else b""
        cache = "off"
        if self.request.reference_cache:
            cache = "cold" if self.missed * 2 > self.asked else "warm"
        return Provenance(
            plan_hash=self.plan.hash,
            suite_version=VERSION,
            suite_commit=_commit(),
            torch=torch.__version__,
            driver=self.facts.get("driver", ""),
            device_name=self.facts.get("device_name", ""),
            device_uuid="",
            os=self.facts.get("os", ""),
            arch=self.facts.get("arch", ""),
            python=self.facts.get("python", ""),
            seed=SEED,
            manifest_hash=hashlib.blake2b(manifest, digest_size=8).hexdigest() if manifest else "",
            start=self.started.isoformat(timespec="seconds"),
            host=platform.node(),
            shard="",
            device=self.plan.device,
            plan=self.plan.spec.name,
            partial=partial,
            expectations=str(self.expectations) if self.expectations else "none",
            reference_cache=cache,
        )


def verdict_of(
    matcher: Matcher, cell: CellKey, observed: Observed, ran: Iterable[str] | None
) -> tuple[Verdict, str]:
    """The outcome of a cell against its expectation, and the words for it."""
    expectation = matcher.expect(cell)
    expired = expectation is not None and expectation.is_expired(date.today())
    judgement = judge(
        expectation, observed, ran=frozenset(ran) if ran is not None else None, expired=expired
    )
    if judgement.verdict is Verdict.EXPECTED and judgement.blocks:
        # The reader of a report wants the reason, and where it stands.
        reasons = {f"{b.reason} ({Path(b.where).name})" for b in judgement.blocks}
        return judgement.verdict, "; ".join(sorted(reasons))
    return judgement.verdict, judgement.why


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
    plan = make_plan(spec, device, contract)
    selected = select(plan, request, clauses)
    matcher = Matcher(active)
    for cell in plan.cells:  # contradicting blocks are found before an hour of running, not after
        matcher.expect(cell)
    if request.collect_only:  # what an earlier run wrote stays
        folder = Path(tempfile.mkdtemp(prefix="conform-collect-"))
    else:
        folder = request.results or Path("conform-results") / f"{plan.device}-{spec.name}"
    folder = folder.absolute()
    failed_before = failed_in(folder) if request.max_seconds is not None else frozenset()
    make_folder(folder)
    return Session(
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
        started=datetime.now(timezone.utc),
        facts=facts,
        failed_before=failed_before,
    )


def orders_for(session: Session) -> WorkerOrders:
    """What this session's workers are told."""
    request = session.request
    limit = request.max_seconds
    items = items_of(session.selected)
    if limit is not None:
        expected = {c for c in session.selected if session.matcher.expect(c) is not None}
        items = informative_first(items, session.failed_before, expected, session.plan.families)
    return WorkerOrders(
        device=session.descriptor.name,
        descriptor=str(request.descriptor.absolute()) if request.descriptor else None,
        results=str(session.folder),
        samples=session.plan.spec.samples,
        expectations=str(session.expectations) if session.expectations else None,
        reference_cache=request.reference_cache,
        torch_build=torch_build(),
        deadline=session.started.timestamp() + limit if limit is not None else None,
        items=items,
    )


def load_manifest(
    request: Request, descriptor: Descriptor, contract: Contract
) -> tuple[Manifest, Path | None]:
    """The expectations that apply: a path given, the device's own, or none. Raises ManifestError."""
    if request.expectations == "none":
        return Manifest(), None
    path = Path(request.expectations) if request.expectations else descriptor.expectations
    if path is None:
        return Manifest(), None
    return (
        Manifest.load(
            path, known_clauses=set(contract.clauses), known_layouts=known_layouts(descriptor)
        ),
        path.absolute(),
    )


def _commit() -> str:
    """The checkout's commit, empty where the suite is installed."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
