"""Runs items in forked copies of a worker, so that a crash ends only the copy and not the worker.

A worker that may be forked keeps one idle fork of itself. Items run in the worker until a call in this run has crashed a
process, or a call in this worker has written to memory outside of the call's output; after that they run in forks of
the idle fork. Items that are expected to crash always run in such forks. A crash in a fork costs only some tens of
milliseconds. A cell that crashed is run again alone in a new fork. The cell counts as a crash only if the new fork
crashes, too. After that, the cell runs once more without the calls that end the process, so that its other checks count.
"""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from conformance.checks.child import FROM_OUTSIDE, Ended
from conformance.plan.selection import Item, WrongMachine, named
from conformance.run.fork_server import is_copy, may_copy
from conformance.run.isolation.process import (
    START_SECONDS,
    Remark,
    Start,
    Unable,
    begin_worker,
    close_in_children,
    device_frame_of,
    leave_stacks,
    read_start,
    stack_of,
)
from conformance.run.isolation.watch import Journal, Place, read_entry
from conformance.run.item_report import (
    ItemReport,
    Lost,
    LostCells,
    may_run_again,
    with_rest,
    without_end,
)
from conformance.run.process_copies import Copies, loads_for_copies
from conformance.run.worker import Task, Worker, WorkerOrders, prepare, read_orders
from devices.cell import CellKey, CellOutcome, Outcome
from devices.errors import ConformError
from devices.failure import Kind

#: The number of a worker's threads that only wait for messages: execnet's.
_WAITING: Final = 1
#: Deaths outside of any cell after which the worker ends as its copy did.
_TRIES: Final = 2


class Ran(msgspec.Struct, frozen=True, tag="ran"):
    """The result of a task: the report of its item, and lines of text about the cells that make the item fail."""

    report: ItemReport
    lines: list[str]


_encode: Final = msgspec.msgpack.Encoder().encode
_read_task: Final = msgspec.msgpack.Decoder(Task).decode
_read_said: Final = msgspec.msgpack.Decoder(Lost | Ran | Remark | Unable).decode


def serve_items(name: str, start: Start, orders: WorkerOrders, connection: Connection) -> NoReturn:
    """Receives tasks over the connection, runs them and sends the results, until the connection closes. The function
    runs in a forked copy of the worker."""

    def end(note: Lost | Unable) -> NoReturn:
        connection.send_bytes(_encode(note))
        os._exit(0)  # at once: the device's own clean-up could hang

    def say(text: str) -> None:
        connection.send_bytes(_encode(Remark(text)))

    journals = Path(start.results) / "journal"
    close_in_children([connection.fileno()])  # the worker notices a death when it closes
    leave_stacks(journals, name)
    journal = Journal(journals, name)
    journal.begin(CellKey("", "", ""), START_SECONDS + orders.limits.of(""))
    place = Place(journal, start.index, LostCells(), end, say)
    try:
        worker = Worker(orders, place, Path(start.results))
    except ConformError as error:
        end(Unable(str(error), isinstance(error, WrongMachine)))
    journal.end()
    while True:
        try:
            task = _read_task(connection.recv_bytes())
        except EOFError:
            os._exit(0)
        connection.send_bytes(_encode(Ran(*worker.do(task))))


