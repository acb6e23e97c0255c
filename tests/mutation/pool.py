"""Tries mutants in worker processes. A mutant that ends or hangs its process is noticed and costs only itself.

Each result is written to a file at once, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import msgspec

from tests.mutation.items import not_gating
from tests.mutation.kernels import PROBING, Result

#: Seconds after which a worker that reports no progress is taken to hang, on a machine with a free core for each process. No
#: mutant needs nearly as long.
PATIENCE = 300.0


def patience() -> float:
    """Seconds without progress after which a worker is taken to hang: longer on a busy machine, where a slow case is no hang."""
    return PATIENCE * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Task(msgspec.Struct, frozen=True):
    """A mutant: its sort (kernel, runtime or a family), the seed, its number, and the op or mutation."""

    sort: str
    seed: int
    number: int
    name: str

    @property
    def id(self) -> str:
        return f"{self.sort[0]}{self.number:04d}"


def kept(path: Path | None) -> dict[Task, Result]:
    """The results of these tasks that an earlier run wrote."""
    if path is None or not path.exists():
        return {}
    found = {}
    for line in path.read_bytes().splitlines():
        try:
            task, result = msgspec.json.decode(line, type=tuple[Task, Result])
        except msgspec.MsgspecError:
            continue  # the line that was being written
        found[task] = result
    return found


def run(
    tasks: Sequence[Task],
    processes: int,
    path: Path | None,
    say: Callable[[Result], None] = lambda result: None,
    environment: Mapping[str, str] | None = None,
) -> list[Result]:
    """The result of each task, in the order of the tasks. Tasks whose result is in ``path`` are not run again."""
    done = kept(path)
    left: Queue[Task] = Queue()
    for task in tasks:
        if task not in done:
            left.put(task)
    lock = threading.Lock()

    def work() -> None:
        with _workers(environment or {}) as ask:
            while True:
                try:
                    task = left.get_nowait()
                except Empty:
                    return
                result = ask(task)
                with lock:
                    done[task] = result
                    if path is not None:
                        with path.open("ab") as file:
                            file.write(msgspec.json.encode((task, result)) + b"\n")
                    say(result)

    threads = [threading.Thread(target=work) for _ in range(min(processes, left.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done[task] for task in tasks]


def _started(process: subprocess.Popen[bytes]) -> threading.Timer:
    timer = threading.Timer(patience(), process.kill)
    timer.start()
    return timer


#: What tries mutants; a test has another one.
COMMAND = (sys.executable, "-m", "tests.mutation.worker")


@contextmanager
def _workers(environment: Mapping[str, str]) -> Iterator[Callable[[Task], Result]]:
    """A function that runs a task in a process, which is replaced when it ends."""
    current: list[subprocess.Popen[bytes]] = []

    def process() -> subprocess.Popen[bytes]:
        if not current or current[0].poll() is not None:
            if current:
                current[0].communicate()
            pipe, room = (
                subprocess.PIPE,
                {"SIMULATED_MEMORY_MIB": "1024"} if not environment else {},
            )
            current[:] = [
                subprocess.Popen(
                    COMMAND,
                    stdin=pipe,
                    stdout=pipe,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **room, **environment},
                )
            ]
        return current[0]

    def ask(task: Task) -> Result:
        made = process()
        assert made.stdin is not None and made.stdout is not None
        timer = _started(made)
        bred = Result(task.id, "", task.name, "", "", "")
        try:
            made.stdin.write(msgspec.json.encode(task) + b"\n")
            made.stdin.flush()
            while line := made.stdout.readline():
                bred = msgspec.json.decode(line, type=Result)
                if bred.result:
                    return bred
                timer.cancel()
                timer = _started(made)
        except BrokenPipeError:
            pass  # it ended
        finally:
            timer.cancel()
        how = "the process hung" if made.wait() == -9 else "the process ended"
        if not bred.axis:  # before there was a mutant
            bred.result, bred.note = "broken", how
        elif bred.trying == PROBING:  # no cell saw it
            bred.result, bred.note = bred.missed(), f"{how} in the probe"
        elif bred.trying in not_gating():
            bred.note = how
            bred.credit([bred.trying])
        else:  # A run isolates such a call, and the gate refuses its cell.
            bred.credit([how])
        return bred

    try:
        yield ask
    finally:
        for each in current:
            each.communicate()
