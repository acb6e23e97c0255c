"""The part of isolation that runs in the controller, the process that the user started. A watchdog kills workers that
hang. If a worker dies, the controller finds the cell that caused the death, and the rest of the item runs again.

If a worker dies in a cell, the cell counts as a crash or hang, and the other cells of its item run again in the next
free worker. If a worker dies outside of any cell, its item runs a second time. If a worker is killed by a signal such
as SIGKILL or SIGTERM, which may come from outside of the run, the cell counts as a crash only if a
worker is killed in this cell a second time. If several workers in a row die before they run anything, the run ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from conformance.checks.child import FROM_OUTSIDE, Ended
from conformance.checks.clock import LEAST_ELSEWHERE, Clock, Look, Process
from conformance.plan.selection import Item
from conformance.run.fork_client import Forked
from conformance.run.isolation.process import (
    ASK,
    START_SECONDS,
    Begun,
    Host,
    Remark,
    Start,
    Unable,
    device_frame_of,
    encode,
    note_path,
    place_of,
    read_note,
    read_said,
    stack_of,
)
from conformance.run.isolation.watch import CellLimits, path_of, read_entry
from conformance.run.item_report import GroupCall, Lost, LostCells
from devices.cell import CellKey, Outcome
from devices.descriptor import Descriptor
from devices.errors import ConformError

#: A worker holds torch, the op database and one op's buffers (bytes).
_WORKER_MEMORY: Final = 600 * 2**20
#: Deaths in a row, for each worker, after which no other is started.
_VAIN: Final = 2
#: Seconds that execnet's loop_socketserver takes to serve again after its worker died.
_SERVER_SECONDS: Final = 3.0
#: Seconds after which a process whose pipe has closed is taken to have ended unseen.
_REAPED: Final = 60.0


class NoProgress(ConformError):
    """The error that ends a run if several workers in a row die before they run anything."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Node:
    """A worker as the controller sees it: the data and the functions of the worker that the controller uses. ``where``
    names the place in which the worker runs, for messages. ``process`` is known if the controller started the process
    on this machine (for a worker over ssh, it is the process of ssh). ``start`` gets the data that the worker needs at
    its start, and a function that receives the messages of the worker."""

    name: str
    where: str
    process: Process | None
    by_socket: bool
    start: Callable[[bytes, Callable[[bytes], None]], None]
    send: Callable[[bytes], None]


class Death(NamedTuple):
    """A report about the death of a worker: the text, whether the death counts as a failure (``failed``), and whether
    the rest of the item runs again (``again``)."""

    text: str
    failed: bool
    again: bool


