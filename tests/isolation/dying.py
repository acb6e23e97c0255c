"""A device on which one call of each cell ends the process, without processes: a death is an exception that nothing
catches, and a copy of the worker is the same worker again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import msgspec

from conformance.checks.call_hooks import INPUTS
from conformance.plan.selection import Item, Machine
from conformance.run.crash_isolation import Ran, Runner
from conformance.run.isolation.watch import CellLimits, Journal, Place, Watch, path_of
from conformance.run.item_report import GroupCall, Lost, LostCells
from conformance.run.process_copies import Copies
from conformance.run.worker import Task, Worker, WorkerOrders
from conformance.search.minimise.tasks import Bench
from devices.cell import CallKey, CellKey, CellOutcome, Outcome
from opinfo.device import Device

NAME = "gw0"


class Died(BaseException):
    """The process has ended."""


class Left(BaseException):
    """The process has left because its device is unusable."""

    def __init__(self, lost: Lost) -> None:
        super().__init__()
        self.lost = lost


#: Whether the call with this number (from 0, among the calls of its group that are made) is deadly.
Deadly = Callable[[int, CallKey], bool]


@dataclass
class Deaths:
    """The deadly calls of a device. Each stays deadly, however often the cell runs again."""

    deadly: Deadly
    folder: Path
    known: set[tuple[tuple[str, ...], GroupCall]] = field(default_factory=set)
    journal: bytes = b""
    count: int = 0
    _numbers: dict[Any, int] = field(default_factory=dict)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Makes calls deadly in a block."""
        call = Watch.call

        def deadly(watch: Watch, key: CallKey, clauses: Collection[str] = ()) -> bool:
            made = call(watch, key, clauses)
            if made and key.layout != INPUTS:
                self._meet(watch, key)
            return made

        with mock.patch.object(Watch, "call", deadly):
            yield

    def _meet(self, watch: Watch, key: CallKey) -> None:
        item, call = watch._item, GroupCall(watch._group[0], key)
        group = item, call.group
        number = self._numbers.setdefault(
            (group, key), len([k for k in self._numbers if k[0] == group])
        )
        if self.deadly(number, key):
            self.known.add((item, call))
        if (item, call) in self.known:
            self.count += 1
            self.journal = path_of(self.folder, NAME).read_bytes()
            raise Died


class SameProcess(Copies):
    """Copies of a worker that are the worker itself."""

    def __init__(self, worker: Worker, deaths: Deaths) -> None:
        self._worker, self._deaths, self._status = worker, deaths, 0
        self._task = b""

    def connection(self) -> Any:
        return self

    def send_bytes(self, task: bytes) -> None:
        self._task = task

    def recv_bytes(self) -> bytes:
        task = msgspec.msgpack.decode(self._task, type=Task)
        try:
            with self._deaths.on():
                return msgspec.msgpack.encode(Ran(*self._worker.do(task)))
        except Left as left:
            return msgspec.msgpack.encode(left.lost)
        except Died:
            self._status = -signal.SIGSEGV
            with path_of(self._deaths.folder, NAME).open("r+b") as file:  # which the worker maps
                file.write(self._deaths.journal)
            raise EOFError from None

    def end(self) -> int:
        status, self._status = self._status, 0
        return status


class DyingDevice:
    """Runs cells of a device on which some calls end the process."""

    def __init__(self, folder: Path, device: Device, path: str | None) -> None:
        self._folder, self._device, self._path = folder, device, path

    @staticmethod
    def call(cell: CellKey, call: CallKey) -> GroupCall:
        """A call of the group that the clause of a cell is the first of."""
        return GroupCall(cell.clause, call)

    def run(
        self, cell: CellKey, deadly: Deadly, known: Collection[Lost] = (), samples: int = 3
    ) -> tuple[CellOutcome, Deaths]:
        """Returns the outcome of a cell that is an item of its own, and the deaths."""
        journals = self._folder / "journal"
        deaths = Deaths(deadly, journals)
        item = Item(cell.unit, cell.dtype, [cell.clause], cell.variant)
        descriptor = self._device.descriptor
        bench = Bench(descriptor.name, self._path, samples)
        machine = Machine.of(descriptor.facts())
        about = None, False, "", None, (item,), (), CellLimits(60.0), machine
        orders = WorkerOrders(bench, *about)
        # A death elsewhere, so that items run in copies.
        lost = LostCells([*known, _ELSEWHERE])

        def left(lost: Lost) -> NoReturn:
            raise Left(lost)

        place = Place(Journal(journals, NAME), 0, lost, left, print)
        worker = Worker(orders, place, self._folder, self._device)
        copies = SameProcess(worker, deaths)
        runner = Runner(NAME, orders, place, journals, lambda: worker, copies, _never)
        report, _ = runner.run(next(iter(orders.items_by_id())))
        (found,) = report.cells
        return found, deaths


def _never(note: object) -> NoReturn:
    raise AssertionError(note)


_ELSEWHERE = Lost(CellKey("layout.values", "an op", "float32"), Outcome.CRASH, "x")
