"""The controller's side of a worker's death: whose fault it was, and that everything else still runs.

A worker that dies in a cell has that cell to blame, and the rest of its item runs again, in whichever worker
takes it. One that dies outside of any cell costs the item a second try. A death from outside (SIGKILL, SIGTERM)
is held against a cell only if it happens again. Workers that die without any of this are not restarted for ever.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conformance.isolation.deaths import death_of, ended, stack_of
from conformance.isolation.guard import note_path, read_note
from conformance.isolation.journal import path_of, read_entry
from conformance.isolation.limits import Limits
from conformance.isolation.lost import Lost, LostCells
from conformance.isolation.watchdog import Hung, Watchdog
from conformance.isolation.workers import least_used
from conformance.items import Item, ItemId
from devices.cell import CellKey, Outcome
from devices.errors import ConformError

#: Signals that come from outside: from a person, a job's limit, or a kernel that is out of memory.
_FROM_OUTSIDE: Final = frozenset(
    -number
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", None))
    if number is not None
)
#: Deaths in a row, for each worker, after which nothing is gained by another one.
_VAIN: Final = 2
#: Seconds that execnet's loop_socketserver takes to serve again after its worker died.
_SERVER_SECONDS: Final = 3.0
#: Seconds for a worker to load torch and the op database and to open its device, at least.
_START_SECONDS: Final = 300.0


class NoProgress(ConformError):
    """Workers die before they do anything."""

    exit_code = 3


class Refused(ConformError):
    """A worker runs on a machine that is not like the controller's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is told of a worker's death: a text, whether it counts as a failure, and whether the rest of the
    item has to run again."""

    text: str
    failed: bool
    again: bool


@dataclass
class Controller:
    """Watches a run's workers. ``judge`` says whether a lost cell is unexpected; ``is_done`` whether a cell has
    its outcome; ``record`` takes a lost cell down."""

    folder: Path  # of the journals
    items: Mapping[ItemId, Item]
    limits: Limits
    indices: Collection[int]  # of devices
    judge: Callable[[Lost], bool]
    is_done: Callable[[CellKey], bool]
    record: Callable[[Lost, str], None]
    lost: LostCells
    meet: Callable[[str], None]  # the name of another machine with workers
    watchdog: Watchdog = field(init=False)
    in_use: dict[str, int] = field(default_factory=dict)  # device index by worker
    failures: int = 0
    _nodes: dict[str, Any] = field(default_factory=dict)
    _begun: dict[str, tuple[CellKey, float]] = field(default_factory=dict)  # told by remote workers
    _left: dict[str, dict[str, Any]] = field(default_factory=dict)  # … as they ended
    _doubts: set[CellKey | str] = field(default_factory=set)  # to be held against them next time
    _vain: int = 0
    _said: str = ""

    def __post_init__(self) -> None:
        start = max(_START_SECONDS, self.limits.of(""))
        self.watchdog = Watchdog(self.folder, start)

    # -- a worker's life

    def configured(self, node: Any, orders: dict[str, Any]) -> None:
        """Before a worker starts: what it is told."""
        name = node.gateway.id
        for stale in (path_of(self.folder, name), note_path(self.folder, name)):
            stale.unlink(missing_ok=True)
        index = least_used(self.indices, self.in_use)
        self.in_use[name] = index
        channel = node.gateway.newchannel()
        remote = self._process(node) is None
        if remote:
            channel.setcallback(lambda said: self._told(name, said))
        node.workerinput["conform"] = {
            **orders,
            "index": index,
            "remote": remote,
            "lost": [lost.plain() for lost in self.lost.all],
        }
        node.workerinput["conform_channel"] = channel
        node.conform_channel = channel
        self._nodes[name] = node
        process = self._process(node)
        if process is not None:
            self.watchdog.watch(name, process.pid)

    def down(self, node: Any, error: object) -> None:
        """A worker has ended. Raises NoProgress where that is all they ever do, Refused where it may not take
        part."""
        name = node.gateway.id
        self.watchdog.forget(name)
        self.in_use.pop(name, None)
        self._nodes.pop(name, None)
        if not error:
            return
        if getattr(node.gateway.spec, "socket", None):
            time.sleep(_SERVER_SECONDS)
        self._vain += 1
        note = self._note(name)
        if note is not None and "error" in note:
            self._said = str(note["error"])
            if note.get("refused"):
                raise Refused(self._said)
        if self._vain > _VAIN * (1 + len(self._nodes)):
            entry = read_entry(self.folder, name)
            if entry is None or entry.cell is None:  # else the cell is about to be named
                raise NoProgress(
                    f"{self._vain} workers in a row died before they ran anything. "
                    f"{self._said or self._end_of(node, name)}"
                )

    def progress(self) -> None:
        """Something was done."""
        self._vain = 0

    # -- a death within an item

    def crashed(self, crashitem: str, node: Any) -> Verdict:
        """Find out whose fault it was. Everyone is told of a lost cell before the item may run again."""
        name = node.gateway.id
        item = self.items.get(_id_of(crashitem))
        end = self._end_of(node, name)
        lost = self._noted(name) or self._in_cell(node, name, end)
        if lost is not None:
            self._take_down(lost, name)
            self.progress()
            failed = self.judge(lost)
            self.failures += failed
            kind = "hang" if lost.outcome is Outcome.HANG else "crash"
            text = f"{kind} in {lost.cell}: {lost.message}"
            return Verdict(text, failed, self._rest(item))
        if item is None or not self._rest(item):
            return Verdict(f"{end}; nothing was lost", False, False)
        if crashitem not in self._doubts:
            self._doubts.add(crashitem)
            return Verdict(f"{end} outside of any cell: its item runs again", False, True)
        failed = False
        for cell in item.cells:
            if not self.is_done(cell):
                gone = Lost(cell, Outcome.CRASH, f"{end} before any cell of its item began, twice")
                self._take_down(gone, name)
                failed |= self.judge(gone)
        self.progress()
        self.failures += failed
        return Verdict(f"{end} before any cell of {item.id.name} began, twice", failed, False)

    def _rest(self, item: Item | None) -> bool:
        """Whether some cell of the item has no outcome yet."""
        return item is None or not all(map(self.is_done, item.cells))

    def _take_down(self, lost: Lost, worker: str) -> None:
        self.record(lost, worker)
        self.lost.add(lost)
        for node in self._nodes.values():
            # One that is dying too cannot be told: the worker in its place is, at its start.
            with contextlib.suppress(OSError):
                node.conform_channel.send(lost.plain())

    def _noted(self, worker: str) -> Lost | None:
        note = self._note(worker)
        if note is None or "cell" not in note:
            return None
        self._begun.pop(worker, None)
        return Lost.of(note)

    def _note(self, worker: str) -> dict[str, Any] | None:
        """What a worker said as it ended by itself: in a file here, or told from elsewhere."""
        return self._left.get(worker) or read_note(self.folder, worker)

    def _in_cell(self, node: Any, worker: str, end: str) -> Lost | None:
        """The cell that the worker died in, unless the death may have come from outside."""
        process = self._process(node)
        if process is None:
            return self._in_remote_cell(worker, end)
        entry = read_entry(self.folder, worker)
        if entry is None or entry.cell is None or not entry.cell.clause:
            return None
        hung = self.watchdog.hung(worker)
        if hung is not None:
            if hung.number != entry.number:
                return None  # it returned as it was ended
            return Lost(entry.cell, Outcome.HANG, end, entry.call)
        if process.returncode in _FROM_OUTSIDE and entry.cell not in self._doubts:
            self._doubts.add(entry.cell)
            return None
        return Lost(entry.cell, Outcome.CRASH, end, entry.call)

    def _end_of(self, node: Any, worker: str) -> str:
        """How a worker ended, for people: with its stack, where it left one."""
        process = self._process(node)
        hung: Hung | None = self.watchdog.hung(worker)
        if hung is not None and process is not None:
            ended(process)
            end = f"worker {worker} did not return in {hung.limit:g} s and was killed"
        elif process is not None:
            end = f"worker {worker} {death_of(ended(process))}"
        else:
            where = str(node.gateway.spec).removeprefix("execmodel=main_thread_only//")
            end = f"worker {worker} on {where} was lost"
        stack = stack_of(self.folder, worker)
        return f"{end}; in {stack}" if stack else end

    # -- workers on other machines: no journal of theirs can be read here, so they tell what they begin

    def _told(self, worker: str, said: dict[str, Any]) -> None:
        if "left" in said:
            self._left[worker] = said["left"]
        elif "host" in said:
            self.meet(said["host"])
        elif said["begun"]:
            self._begun[worker] = (CellKey(*said["begun"]), time.monotonic())
        else:
            self._begun.pop(worker, None)

    def _in_remote_cell(self, worker: str, end: str) -> Lost | None:
        begun = self._begun.pop(worker, None)
        if begun is None:
            return None
        cell, since = begun
        limit = self.limits.of(cell.clause)
        if time.monotonic() - since >= limit:
            return Lost(cell, Outcome.HANG, f"{end} after {limit:g} s")
        return Lost(cell, Outcome.CRASH, end)

    @staticmethod
    def _process(node: Any) -> Any:
        """The worker's process where it is one of this machine that we started, else None (over ssh there is
        one too, and it is ssh's)."""
        if not getattr(node.gateway.spec, "popen", False):
            return None
        return getattr(getattr(node.gateway, "_io", None), "popen", None)


def _id_of(crashitem: str) -> ItemId:
    """The item of a node id such as ``conformance/test_layout.py::test_layout[mm-int64]``."""
    path, _, rest = crashitem.partition("::")
    return ItemId(Path(path).stem.removeprefix("test_"), rest.partition("[")[2][:-1])
