"""The time in which a process could run. Limits count this time, not that in which it waited for a processor.

On a busy machine a process gets its processor late. Linux counts, for each thread, how long it was ready to run and
had to wait: the second number of /proc/PID/task/TID/schedstat, in ns
(https://docs.kernel.org/scheduler/sched-stats.html). A thread that sleeps, for a lock or for I/O, does not wait for a
processor. So a hang counts in full, and on a quiet machine everything does.

Imports only the standard library, because repro scripts contain this module.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

#: Of any time this part counts at least, so that what spins for ever is ended on any machine.
LEAST = 1 / 30
#: The same where the system does not say how long a thread has waited. What a process has computed counts in full.
LEAST_ELSEWHERE = 1 / 5
#: Seconds between two looks while it waits, at most; a longer gap counts as one: this process was stopped, or suspended.
_LOOK, _GAP = 0.5, 1.0
#: Seconds for which something is watched that must not come to be; and so many times longer while a thread has not run.
TURN, _TURNS = 0.01, 20


class Process(Protocol):
    """A process that was started, as ``subprocess.Popen`` shows it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def could_run(seconds: float, before: Mapping[int, float], now: Mapping[int, float]) -> float:
    """Of so many seconds, those in which no thread had to wait. ``before`` and ``now`` are the seconds that each thread
    had waited until then, by its id.

    The thread that waited longest counts: the others slept, or waited at the same time. The kernel adds a wait when it
    is over, so the answer is below 0 after one that began earlier.
    """
    return seconds - max((now[each] - before.get(each, 0.0) for each in now), default=0.0)


def could_run_elsewhere(
    seconds: float, before: Mapping[int, float], now: Mapping[int, float]
) -> float:
    """The same, of the processor time that each process had used until then."""
    used = max((now[each] - before.get(each, 0.0) for each in now), default=0.0)
    return max(used, seconds * LEAST_ELSEWHERE)


def waited(process: int) -> dict[int, float]:
    """Seconds that each thread of a process, and of those that it started, has waited for a processor so far. Empty
    where there is no such process."""
    found: dict[int, float] = {}
    processes = [process]
    while processes:
        tasks = f"/proc/{processes.pop()}/task"
        with suppress(OSError):  # it has ended
            for thread in os.listdir(tasks):
                with suppress(OSError, IndexError):
                    found[int(thread)] = int(_words(f"{tasks}/{thread}/schedstat")[1]) / 1e9
                    processes += map(int, _words(f"{tasks}/{thread}/children"))
    return found


def ready(process: int) -> dict[int, int]:
    """The threads of a process that run or are ready to, with the processor time (ns) that each has used. Empty where the
    system does not say."""
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
    """Seconds of processor time that a process, and those that it started, have used so far. ``table`` is what ``ps``
    prints."""
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
    """``[[days-]hours:]minutes:seconds`` as ``ps`` writes it."""
    days, _, rest = text.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part)
    return total + float(days or 0) * 86400


def waits_are_told() -> bool:
    """Whether this system says how long a thread has waited."""
    with suppress(OSError, IndexError):
        return int(_words("/proc/self/schedstat")[0]) > 0
    return False


#: Looks at a process: a number of seconds for each thread that has waited.
Look = Callable[[int], Mapping[int, float]]


class Clock:
    """Counts the seconds in which a process (this one by default) and those that it started could run."""

    def __init__(self, process: int | None = None, look: Look | None = None) -> None:
        self._process = os.getpid() if process is None else process
        self._count = could_run if look or waits_are_told() else could_run_elsewhere
        self._look = look or (waited if self._count is could_run else used)
        self.restart()

    def restart(self) -> None:
        """Begin again at 0."""
        self._counted = self._passed = 0.0
        self._seen, self._at = self._look(self._process), time.monotonic()

    def add(self, seconds: float) -> float:
        """So many seconds have passed since the last look. Returns what ``now`` does."""
        seen = self._look(self._process)
        self._counted += self._count(seconds, self._seen, seen)
        self._passed += seconds
        self._seen, self._at = seen, time.monotonic()
        return max(self._counted, self._passed * LEAST)

    def now(self) -> float:
        """The seconds counted so far."""
        return self.add(time.monotonic() - self._at)

    def wait(self, ready: Callable[[float], object], until: float) -> bool:
        """Whether ``ready(seconds)``, which waits so long at most, says yes before the clock shows ``until``."""
        left = until - self.now()
        while not ready(min(max(left, 0.0), _LOOK)):
            if left <= 0.0:
                return False
            left = until - self.add(min(time.monotonic() - self._at, _GAP))
        return True


class Turns:
    """Whether each thread of this process has had its turn: it sleeps, or has run since it was first seen ready."""

    def __init__(self, look: Callable[[int], Mapping[int, int]] = ready) -> None:
        self._look, self._process, self._me = look, os.getpid(), threading.get_native_id()
        self._first: dict[int, int] = {}

    def over(self) -> bool:
        now = self._look(self._process)
        self._first = {thread: self._first.get(thread, used) for thread, used in now.items()}
        return all(now[each] > self._first[each] for each in now if each != self._me)


def comes_to_be(done: Callable[[], bool], seconds: float = TURN) -> bool:
    """Whether something comes to be while every thread of this process has its turn, and for so many seconds in which
    it could run. What nothing holds up has been done by then, however busy the machine is."""
    clock, turns = Clock(), Turns()
    while not done():
        now, over = clock.now(), turns.over()
        if now >= seconds and (over or now >= seconds * _TURNS):
            return False
        time.sleep(seconds / 10)
    return True


def ends_within(child: Process, seconds: float) -> bool:
    """Whether a process ends before it could run for so many seconds from now on."""

    def has_ended(waiting: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            child.wait(waiting)
        return child.poll() is not None

    return Clock(child.pid).wait(has_ended, seconds)