@dataclass
class Controller:
    """The controller of a run's workers. It watches the workers, and finds the cell that caused the death of a
    worker."""

    folder: Path  # of the journals
    results: Path
    items: Mapping[str, Item]
    limits: CellLimits
    indices: Collection[int]  # of devices
    judge: Callable[[Lost], bool]  # whether a lost cell is unexpected
    is_done: Callable[[CellKey], bool]  # whether a cell has its final outcome
    record: Callable[[Lost, str], None]  # a lost cell, with the worker's name
    lost: LostCells
    on_host: Callable[[str], None]  # gets the name of another machine with workers
    say: Callable[[str], None]  # to the user
    watchdog: Watchdog = field(init=False)
    in_use: dict[str, int] = field(default_factory=dict)  # device index by worker
    _nodes: dict[str, Node] = field(default_factory=dict)
    _begun: dict[str, tuple[CellKey, float]] = field(default_factory=dict)  # by remote workers
    _left: dict[str, Lost | Unable] = field(default_factory=dict)  # what they said as they ended
    _doubts: set[CellKey | str] = field(default_factory=set)  # the next time counts against them
    _vain: int = 0
    _said: str = ""

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.folder, max(START_SECONDS, self.limits.of("")))

    # -- a worker's life

    def watch(self, name: str, pid: int) -> None:
        """Starts to watch a worker on this machine. The function is called when the process has started and the worker
        is not ready yet."""
        self._clear(name)
        self.watchdog.watch(name, pid)

    def configured(self, node: Node) -> None:
        """Chooses a device index for a new worker, sends to the worker the data that it needs at its start, and starts
        to watch the worker."""
        name, process = node.name, node.process
        self._clear(name)
        index = least_used(self.indices, self.in_use)
        self.in_use[name] = index
        start = Start(str(self.results), index, process is None, tuple(self.lost.all))
        node.start(encode(start), lambda said: self._heard(name, said))
        self._nodes[name] = node
        if process is not None:
            self.watchdog.watch(name, process.pid)

    def _clear(self, name: str) -> None:
        """Deletes the files that an earlier worker of the same name left behind."""
        for stale in (path_of(self.folder, name), note_path(self.folder, name)):
            stale.unlink(missing_ok=True)

    def down(self, node: Node, error: object) -> None:
        """Handles the end of a worker; ``error`` is None after a normal end. Raises NoProgress if several workers in a
        row have died before they ran anything, and ConformError if the worker's machine may not take part in the
        run."""
        name = node.name
        self.watchdog.forget(name)
        self.in_use.pop(name, None)
        self._nodes.pop(name, None)
        if not error:
            return
        if node.by_socket:
            time.sleep(_SERVER_SECONDS)
        self._vain += 1
        note = self._note(name)
        if isinstance(note, Unable):
            self._said = note.text
            if note.refused:
                raise ConformError(note.text)
        if self._vain > _VAIN * (1 + len(self._nodes)):
            entry = read_entry(self.folder, name)
            if entry is None or entry.cell is None:  # else the cell is about to be named
                end = self._said or f"The last worker {'; '.join(self._end_of(node))}"
                raise NoProgress(
                    f"{self._vain} workers in a row died before they ran anything. {end}"
                )

    def progress(self) -> None:
        """Resets the number of workers that died in a row, because an item was run."""
        self._vain = 0

    # -- a death within an item

    def crashed(self, item_id: str, node: Node) -> Death:
        """Finds the cell that ended a worker's process, and returns a report about the end of the worker. All workers
        are informed of the cell before the rest of the item runs again."""
        name = node.name
        item = self.items.get(item_id)
        how = self._end_of(node)
        end, note = "; ".join(how), self._note(name)
        lost = note if isinstance(note, Lost) else self._in_cell(node, *how)
        if lost is not None:
            # another call of a cell that is charged already
            again = self.is_done(lost.cell) or bool(self.lost.deaths_of(lost.cell))
            self._lose(lost, name)
            self.progress()
            text = f"{lost.outcome} in {lost.cell}: {lost.text}"
            copied = isinstance(node.process, Forked)  # so it is made once more, alone
            return Death(text, not again and self.judge(lost), copied or self._rest(item))
        if item is None or not self._rest(item):
            return Death(f"worker {name} {end}; no result was lost", False, False)
        if item_id not in self._doubts:
            self._doubts.add(item_id)
            text = f"worker {name} {end}, outside of any cell; its item runs again"
            return Death(text, False, True)
        why = (
            f"the worker {end}; it is the second worker that died outside of the cells of the item"
        )
        gone = [Lost(c, Outcome.CRASH, why) for c in item.cells if not self.is_done(c)]
        for each in gone:
            self._lose(each, name)
        self.progress()
        text = f"worker {name} {end}; it is the second worker that died outside of the cells of {item_id}"
        return Death(text, any(map(self.judge, gone)), False)

    def _rest(self, item: Item | None) -> bool:
        """Returns True if a cell of the item has no outcome yet, or if the item is not known."""
        return item is None or not all(map(self.is_done, item.cells))

    def _lose(self, lost: Lost, worker: str) -> None:
        self.record(lost, worker)
        self.lost.add(lost)
        for node in self._nodes.values():
            # One that is dying too does not hear it: the worker that replaces it does, at its start.
            with contextlib.suppress(OSError):
                node.send(encode(lost))

    def _note(self, worker: str) -> Lost | Unable | None:
        """Returns the reason that a worker gave before it exited by itself, in a message or in a file; None if it gave
        no reason."""
        return self._left.get(worker) or read_note(self.folder, worker)

    def _in_cell(self, node: Node, end: str, stack: str = "") -> Lost | None:
        """Returns the cell in which a worker died. Returns None if the worker ran no cell, or if a signal that may come
        from outside of the run has killed a worker in this cell for the first time."""
        worker, process = node.name, node.process
        if process is None:
            return self._in_remote_cell(worker, end)
        entry = read_entry(self.folder, worker)
        if entry is None or entry.cell is None or not entry.cell.clause:
            return None
        hung = self.watchdog.hung(worker)
        if hung is not None and hung.number != entry.number:
            return None  # the cell returned while the worker was being killed
        outside = hung is None and process.poll() in FROM_OUTSIDE
        if outside and entry.cell not in self._doubts:
            self._doubts.add(entry.cell)
            return None
        outcome = Outcome.CRASH if hung is None else Outcome.HANG
        frame = device_frame_of(self.folder, worker)
        return Lost(
            entry.cell, outcome, f"the worker {end}", entry.call, stack, entry.judged, frame
        )

    def _end_of(self, node: Node) -> list[str]:
        """Returns texts about the end of a worker: a predicate such as "was killed by SIGSEGV", and the place in which
        the worker ended if it left a stack."""
        process, hung = node.process, self.watchdog.hung(node.name)
        if process is None:
            end = f"on {node.where} was lost"
        elif hung is not None:
            _status(process)
            end = f"did not return in {hung.limit:g} s and was killed"
        else:
            end = Ended(_status(process)).how
        stack = stack_of(self.folder, node.name)
        return [end, place_of(stack)] if stack else [end]

    # -- workers on other machines: their journals cannot be read here, so they report what they begin

    def _heard(self, worker: str, message: bytes) -> None:
        said = read_said(message)
        if isinstance(said, Host):
            self.on_host(said.name)
        elif isinstance(said, Remark):
            self.say(said.text)
        elif isinstance(said, Lost | Unable):
            self._left[worker] = said
        elif isinstance(said, Begun) and said.cell is not None:
            self._begun[worker] = (said.cell, time.monotonic())
        else:
            self._begun.pop(worker, None)

    def _in_remote_cell(self, worker: str, end: str) -> Lost | None:
        begun = self._begun.pop(worker, None)
        if begun is None:
            return None
        cell, since = begun
        limit = self.limits.of(cell.clause) / LEAST_ELSEWHERE
        if time.monotonic() - since >= limit:
            return Lost(cell, Outcome.HANG, f"the worker {end} after {limit:g} s")
        return Lost(cell, Outcome.CRASH, f"the worker {end}")


