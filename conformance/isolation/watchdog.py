"""The controller's watchdog: a thread that ends workers whose cell does not return.

It reads the journals, so nothing in the worker has to be alive: neither the GIL nor the process, which may be
stopped. Time is counted in steps of this thread, at most a second each: a machine that was suspended, or a
run that was stopped with Ctrl-Z and goes on, has lost no time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.isolation.journal import read_entry
from conformance.isolation.process import ASK
from devices.cell import CellKey

_TICK: Final = 0.2
#: Seconds between asking for the stack and the end.
_TO_ANSWER: Final = 1.0


@dataclass(frozen=True, slots=True)
class Hung:
    """A worker that was ended: in which entry of its journal, after how many seconds."""

    number: int
    cell: CellKey | None
    limit: float


@dataclass(slots=True)
class _Watched:
    pid: int
    number: int = -1
    waited: float = 0.0
    asked: float | None = None


class Watchdog:
    """Watches any number of workers. ``begin`` starts the thread, ``end`` stops it."""

    def __init__(
        self, folder: Path, start_limit: float, kill: Callable[[int, int], None] = os.kill
    ) -> None:
        self._folder, self._start_limit, self._kill = folder, start_limit, kill
        self._watched: dict[str, _Watched] = {}
        self._hung: dict[str, Hung] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conform-watchdog", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, worker: str, pid: int) -> None:
        """Watch a worker from its start on."""
        with self._lock:
            self._watched[worker] = _Watched(pid)

    def forget(self, worker: str) -> None:
        """It has ended: its process id may be another's by now."""
        with self._lock:
            self._watched.pop(worker, None)

    def hung(self, worker: str) -> Hung | None:
        """What a worker was ended for, if it was."""
        return self._hung.get(worker)

    def step(self, seconds: float) -> None:
        """Count ``seconds`` against every worker that is in a cell, and end those that have had their time."""
        with self._lock:
            for worker, watched in self._watched.items():
                if worker not in self._hung:
                    self._look(worker, watched, min(seconds, 1.0))

    def _run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_TICK):
            now = time.monotonic()
            self.step(now - before)
            before = now

    def _look(self, worker: str, watched: _Watched, seconds: float) -> None:
        entry = read_entry(self._folder, worker)
        number, cell, limit = (entry.number, entry.cell, entry.limit) if entry else (0, None, 0.0)
        if entry is None:
            limit = self._start_limit  # it has not come up yet
        if number != watched.number or (entry is not None and cell is None):
            watched.number, watched.waited, watched.asked = number, 0.0, None
            return
        watched.waited += seconds
        if watched.waited < limit:
            return
        if watched.asked is None and entry is not None and ASK is not None:
            watched.asked = watched.waited
            self._signal(entry.pid, ASK)
        elif watched.asked is None or watched.waited >= watched.asked + _TO_ANSWER:
            self._hung[worker] = Hung(number, cell, limit)
            self._signal(watched.pid, signal.SIGKILL)
            if entry is not None and entry.pid != watched.pid:
                self._signal(entry.pid, signal.SIGKILL)

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, which xdist will see
            self._kill(pid, number)