@dataclass
class Runner:
    """The runner of a worker's items, which run in the process of the worker or in forked copies of that process. The
    docstring of the module says when copies are used.
    """

    _name: str
    _orders: WorkerOrders
    _place: Place
    _journals: Path
    _make: Callable[[], Worker]
    _copies: Copies | None
    _end: Callable[[Lost | Unable], NoReturn]
    _distrusted: bool = False  # a kernel wrote outside of its buffers in this process

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """The items of the run, by their id."""
        return self._orders.items_by_id()

    @cached_property
    def _alone(self) -> frozenset[str]:
        return frozenset(named((), self._orders.last))

    @cached_property
    def in_process_worker(self) -> Worker:
        """The worker that runs items in this process; created at first use."""
        return self._make()

    @property
    def out_of_time(self) -> bool:
        """True if the time given by ``--max-time`` is over."""
        return self._orders.out_of_time

    def run(self, item_id: str) -> tuple[ItemReport, list[str]]:
        """Runs one item. Returns the report of the item, and lines of text about the cells that make the item fail."""
        dying = self._place.lost.all or item_id in self._alone or self._distrusted
        if self._copies is not None and dying:
            return self._run_in_copies(self._copies, item_id)
        report, lines = self.in_process_worker.run(item_id)
        self._distrusted = wrote_outside(report)
        return report, lines

    def _run_in_copies(self, copies: Copies, item_id: str) -> tuple[ItemReport, list[str]]:
        item, expected = self.items[item_id], item_id in self._alone
        if expected:
            copies.end()
        known = [lost for lost in self._place.lost.all if lost.cell in item.cells]
        report, lost = self._run_rest(copies, item_id, known)
        # Of those that are expected to die, each is run alone, as an item of its own.
        first = {each.cell: each for each in reversed(lost) if each.cell in item.cells}
        told = [
            self._with_rest(copies, item_id, each.as_outcome, lost)
            if expected
            else self._judged_end(copies, item_id, each, lost)
            for each in first.values()
        ]
        if not told:
            return report.report, report.lines
        judged = self._do(copies, Task(item_id, told=tuple(told)))
        lines = judged.lines if isinstance(judged, Ran) else [each.message for each in told]
        cells = (*report.report.cells, *told)
        return msgspec.structs.replace(report.report, cells=cells), [*report.lines, *lines]

    def _run_rest(self, copies: Copies, item_id: str, known: list[Lost]) -> tuple[Ran, list[Lost]]:
        """Runs the cells of an item that have no outcome yet. If a crash ends a copy of the worker, the next copy runs
        the remaining cells. Returns the report of the item, and the cells that crashed."""
        lost, tries = list(known), 0
        while set(self.items[item_id].cells) - {each.cell for each in lost}:
            answer = self._do(copies, Task(item_id, lost=tuple(lost)))
            if isinstance(answer, Lost):
                lost.append(answer)
            elif isinstance(answer, Ran):
                if wrote_outside(answer.report):
                    copies.end()
                return answer, lost
            elif (tries := tries + 1) == _TRIES:
                _end_as(answer)
        return Ran(ItemReport(), []), lost

    def _judged_end(
        self, copies: Copies, item_id: str, first: Lost, lost: list[Lost]
    ) -> CellOutcome:
        """Returns the outcome of a cell that ended its process in ``first``, with the result of its other checks. Calls
        of which the CPU dies as well are left out, and the outcome of the cell is that of its other calls."""
        cell, calls, end = first.cell, 0, first
        while (found := self._confirmed(copies, item_id, end)) is None:
            calls += 1
            if not may_run_again([each for each in lost if each.cell == cell]):
                break
            again = self._do(copies, Task(item_id, (cell.clause,), tuple(lost), again=True))
            if isinstance(again, Ran):
                return without_end(again.report.cells[0], calls)
            if not isinstance(again, Lost):  # the copy died outside of any cell
                break
            lost.append(again)
            end = again
        return self._with_rest(copies, item_id, found or end.as_outcome, lost)

    def _confirmed(self, copies: Copies, item_id: str, lost: Lost) -> CellOutcome | None:
        """Returns the outcome of a cell that ended its process. The cell is run again alone, and counts as a crash only
        if it ends the process again. Returns None if the CPU ends the process with the arguments of the call."""
        if lost.outcome is not Outcome.CRASH:
            return lost.as_outcome
        clauses = (lost.cell.clause,)
        if lost.call is not None:
            copies.end()
            if isinstance(
                again := self._do(copies, Task(item_id, clauses, only=lost.call.call)), Lost
            ):
                return None if again.of_cpu else again.as_outcome
        copies.end()
        again = self._do(copies, Task(item_id, clauses))
        if isinstance(again, Lost):  # after other calls of the cell
            return msgspec.structs.replace(again, call=None).as_outcome
        if not isinstance(again, Ran):
            return lost.as_outcome
        (found,) = again.report.cells
        note = f"first run of the cell: {lost.message}; this did not happen again when the cell ran alone"
        return msgspec.structs.replace(found, note="; ".join(filter(None, (found.note, note))))

    def _with_rest(
        self, copies: Copies, item_id: str, ended: CellOutcome, lost: list[Lost]
    ) -> CellOutcome:
        """Returns the outcome of a cell that ended its process, with the result of its other checks. The cell runs
        again without the calls that end the process. A call that ends the process now is added to ``lost``, and the cell
        runs once more."""
        cell = ended.cell
        while ended.outcome in (Outcome.CRASH, Outcome.HANG) and may_run_again(
            [each for each in lost if each.cell == cell]
        ):
            again = self._do(copies, Task(item_id, (cell.clause,), tuple(lost), again=True))
            if isinstance(again, Ran):
                (found,) = again.report.cells
                if wrote_outside(again.report) or found.rest is None:
                    copies.end()  # what ends this cell may have been done without a call
                return with_rest(ended, found)
            if not isinstance(again, Lost):  # the copy died outside of any cell
                break
            lost.append(again)
        return ended

    def _do(self, copies: Copies, task: Task) -> Ran | Lost | int:
        """Runs a task in a copy of the worker. Returns the result of the task. If the copy died in a cell, returns that
        cell; if it died outside of any cell, returns its exit status."""
        connection = copies.connection()
        try:
            connection.send_bytes(_encode(task))
            said: Lost | Ran | Remark | Unable = _read_said(connection.recv_bytes())
            while isinstance(said, Remark):
                self._place.say(said.text)
                said = _read_said(connection.recv_bytes())
        except (EOFError, OSError):
            return self._ended(copies.end() or 0)
        if isinstance(said, Unable):
            self._end(said)
        if isinstance(said, Lost):
            copies.end()
        return said

    def _ended(self, status: int) -> Lost | int:
        """Returns the cell in which a copy of the worker died. If the copy died outside of any cell, returns its exit
        ``status``."""
        if status in FROM_OUTSIDE:  # a person, or a system without memory: the controller decides
            _end_as(status)
        entry = read_entry(self._journals, self._name)
        if entry is None or entry.cell is None or not entry.cell.clause:
            return status
        stack = stack_of(self._journals, self._name)
        how = f"the worker {Ended(status).how}"
        more = f"in {stack}" if stack else ""
        frame = device_frame_of(self._journals, self._name)
        return Lost(entry.cell, Outcome.CRASH, how, entry.call, more, entry.judged, frame)


