"""Minimising failing cells in a subprocess, which may crash or hang.

:func:`minimised` starts the subprocess and restarts it after a cell that killed it; :func:`serve` runs in it.
"""

from __future__ import annotations

import faulthandler
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from conformance.checks.child import Child, ChildDied, Limits, Tell
from devices import registry
from devices.cell import CellKey
from devices.failure import Failure
from reports.model import Example

if TYPE_CHECKING:
    from conformance.search.minimise.subject import Subject
    from opinfo.device import Device

#: Seconds without a message after which the subprocess is taken to hang.
_SILENCE = 60.0
#: Restarts of the subprocess in one run. A device that crashes more often has other problems.
_RESTARTS = 10
_TARGET = "conformance.search.minimise.tasks:serve"


class Bench(msgspec.Struct, frozen=True):
    """The device that a search uses, and the plan with the number of samples that it takes."""

    device: str
    descriptor: str | None  # the path of a descriptor that is not registered
    samples: int
    plan: str = "quick"

    def open(self) -> Device:
        """Open the device in this process, which gets one thread. Raises ConformError."""
        from opinfo.device import limit_threads, open_device

        limit_threads()
        path = self.descriptor
        return open_device(registry.load_file(Path(path)) if path else registry.get(self.device))


class Task(msgspec.Struct, frozen=True):
    """A failing cell and the failure to look for; without one, the smallest failure that it has now."""

    cell: CellKey
    failure: Failure | None = None


class Orders(msgspec.Struct, frozen=True):
    """What the subprocess is asked to do."""

    bench: Bench
    tasks: list[Task]


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A message of the subprocess: the next task has begun."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The result of a task: the example and its script, or why there is none."""

    task: Task
    example: Example | None = None
    script: str = ""
    why: str = ""


def minimised(bench: Bench, tasks: Sequence[Task]) -> Iterator[Answer]:
    """Minimise each task in turn. A task that kills the subprocess costs only itself.

    Raises ChildDied if the subprocess does not start, or dies again and again.
    """
    left = list(tasks)
    for restart in range(_RESTARTS + 1):
        if not left:
            return
        orders = msgspec.to_builtins(Orders(bench, left))
        done, begun = 0, False
        with Child(_TARGET, orders, Limits(silence=_SILENCE)) as child:
            for message in child:
                match msgspec.convert(message, Begun | Answer):
                    case Begun():
                        begun = True
                    case Answer() as answer:
                        done, begun = done + 1, False
                        yield answer
            ended = child.wait()
        if ended.well:
            return
        if not begun or restart == _RESTARTS:
            raise ChildDied(ended)
        yield Answer(left[done], why=f"the process that minimised it {ended.how}")
        left = left[done + 1 :]


# -- in the subprocess


def serve(orders: object, tell: Tell) -> None:
    """Do the tasks in order; report when each begins, and its answer."""
    from conformance.search.minimise.subject import Subject
    from opinfo.catalog import catalogue
    from opinfo.layouts import forget_geometries

    given = msgspec.convert(orders, Orders)
    device = given.bench.open()
    catalogue()  # takes seconds, which are no task's
    subjects: OrderedDict[tuple[str, str], Subject] = OrderedDict()
    for task in given.tasks:
        tell(msgspec.to_builtins(Begun()))
        faulthandler.dump_traceback_later(_SILENCE / 2, exit=True)
        name = (task.cell.op, task.cell.dtype)
        subject = subjects.pop(name, None) or Subject.of(*name, device, given.bench.samples)
        subjects[name] = subject
        answer = solve(subject, task)
        faulthandler.cancel_dump_traceback_later()
        tell(msgspec.to_builtins(answer))
        if len(subjects) > 4:
            subjects.popitem(last=False)
            forget_geometries()


def solve(subject: Subject, task: Task) -> Answer:
    """Find the failure again, and the smallest example of it."""
    from conformance.checks.ops.context import CallScript
    from conformance.search.minimise.shrink import candidate_of, example_of, minimise, start_of
    from conformance.suites.layout import SUITE

    clause = task.cell.clause
    if clause not in SUITE.applying(subject.traits):
        return Answer(task, why=f"{clause} does not apply to {task.cell.op}[{task.cell.dtype}]")
    if task.failure is not None:
        start = start_of(subject, clause, task.failure)
    else:
        failed = subject.run_all(clause).smallest
        start = start_of(subject, clause, failed.failure) if failed is not None else None
        if start is None and failed is not None and isinstance(failed.repro, CallScript):
            start = candidate_of(failed.repro.laid.sample, failed.failure), failed
    if start is None:
        return Answer(task, why="it does not fail again in a new process")
    found = minimise(subject, clause, *start)
    script = found.failure.repro
    return Answer(task, example_of(found), script() if script is not None else "")
