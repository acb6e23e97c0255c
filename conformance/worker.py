"""One run, from the side of the process that runs items: a worker of xdist, or pytest itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from conformance.behaviour.alone import DeviceLock
from conformance.behaviour.cases import Case
from conformance.behaviour.process import Where
from conformance.behaviour.running import run_case
from conformance.cells import Recorder
from conformance.contract import load
from conformance.explore.pins import by_item, run_pins, without_op
from conformance.isolation import Journal
from conformance.items import Item, ItemId, is_case
from conformance.layout import suite
from conformance.layout.context import ItemContext
from conformance.minimise.script import write_repro
from conformance.orders import WorkerOrders
from conformance.planner import known_layouts, undeclared_clauses, untried_ops
from conformance.session import verdict_of
from conformance.suites import LAYOUT, case_of, planned_op_checks
from devices import registry
from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.expectations import Manifest, Matcher
from devices.pinned import read_pinned
from opinfo.catalog import catalogue
from opinfo.device import Device, open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference, forget_dispatches
from opinfo.reference_cache import ReferenceCache, cache_root
from opinfo.samples import choose, draw
from opinfo.traits import probe

#: Verdicts that make an item fail in pytest's eyes.
BAD = frozenset({Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.MISSING})


class Worker:
    """Runs items by the controller's orders."""

    def __init__(self, orders: WorkerOrders, name: str, device: Device | None = None) -> None:
        self.orders = orders
        self.items = {item.id: item for item in orders.items}
        descriptor = (
            registry.load_file(Path(orders.descriptor))
            if orders.descriptor
            else registry.get(orders.device)
        )
        self.device = device or open_device(descriptor)
        manifest = Manifest()
        if orders.expectations is not None:
            manifest = Manifest.load(
                Path(orders.expectations),
                known_clauses=set(load().clauses),
                known_layouts=known_layouts(descriptor),
            ).active(descriptor.facts())
        self.matcher = Matcher(manifest)
        self.pins = by_item(read_pinned(descriptor.folder))
        self.undeclared = undeclared_clauses(descriptor, load())
        self.folder = Path(orders.results)
        self.journal = Journal(self.folder / "journal", name)
        self.lock = DeviceLock(self.folder / "journal")
        self.where = Where(device=orders.device, path=orders.descriptor or "")
        self.op_checks = planned_op_checks(load())
        self.untried_ops = untried_ops(descriptor, load())

    @property
    def out_of_time(self) -> bool:
        return self.orders.deadline is not None and time.time() > self.orders.deadline

    def run(self, name: ItemId) -> tuple[list[dict[str, Any]], list[str]]:
        """Run one item: its cells as plain data, and a line for each that makes it fail."""
        item = self.items[name]
        (cell, *_) = item.cells
        if is_case(cell):
            case = case_of(cell.clause, cell.op)
            with self.lock.held(alone=case.alone):
                return self._run_case(case, item)
        with self.lock.held(alone=False):
            return self._run_op(name.suite, item)

    def _run_case(self, case: Case, item: Item) -> tuple[list[dict[str, Any]], list[str]]:
        recorder = Recorder(item.op, item.dtype, item.clauses, self.undeclared)
        self.journal.begin(item.op, item.dtype, case.clause)
        run_case(case, recorder.cells[case.clause], self.device, self.where)
        self.journal.end()
        return self._told(item.clauses, recorder)

    def _run_op(self, suite_name: str, item: Item) -> tuple[list[dict[str, Any]], list[str]]:
        op_id, dtype, clauses = item
        pins = self.pins.get((op_id, dtype), ()) if suite_name == LAYOUT else ()
        if op_id not in catalogue():  # planned for a pinned example alone
            return self._told(clauses, without_op(op_id, dtype, clauses, pins))
        op, known = catalogue()[op_id], exceptions()
        samples = choose(draw(op, dtype), self.orders.samples)
        cache = None
        if self.orders.reference_cache:
            kind = self.device.descriptor.torch_type
            cache = ReferenceCache(cache_root(), self.orders.torch_build, kind, f"{op_id}-{dtype}")
        recorder = Recorder(op_id, dtype, clauses, self.undeclared, self.untried_ops)
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
            journal=lambda clause: self.journal.begin(op_id, dtype, clause),
        )
        self.journal.begin(op_id, dtype, clauses[0])
        if suite_name == LAYOUT:
            suite.run(context)
            if pins:
                run_pins(context, pins)
        else:
            wanted = [each.check for each in self.op_checks if each.clause in clauses]
            suite.run(context, wanted)
        self.journal.end()
        forget_dispatches()
        if cache is not None:
            cache.save()
        documents, bad = self._told(clauses, recorder)
        documents.append({"references": [strides.asked, strides.missed]})
        return documents, bad

    def _told(
        self, clauses: list[str], recorder: Recorder
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The recorded cells as plain data, each judged, and what is wrong with them."""
        documents = [recorder.cells[clause].document() for clause in clauses]
        bad: list[str] = []
        for document in documents:
            self._judge(recorder, document, bad)
        return documents, bad

    def _judge(self, recorder: Recorder, document: dict[str, Any], bad: list[str]) -> None:
        cell = CellKey(*document["cell"])
        observed = Observed(
            Outcome(document["outcome"]),
            frozenset(document["layouts"]),
            document["raises"],
            document["message"],
            document["declared"],
        )
        verdict, why = verdict_of(self.matcher, cell, observed, document["ran"])
        shown = recorder.cells[cell.clause].smallest
        if shown is not None and shown.repro is not None:
            document["repro"] = write_repro(self.folder, cell, shown.repro())
        if verdict in BAD:
            bad.append(f"{verdict} {cell}: {observed.message or why}")
            if document.get("repro"):
                bad.append(f"    repro: python {self.folder / document['repro']}")


def limit_threads() -> None:
    """One thread per process in every mode, so that outcomes are the same for ``-n 0`` and ``-n 2``."""
    torch.set_num_threads(1)