def _status(process: Process) -> int | None:
    """Returns the exit status of a process whose pipe has closed; None if the process does not end within 60 seconds.
    The kernel may still be writing a core dump."""
    try:
        return process.wait(timeout=_REAPED)
    except subprocess.TimeoutExpired:
        return None


def useful_workers(descriptor: Descriptor) -> int:
    """Returns the number of workers for ``-n auto``: the workers per device times the number of devices, limited by the
    number of processors and by half of the memory."""
    try:
        count = max(1, descriptor.device_count())
    except Exception:  # the device is not open yet: its module may be needed for the answer
        count = 1
    wanted = descriptor.workers_per_device * count
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(wanted, processors, memory // 2 // _WORKER_MEMORY))


def least_used(indices: Iterable[int], in_use: Mapping[str, int]) -> int:
    """Returns the device index for a new worker: the first index among those that the fewest live workers use."""
    used = Counter(in_use.values())
    return min(indices, key=lambda index: (used[index], index))


# -- the watchdog
#
# It reads the journals, so nothing in the worker has to be alive: neither the GIL nor the process, which may be stopped.
# Time is that in which the worker could run, counted in steps of this thread, of at most a second each: a machine that
# was suspended, or a run that was stopped with Ctrl-Z and continued, has lost no time. A cell that makes one call after
# another has its limit for each of them.

_TICK: Final = 0.2
#: Seconds between the request for the stack and SIGKILL.
_TO_ANSWER: Final = 1.0
#: Times its limit that a cell may take, however many calls it makes.
_CALLS: Final = 10


class Hung(NamedTuple):
    """A worker that was killed because it exceeded a time limit. The fields are the number of the last entry in the
    worker's journal, the cell of that entry, and the limit in seconds."""

    number: int
    cell: CellKey | None
    limit: float


@dataclass(slots=True)
class _Watched:
    pid: int
    clock: Clock  # since the cell began
    number: int = -1
    call: GroupCall | None = None
    since: float = 0.0  # on the clock: when the call began
    asked: float | None = None  # … when it was asked for its stack


class Watchdog:
    """A thread that watches the workers of a run, and kills a worker that exceeds the time limit of its cell."""

    def __init__(
        self,
        folder: Path,
        start_limit: float,
        kill: Callable[[int, int], None] = os.kill,
        look: Look | None = None,
    ) -> None:
        self._folder, self._start_limit, self._kill, self._at = folder, start_limit, kill, look
        self._watched: dict[str, _Watched] = {}
        self._hung: dict[str, Hung] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conform-watchdog", daemon=True)

    def begin(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stops the thread and waits for its end."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, worker: str, pid: int) -> None:
        """Starts to watch a worker."""
        with self._lock:
            self._watched[worker] = _Watched(pid, Clock(pid, self._at))
            self._hung.pop(worker, None)  # of a process of this name that could not be started

    @property
    def watched(self) -> tuple[int, ...]:
        """The process ids of the workers that are watched. The property acquires no lock, because a signal handler
        reads it."""
        return tuple(each.pid for each in [*self._watched.values()])

    def kill_all(self) -> None:
        """Kills all workers immediately."""
        for pid in self.watched:
            self._signal(pid, signal.SIGKILL)

    def forget(self, worker: str) -> None:
        """Stops watching a worker that has ended, because another process may get its process id."""
        with self._lock:
            self._watched.pop(worker, None)

    def hung(self, worker: str) -> Hung | None:
        """Returns the data about a worker that was killed because it exceeded a time limit; None for other workers."""
        return self._hung.get(worker)

    def step(self, seconds: float) -> None:
        """Adds ``seconds`` to the running time of each worker's current cell, and kills the workers whose cell exceeds
        its time limit."""
        with self._lock:
            for worker, watched in self._watched.items():
                if worker not in self._hung:
                    self._check_worker(worker, watched, min(seconds, 1.0))

    def _run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_TICK):
            now = time.monotonic()
            self.step(now - before)
            before = now

    def _check_worker(self, worker: str, watched: _Watched, seconds: float) -> None:
        entry = read_entry(self._folder, worker)
        number, cell, limit = (entry.number, entry.cell, entry.limit) if entry else (0, None, 0.0)
        if entry is None:
            limit = self._start_limit  # it has not started yet
        call = entry.call if entry else None
        if number != watched.number or (entry is not None and cell is None):
            watched.number, watched.call, watched.since, watched.asked = number, call, 0.0, None
            watched.clock.restart()
            return
        now = watched.clock.add(seconds)
        if call != watched.call:
            watched.call, watched.since, watched.asked = call, now, None
        if now < limit * _CALLS and now < limit + watched.since:
            return
        if watched.asked is None and entry is not None and ASK is not None:
            watched.asked = now
            self._signal(entry.pid, ASK)
        elif watched.asked is None or now >= watched.asked + _TO_ANSWER:
            self._hung[worker] = Hung(number, cell, limit)
            self._signal(watched.pid, signal.SIGKILL)
            if entry is not None and entry.pid != watched.pid:
                self._signal(entry.pid, signal.SIGKILL)

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, as xdist will notice
            self._kill(pid, number)
