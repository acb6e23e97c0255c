"""A clock that counts only the time in which a process could run. The suite's time limits count this time, not the time
spent waiting for a processor.

On a busy machine a process has to wait for a processor. Linux counts, for each thread, how long the thread was ready to
run and had to wait: the second number of /proc/PID/task/TID/schedstat, in ns
(https://docs.kernel.org/scheduler/sched-stats.html). A thread that sleeps, for a lock or for I/O, does not wait for a
processor. So a hang counts in full, and on a quiet machine all time counts.

The module imports only the standard library, because repro scripts contain it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

#: At least this fraction of elapsed time counts, so that a process that spins forever is ended on any
#: machine.
LEAST = 1 / 30
#: The same fraction on systems that do not report how long a thread has waited. There, processor time counts
#: in full.
LEAST_ELSEWHERE = 1 / 5
#: _LOOK: the longest time in seconds between two looks at a process that is waited for. _GAP: a longer gap
#: counts as this many seconds, because this process was stopped or suspended.
_LOOK, _GAP = 0.5, 1.0
#: TURN: seconds for which to watch for an event that must not happen. _TURNS: the factor by which to extend
#: this time while some thread has not run.
TURN, _TURNS = 0.01, 20


class Process(Protocol):
    """A started process, with the interface of ``subprocess.Popen``."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def could_run(seconds: float, before: Mapping[int, float], now: Mapping[int, float]) -> float:
    """Returns how many of the elapsed ``seconds`` passed without any thread waiting for a processor. ``before`` and
    ``now`` map each thread id to the total seconds that the thread had waited, at the start and at the end of the
    period.

    The waiting times of the threads are not added up: only the longest is subtracted, because the other threads waited
    or slept during the same time. The result can be negative, because the kernel adds a wait only when the wait is
    over.
    """
    return seconds - max((now[each] - before.get(each, 0.0) for each in now), default=0.0)


def could_run_elsewhere(
    seconds: float, before: Mapping[int, float], now: Mapping[int, float]
) -> float:
    """Estimates how many of the elapsed ``seconds`` a process could run, on systems that do not report waiting times.
    The estimate is the largest processor time that any of the given processes used in the period, but at least the
    fraction LEAST_ELSEWHERE of ``seconds``. ``before`` and ``now`` map each process id to the processor time in seconds
    that the process had used, at the start and at the end of the period."""
    used = max((now[each] - before.get(each, 0.0) for each in now), default=0.0)
    return max(used, seconds * LEAST_ELSEWHERE)


def waited(process: int) -> dict[int, float]:
    """Returns the seconds that each thread of a process and of its descendants has waited for a processor so far, by
    thread id. Empty if the process does not exist."""
    found: dict[int, float] = {}
    processes = [process]
    while processes:
        tasks = f"/proc/{processes.pop()}/task"
        with suppress(OSError):  # the process has ended
            for thread in os.listdir(tasks):
                with suppress(OSError, IndexError):
                    found[int(thread)] = int(_words(f"{tasks}/{thread}/schedstat")[1]) / 1e9
                    processes += map(int, _words(f"{tasks}/{thread}/children"))
    return found


def ready(process: int) -> dict[int, int]:
    """Returns the threads of a process that are running or ready to run, with the processor time in ns that each has
    used, by thread id. Empty if the system does not report thread states."""
    found: dict[int, int] = {}
    tasks = f"/proc/{process}/task"
    with suppress(OSError):
        for thread in os.listdir(tasks):
            with suppress(OSError, IndexError):
                with open(f"{tasks}/{thread}/stat", "rb", buffering=0) as file:
                    state = file.read().rpartition(b")")[2].split()[0]
                if state == b"R":
                    found[int(thread)] = int(_words(f"{tasks}/{thread}/schedstat")[0])
    return found


def _words(path: str) -> list[bytes]:
    with open(path, "rb", buffering=0) as file:
        return file.read().split()