def wrote_outside(report: ItemReport) -> bool:
    """Returns True if a cell of the report failed because bytes outside of the output changed. The kernel may have
    overwritten other memory of the process, too."""
    return any(
        found.outcome is Outcome.FAIL
        and found.failure is not None
        and found.failure.kind is Kind.BYTES
        for found in report.cells
    )


def _end_as(status: int) -> NoReturn:
    """Ends this worker with the same exit status or the same signal that ended its copy."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status or 1)


def start_worker(
    name: str, encoded: bytes, orders: bytes, channel: Any, pipes: Iterable[int]
) -> Runner:
    """Prepares this process, a worker of pytest-xdist, and returns the runner of its items. If the worker cannot take
    part in the run, it sends the reason to the controller and exits; the controller then replaces the worker or ends
    the run."""
    start = read_start(encoded)
    place, end = begin_worker(start, name, channel, pipes)
    try:
        given, results = read_orders(orders), Path(start.results)
        prepare(given)  # takes seconds, which must not be charged to the first item
        copies = None
        if is_copy() and may_copy(_WAITING) and not start.remote:
            copies = Copies(
                partial(serve_items, name, start, given),
                partial(loads_for_copies, given.bench, start.index),
            )
        make = partial(Worker, given, place, results)
        runner = Runner(name, given, place, results / "journal", make, copies, end)
        if copies is None or not place.lost.all:
            _ = runner.in_process_worker
        return runner
    except msgspec.DecodeError as error:  # of another version of the suite
        end(Unable(f"the worker on {platform.node()!r} cannot read its orders: {error}", True))
    except ConformError as error:
        end(Unable(str(error), isinstance(error, WrongMachine)))
