"""Minimises failing cells in a subprocess, which may crash or hang.

:func:`minimised` starts the subprocess, and restarts it after a cell that killed it. :func:`serve` runs in the
subprocess.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from conformance.checks.child import Child, ChildDied, ChildLimits, Ended, Tell
from devices import registry
from devices.cell import CellKey
from devices.failure import Failure
from reports.model import Example

if TYPE_CHECKING:
    from conformance.search.minimise.candidates import CandidateRunner
    from opinfo.device import Device
    from opinfo.sample_source import SampleSource

#: Seconds without a message after which the subprocess counts as hung.
_SILENCE = 60.0
#: The largest number of restarts of the subprocess in one run. A device that crashes more often has other
#: problems.
_RESTARTS = 10
_TARGET = "conformance.search.minimise.tasks:serve"


class Bench(msgspec.Struct, frozen=True):
    """The setup of a search: the device, the plan, the number of samples for an op and dtype in the plan, and the path of
    the recording that the plan replays, if it replays one. ``backward`` is True if gradients of recorded calls are
    judged."""

    device: str
    descriptor: str | None  # the path of a descriptor that is not registered
    samples: int
    plan: str = "quick"
    recording: str | None = None
    backward: bool = False

    def source(self) -> SampleSource:
        """Returns the source of the ops (or recorded calls) and their samples. The first call may take seconds. Raises
        RecordingError if the recording cannot be read."""
        from conformance.recordings.source import source_of

        return source_of(self.recording, backward=self.backward)

    def open(self) -> Device:
        """Opens the device in this process and limits the process to one thread. Returns the device. Raises
        ConformError if the device cannot be opened."""
        from opinfo.device import limit_threads, open_device

        limit_threads()
        return open_device(registry.find(self.device, self.descriptor))


class Task(msgspec.Struct, frozen=True):
    """A failing cell and the failure to reproduce. If no failure is given, the smallest failure that the cell has now
    is used."""

    cell: CellKey
    failure: Failure | None = None


class Answer(msgspec.Struct, frozen=True):
    """The result of a task: the example and its script, or ``why``, the reason why no example was found."""

    task: Task
    example: Example | None = None
    script: str = ""
    why: str = ""


_Given = TypeVar("_Given", bound=msgspec.Struct)


class Orders(msgspec.Struct, Generic[_Given], frozen=True):
    bench: Bench
    tasks: list[_Given]


def in_turn(
    target: str, bench: Bench, tasks: Sequence[_Given], restarts: int
) -> Iterator[tuple[_Given, Any]]:
    """Yields each task with the one message that a subprocess sends for the task, or with an Ended object if the task
    killed the subprocess. The remaining tasks then run in a new subprocess.

    Raises ChildDied if the device cannot be opened, or after more than ``restarts`` restarts. If the device could be
    opened before, a failed attempt to open it is repeated once, because a driver may need a moment after a crash.
    """
    left, attempts = list(tasks), 1
    while left:
        done = 0
        orders = msgspec.to_builtins(Orders(bench, left))
        with Child(target, orders, ChildLimits(silence=_SILENCE), copied=True) as child:
            for done, message in enumerate(child, 1):
                yield left[done - 1], message
            if done < len(left):
                child.wait()
        attempts = 2 if child.ready else attempts - 1  # consecutive attempts to open the device
        if done < len(left):
            if not attempts or not restarts:
                raise ChildDied(child.ended)
            if child.ready:
                yield left[done], child.ended
                done += 1
        left, restarts = left[done:], restarts - 1


def minimised(bench: Bench, tasks: Sequence[Task]) -> Iterator[Answer]:
    """Minimises the failure of each task in turn and yields the results. Raises ChildDied if the subprocess does not
    start or dies too often."""
    for task, said in in_turn(_TARGET, bench, tasks, _RESTARTS):
        if isinstance(said, Ended):
            yield Answer(task, why=f"{task.cell}: the process that minimised the cell {said.how}")
        else:
            yield msgspec.convert(said, Answer)


# -- in the subprocess


def serve(orders: object, tell: Tell) -> None:
    from conformance.search.minimise.candidates import CandidateRunner
    from opinfo.layouts import forget_geometries

    given = msgspec.convert(orders, Orders[Task])
    device = given.bench.open()
    source = given.bench.source()
    source.subjects()  # takes seconds, which must not count for the first task
    tell.ready()

    @lru_cache(maxsize=4)
    def runner_of(op: str, dtype: str, variant: str) -> CandidateRunner:
        forget_geometries()
        count = given.bench.samples
        return CandidateRunner.of(op, dtype, device, count, source, variant=variant)

    for task in given.tasks:
        faulthandler.dump_traceback_later(_SILENCE / 2, exit=True)
        answer = solve(runner_of(*task.cell[1:]), task)
        faulthandler.cancel_dump_traceback_later()
        tell(msgspec.to_builtins(answer))


def solve(runner: CandidateRunner, task: Task) -> Answer:
    """Reproduces the failure of a task and finds its smallest example."""
    from conformance.checks.ops.call_script import CallScript
    from conformance.search.minimise.shrink import Search, candidate_of, start_of
    from conformance.suites.layout import SUITE
    from opinfo.layouts import RECORDED, SHARED

    clause = task.cell.clause
    if clause not in SUITE.applying(runner.traits):
        return Answer(task, why=f"{task.cell}: the clause does not apply to this op and dtype")
    smallest = runner.run_all(clause).smallest if task.failure is None else None
    wanted = smallest.failure if smallest is not None else task.failure
    start = start_of(runner, clause, wanted) if wanted is not None else None
    recorded = wanted is not None and wanted.layout in (RECORDED.id, SHARED.id)
    if start is None and recorded:
        return Answer(
            task,
            why=f"{task.cell}: the call fails only with its recorded strides and offsets, which no smaller call has; "
            "run its repro script",
        )
    if start is None and smallest is not None and isinstance(smallest.repro, CallScript):
        start = candidate_of(smallest.repro.laid.sample, smallest.failure), smallest
    if start is None:
        if task.failure is None and smallest is None:
            return Answer(task, why=f"{task.cell} passes; there is nothing to minimise")
        return Answer(task, why=f"{task.cell}: the failure does not occur again in a new process")
    found = Search(runner, clause, *start).run()
    return Answer(task, found.example, found.script)
