"""One run, from the controller's side: prepare it, gather what workers report, judge and write it down."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import torch

from conformance.contract import Contract, load
from conformance.options import Request, matching
from conformance.planner import capability_states, make_plan, torch_build
from conformance.version import VERSION
from devices import registry
from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.expectations import Manifest, Matcher, judge
from opinfo.device import Device, open_device
from opinfo.layouts import covering_set
from opinfo.plan import Plan, plan_document, plan_spec
from opinfo.samples import SEED
from reports.gate import GateResult, gate
from reports.run import CellResult, Provenance, Run, write_run


class NothingSelected(ConformError):
    """The selection leaves no cell of the plan."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """What a worker needs to run items: written once by the controller, read by every worker."""

    device: str
    descriptor: str | None
    results: str
    samples: int
    expectations: str | None
    reference_cache: bool
    torch_build: str
    deadline: float | None  # time.time() after which no item starts
    items: list[tuple[str, str, list[str]]]  # op, dtype, clauses; in plan order

    FILE = ".orders.json"

    def write(self) -> Path:
        path = Path(self.results) / self.FILE
        path.write_bytes(msgspec.json.encode({f: getattr(self, f) for f in self.__slots__}))
        return path

    @classmethod
    def read(cls, path: Path) -> WorkerOrders:
        data = msgspec.json.decode(path.read_bytes())
        data["items"] = [(op, dtype, clauses) for op, dtype, clauses in data["items"]]
        return cls(**data)


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
    documents: dict[CellKey, dict[str, Any]] = field(default_factory=dict)
    asked: int = 0  # questions to the stride reference
    missed: int = 0  # … that the cache could not answer
    collected: set[tuple[str, str]] = field(default_factory=set)  # items that pytest kept

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
        lost = []
        for cell in self.selected:
            if (cell.op, cell.dtype) != (op, dtype) or cell in self.documents:
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
        named = f"{clause}::{op}[{dtype}]" if clause else f"{op}[{dtype}]"
        return (
            f"crash in {named}: worker {worker} {death}; {max(len(lost) - 1, 0)} more cells not run"
        )

    # -- at the end

    def finish(self, junitxml: Path | None, *, stopped: bool) -> tuple[Run, GateResult]:
        """Judge every cell, write the results folder, and gate. The orders file goes.

        ``stopped`` says that ``-x`` or ``--maxfail`` ended the run: the items behind are left out, as
        those that ``-k`` takes away.
        """
        results: dict[CellKey, CellResult] = {}
        partial = bool(self.request.selection)
        wanted = self.selected
        if partial and self.collected:
            wanted = [c for c in self.selected if (c.op, c.dtype) in self.collected]
        if partial and stopped:
            begun = {(c.op, c.dtype) for c in self.documents}
            wanted = [c for c in wanted if (c.op, c.dtype) in begun]
        for cell in wanted:
            document = self.documents.get(cell)
            if document is not None:
                results[cell] = self._result(cell, document)
        document = plan_document(
            self.plan,
            torch_version=torch.__version__,
            suite=VERSION,
            contract=self.contract.snapshot()["clauses"],
            capabilities=capability_states(self.device),
            facts=self.facts,
            selection=self.request.selection,
            selected=wanted if partial else None,
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
        return run, gate(run, partial=partial)

    def clean_up(self) -> None:
        """Remove what only the running needs."""
        (self.folder / WorkerOrders.FILE).unlink(missing_ok=True)
        for journal in (self.folder / "journal").glob("*.cur"):
            journal.unlink()

    def _result(self, cell: CellKey, document: dict[str, Any]) -> CellResult:
        observed = Observed(
            Outcome(document["outcome"]),
            frozenset(document.get("layouts", ())),
            document.get("raises"),
            document.get("message", ""),
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


def find_descriptor(request: Request) -> Descriptor:
    """The device that was asked for, or the machine's own. Raises UnknownDevice, DescriptorError."""
    if request.descriptor is not None:
        found = registry.load_file(request.descriptor)
        if request.device is not None and request.device != found.name:
            raise ConformError(
                f"--device {request.device} and --descriptor {request.descriptor} disagree: the file "
                f"describes {found.name!r}. Give one of them."
            )
        return found
    if request.device is not None:
        return registry.get(request.device)
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return registry.default_device(accelerator.type if accelerator else None)


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
    facts = descriptor.facts()
    active = manifest.active(facts)
    device = open_device(descriptor)
    plan = make_plan(spec, device, contract)
    selected = _select(plan, request, clauses)
    matcher = Matcher(active)
    for cell in plan.cells:  # contradicting blocks are found before an hour of running, not after
        matcher.expect(cell)
    if request.collect_only:  # what an earlier run wrote stays
        folder = Path(tempfile.mkdtemp(prefix="conform-collect-"))
    else:
        folder = request.results or Path("conform-results") / f"{plan.device}-{spec.name}"
    folder = folder.absolute()
    _make_folder(folder)
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
    )


def orders_for(session: Session) -> WorkerOrders:
    """What this session's workers are told."""
    by_item: dict[tuple[str, str], list[str]] = {}
    for clause, op, dtype in session.selected:
        by_item.setdefault((op, dtype), []).append(clause)
    request = session.request
    limit = request.max_seconds
    return WorkerOrders(
        device=session.descriptor.name,
        descriptor=str(request.descriptor.absolute()) if request.descriptor else None,
        results=str(session.folder),
        samples=session.plan.spec.samples,
        expectations=str(session.expectations) if session.expectations else None,
        reference_cache=request.reference_cache,
        torch_build=torch_build(),
        deadline=session.started.timestamp() + limit if limit is not None else None,
        items=[(op, dtype, clauses) for (op, dtype), clauses in by_item.items()],
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
        Manifest.load(path, known_clauses=set(contract.clauses), known_layouts=covering_set().ids),
        path.absolute(),
    )


def _select(plan: Plan, request: Request, clauses: frozenset[str] | None) -> list[CellKey]:
    ops = dtypes = None
    if request.ops is not None:
        ops = matching("--ops", request.ops, {c.op for c in plan.cells})
    if request.dtypes is not None:
        dtypes = matching("--dtypes", request.dtypes, {c.dtype for c in plan.cells})
    selected = [
        c
        for c in plan.cells
        if (ops is None or c.op in ops)
        and (dtypes is None or c.dtype in dtypes)
        and (clauses is None or c.clause in clauses)
    ]
    if not selected:
        chosen = ", ".join(f"{k} {v}" for k, v in request.selection.items()) or "the whole plan"
        raise NothingSelected(
            f"nothing selected: {chosen} leaves no cell of plan {plan.spec.name!r}"
        )
    return selected


def _make_folder(folder: Path) -> None:
    """An empty results folder: what an earlier run wrote there must not be read as this one's."""
    try:
        (folder / "journal").mkdir(parents=True, exist_ok=True)
        for stale in (
            *folder.glob("junit-*.xml"),
            folder / "plan.json",
            *folder.glob("repro/*/*.py"),
        ):
            stale.unlink(missing_ok=True)
    except OSError as exc:
        raise ConformError(f"--results {folder}: cannot be written: {exc}") from exc


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
