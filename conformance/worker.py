"""One run, from the side of the process that runs items: a worker of xdist, or pytest itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance.behaviour.attempts import PATIENCE
from conformance.behaviour.cases import Case
from conformance.behaviour.process import START_SECONDS, Where
from conformance.behaviour.running import run_case
from conformance.cells import Recorder
from conformance.contract import load
from conformance.explore.pins import by_item, run_pins, run_programs, without_case, without_op
from conformance.flaky import observed_of, runs_of, together
from conformance.isolation.guard import Watch
from conformance.isolation.limits import limits_for
from conformance.isolation.locks import DeviceLock
from conformance.isolation.setting import Setting, in_worker
from conformance.items import Item, ItemId, is_case, named
from conformance.judging import verdict_of
from conformance.layout import suite
from conformance.layout.context import ItemContext
from conformance.machine import WrongMachine, check_same
from conformance.minimise.script import write_repro
from conformance.orders import WorkerOrders
from conformance.planner import known_layouts, undeclared_clauses, untried_with
from conformance.suites import LAYOUT, find_case, planned_op_checks
from devices import registry
from devices.cell import CellKey, Verdict
from devices.errors import ConformError
from devices.expectations import Manifest, Matcher
from devices.pinned import read_pinned
from opinfo.catalog import catalogue
from opinfo.device import Device, first_index, open_device, preflight
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference, forget_dispatches
from opinfo.reference_cache import ReferenceCache, cache_root
from opinfo.samples import choose, draw
from opinfo.traits import probe

#: Verdicts that make an item fail in pytest's eyes.
BAD = frozenset({Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.MISSING})


def started(given: Mapping[str, Any]) -> Worker:
    """A worker of xdist, by what its controller put into ``workerinput``. One that cannot use its device, or is
    on another kind of machine, says why and ends: the controller puts another one in its place or gives up."""
    conform, name = given["conform"], str(given["workerid"])
    folder = Path(conform["results"])
    setting = in_worker(folder, name, conform, given["conform_channel"])
    try:
        found = Worker(WorkerOrders.read(conform["orders"]), setting)
        catalogue()  # takes seconds, which no item's time shall pay for
        return found
    except ConformError as error:
        setting.end({"error": str(error), "refused": isinstance(error, WrongMachine)})


Told = tuple[list[dict[str, Any]], list[str]]  # cells as plain data, and what is wrong with them
Run = Callable[[Item], Told]


class Worker:
    """Runs items by the controller's orders."""

    def __init__(
        self, orders: WorkerOrders, setting: Setting, device: Device | None = None
    ) -> None:
        self.orders = orders
        self.items = named(orders.items, orders.last)
        self.alone = {name for item in orders.last for name in named((), [item])}
        descriptor = (
            registry.load_file(Path(orders.descriptor))
            if orders.descriptor
            else registry.get(orders.device)
        )
        self.device = device or open_device(descriptor, setting.index)
        manifest = Manifest()
        facts = descriptor.facts()
        check_same(orders.machine, facts)
        if orders.manifest is not None:
            manifest = Manifest.parse(
                orders.manifest,
                known_clauses=set(load().clauses),
                known_layouts=known_layouts(descriptor),
            ).active(facts)
        self.matcher = Matcher(manifest)
        self.pins = by_item(read_pinned(descriptor.folder))
        self.undeclared = undeclared_clauses(descriptor, load())
        self.folder = setting.folder or Path(orders.results)
        self.elsewhere = setting.folder is not None  # the controller writes the scripts down
        self.lost = setting.lost
        self.watch = Watch(
            setting.journal,
            limits_for(orders.plan, descriptor.time_scale, orders.cell_timeout),
            DeviceLock(descriptor.name, 0),  # of all indices: cases take several, from 0 up
            partial(preflight, self.device),
            setting.leave,
        )
        self.where = Where(device=orders.device, path=orders.descriptor or "")
        self.op_checks = planned_op_checks(load())
        self.littered = False  # an op has run since cycles were last collected

    @property
    def out_of_time(self) -> bool:
        return self.orders.deadline is not None and time.time() > self.orders.deadline

    def run(self, name: ItemId) -> Told:
        """Run one item: its cells as plain data, and a line for each that makes it fail."""
        item = self.items[name]
        guilty = self.lost.of(item.op, item.dtype)
        left = Item(item.op, item.dtype, [c for c in item.clauses if c not in guilty.clauses])
        if not left.clauses:
            return [], []
        (cell, *_) = left.cells
        case = find_case(cell) if is_case(cell) else None
        alone = name in self.alone or (case is not None and case.alone)
        run: Run = partial(self._run_op, name.suite)
        if is_case(cell):
            run = self._run_lost if case is None else partial(self._run_case, case)
        with self.watch.item(cell, guilty, alone=alone):
            began = time.perf_counter()  # the wait for the device's lock is nobody's
            documents, bad = self._again(left, run, *run(left))
            share_out(documents, time.perf_counter() - began)
            return documents, bad

    def _again(self, item: Item, run: Run, documents: list[dict[str, Any]], bad: list[str]) -> Told:
        """Run an item's flaky cells again, and judge them by all of their runs."""
        times = runs_of(self.matcher, item.cells)
        if not times:
            return documents, bad
        runs = {d["cell"][0]: [d] for d in documents if d.get("cell") and d["cell"][0] in times}
        for turn in range(1, max(times.values())):
            clauses = [clause for clause in item.clauses if times.get(clause, 0) > turn]
            for document in run(Item(item.op, item.dtype, clauses))[0]:
                if document.get("cell"):
                    runs[document["cell"][0]].append(document)
        found = []
        for document in documents:
            clause = document["cell"][0] if document.get("cell") else ""
            if clause in runs:
                document = self._rated(CellKey(*document["cell"]), runs[clause], bad)
            found.append(document)
        return found, bad

    def _rated(self, cell: CellKey, runs: list[dict[str, Any]], bad: list[str]) -> dict[str, Any]:
        """The document of a flaky cell, by all of its runs."""
        verdicts = [verdict_of(self.matcher, cell, observed_of(d), d["ran"])[0] for d in runs]
        document = together(runs, [verdict in BAD for verdict in verdicts])
        others = [observed_of(other) for other in document["seen"]]
        verdict, why = verdict_of(
            self.matcher, cell, observed_of(document), document["ran"], others
        )
        if verdict in BAD and verdicts[0] not in BAD:
            bad.append(f"{verdict} {cell}: {why}")
        return document

    def _run_case(self, case: Case, item: Item) -> Told:
        recorder = Recorder(item.op, item.dtype, item.clauses, self.undeclared)
        record = recorder.cells[case.clause]
        if self.littered:  # cycles hold tensors, which would be freed, and counted, amid a case
            gc.collect()
            self.littered = False
        # What runs in a process of its own has limits of its own, there.
        at_least = len(PATIENCE) * (case.seconds + START_SECONDS) if case.own_process else 0.0
        self.watch.begin((case.clause,), [record], at_least)
        with first_index(self.device) as device:  # cases name indices, from 0 up
            run_case(case, record, device, self.where)
            self.watch.done()
            pins = self.pins.get((item.op, item.dtype), ())
            run_programs(case, record, device, self.where, pins, self.watch)
        return self._told(item.clauses, recorder)

    def _run_lost(self, item: Item) -> Told:
        """A case that is planned for a pinned program alone."""
        pins = self.pins.get((item.op, item.dtype), ())
        return self._told(item.clauses, without_case(item.cells[0], pins))

    def _run_op(self, suite_name: str, item: Item) -> Told:
        op_id, dtype, clauses = item
        self.littered = True
        pins = self.pins.get((op_id, dtype), ()) if suite_name == LAYOUT else ()
        if op_id not in catalogue():  # planned for a pinned example alone
            return self._told(clauses, without_op(op_id, dtype, clauses, pins))
        op, known = catalogue()[op_id], exceptions()
        samples = choose(draw(op, dtype), self.orders.samples)
        cache = None
        if self.orders.reference_cache:
            kind = self.device.descriptor.torch_type
            cache = ReferenceCache(cache_root(), self.orders.torch_build, kind, f"{op_id}-{dtype}")
        withheld = untried_with([op_id], self.device.descriptor, load())[op_id]
        recorder = Recorder(op_id, dtype, clauses, self.undeclared, withheld)
        strides = StrideReference(self.device.descriptor.torch_type, cache)
        context = ItemContext(
            op=op,
            dtype=dtype,
            traits=probe(op, dtype, samples, known),
            samples=samples,
            device=self.device,
            strides=strides,
            recorder=recorder,
            known=known,
            guard=self.watch,
        )
        if suite_name == LAYOUT:
            suite.run(context)
            if pins:
                run_pins(context, pins)
        else:
            wanted = [each.check for each in self.op_checks if each.clause in clauses]
            suite.run(context, wanted)
        forget_dispatches()
        if cache is not None:
            cache.save()
        documents, bad = self._told(clauses, recorder)
        documents.append({"references": [strides.asked, strides.missed]})
        return documents, bad

    def _told(self, clauses: list[str], recorder: Recorder) -> Told:
        """The recorded cells as plain data, each judged, and what is wrong with them."""
        documents = [self.watch.noted(recorder.cells[clause].document()) for clause in clauses]
        bad: list[str] = []
        for document in documents:
            self._judge(recorder, document, bad)
        return documents, bad

    def _judge(self, recorder: Recorder, document: dict[str, Any], bad: list[str]) -> None:
        cell = CellKey(*document["cell"])
        observed = observed_of(document)
        verdict, why = verdict_of(self.matcher, cell, observed, document["ran"])
        shown = recorder.cells[cell.clause].smallest
        if shown is not None and shown.repro is not None:
            script = shown.repro()
            document["repro"] = write_repro(self.folder, cell, script)
            if self.elsewhere:
                document["script"] = script
        if verdict in BAD:
            bad.append(f"{verdict} {cell}: {observed.message or why}")
            if document.get("repro"):
                bad.append(f"    repro: python {self.folder / document['repro']}")


def share_out(documents: Iterable[dict[str, Any]], seconds: float) -> None:
    """Have the cells of an item take the ``seconds`` that the item took: what it takes to prepare them, such as
    drawing samples, is no cell's own, and an item with few cells would seem to take next to nothing."""
    cells = [document for document in documents if document.get("cell")]
    rest = seconds - sum(cell.get("seconds", 0.0) for cell in cells)
    for cell in cells:
        cell["seconds"] = round(cell.get("seconds", 0.0) + max(rest, 0.0) / len(cells), 6)


def limit_threads() -> None:
    """One thread per process in every mode, so that outcomes are the same for ``-n 0`` and ``-n 2``."""
    torch.set_num_threads(1)