def used(process: int, table: str | None = None) -> dict[int, float]:
    """Returns the seconds of processor time that a process and its descendants have used so far, by process id.
    ``table`` is the output of ``ps``; by default ``ps`` is run."""
    if table is None:
        command = ["ps", "-A", "-o", "pid=,ppid=,time="]
        try:
            table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return {}
    rows = {
        int(pid): (int(parent), spent) for pid, parent, spent in map(str.split, table.splitlines())
    }
    found: dict[int, float] = {}
    for each in rows:
        above = each
        while above != process and above in rows and above != rows[above][0]:
            above = rows[above][0]
        if above == process:
            found[each] = _seconds(rows[each][1])
    return found


def _seconds(text: str) -> float:
    """Converts ``[[days-]hours:]minutes:seconds``, the format of ``ps``, to seconds."""
    days, _, rest = text.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part)
    return total + float(days or 0) * 86400


def waits_are_told() -> bool:
    """Returns True if this system reports how long a thread has waited for a processor."""
    with suppress(OSError, IndexError):
        return int(_words("/proc/self/schedstat")[0]) > 0
    return False


#: Looks at a process: returns a number of seconds for each of its threads or descendants.
Look = Callable[[int], Mapping[int, float]]


class Clock:
    """A clock that stands still while the process could not run: it counts elapsed time minus the time in which some
    thread of the process had to wait for a processor. Measures the current process by default, always with its
    descendants."""

    def __init__(self, process: int | None = None, look: Look | None = None) -> None:
        self._process = os.getpid() if process is None else process
        self._count = could_run if look or waits_are_told() else could_run_elsewhere
        self._look = look or (waited if self._count is could_run else used)
        self.restart()

    def restart(self) -> None:
        """Sets the clock to 0."""
        self._counted = self._passed = 0.0
        self._seen, self._at = self._look(self._process), time.monotonic()

    def add(self, seconds: float) -> float:
        """Counts the given elapsed seconds, except the time in which the process could not run. Returns the same value
        as ``now``."""
        seen = self._look(self._process)
        self._counted += self._count(seconds, self._seen, seen)
        self._passed += seconds
        self._seen, self._at = seen, time.monotonic()
        return max(self._counted, self._passed * LEAST)

    def now(self) -> float:
        """Returns the seconds counted so far."""
        return self.add(time.monotonic() - self._at)

    def wait(self, ready: Callable[[float], object], until: float) -> bool:
        """Calls ``ready(seconds)``, which waits at most that long, until it returns a true value. Returns False if the
        clock reaches ``until`` first."""
        left = until - self.now()
        while not ready(min(max(left, 0.0), _LOOK)):
            if left <= 0.0:
                return False
            left = until - self.add(min(time.monotonic() - self._at, _GAP))
        return True


class Turns:
    """Detects when every other thread of this process has had a chance to run, that is, when each of them is asleep or
    has run since it was first seen ready to run."""

    def __init__(self, look: Callable[[int], Mapping[int, int]] = ready) -> None:
        self._look, self._process, self._me = look, os.getpid(), threading.get_native_id()
        self._first: dict[int, int] = {}

    def all_have_run(self) -> bool:
        now = self._look(self._process)
        self._first = {thread: self._first.get(thread, used) for thread, used in now.items()}
        return all(now[each] > self._first[each] for each in now if each != self._me)


def comes_to_be(done: Callable[[], bool], seconds: float = TURN) -> bool:
    """Waits until ``done()`` is true, and returns True. Returns False if ``done()`` is still false when the process has
    been able to run for ``seconds`` and every other thread of the process has had a chance to run. By then, work that
    nothing blocks is complete, however busy the machine is."""
    clock, turns = Clock(), Turns()
    while not done():
        now, over = clock.now(), turns.all_have_run()
        if now >= seconds and (over or now >= seconds * _TURNS):
            return False
        time.sleep(seconds / 10)
    return True


def ends_within(child: Process, seconds: float) -> bool:
    """Waits until a process ends, or until it has been able to run for ``seconds``, counted from now. Returns True if
    the process ended."""

    def has_ended(waiting: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            child.wait(waiting)
        return child.poll() is not None

    return Clock(child.pid).wait(has_ended, seconds)
