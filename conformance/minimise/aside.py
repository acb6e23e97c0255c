"""Minimising in a process of its own: what is minimised is known to be broken, and may crash or hang.

:func:`main` is the process; :func:`minimised` starts it, restarts it behind a task that killed it, and hands
out the answers as they come.
"""

from __future__ import annotations

import faulthandler
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from conformance.aside import AsideDied, reports_of, teller
from devices.cell import CellKey
from reports.model import Example

#: Seconds without a report after which a task hangs.
_SILENCE = 60.0
#: Restarts of the process in one run; a device on which more tasks crash has other worries.
_RESTARTS = 10
_MODULE = "conformance.minimise.aside"


@dataclass(frozen=True, slots=True)
class Task:
    """A failing cell. Without a ``layout`` its smallest failure now is taken."""

    cell: CellKey
    layout: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task: the example and its script, or why there is none."""

    task: Task
    example: Example | None = None
    script: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """Which device, and how the plan chooses samples."""

    device: str
    descriptor: str | None
    samples: int


def minimised(bench: Bench, tasks: Sequence[Task]) -> Iterator[Answer]:
    """Minimise each task in turn. A task that kills the process costs itself alone.

    Raises AsideDied where the process does not come up at all, or dies again and again.
    """
    left = list(tasks)
    for restart in range(_RESTARTS + 1):
        if not left:
            return
        orders = {**asdict(bench), "tasks": [asdict(task) for task in left]}
        done, begun = 0, False
        try:
            for report in reports_of(_MODULE, orders, _SILENCE):
                if report["what"] == "begin":
                    begun = True
                    continue
                task = left[done]
                done, begun = done + 1, False
                example = report["example"]
                yield Answer(
                    task,
                    msgspec.convert(example, Example) if example is not None else None,
                    report["script"],
                    report["why"],
                )
            return
        except AsideDied as death:
            if not begun or restart == _RESTARTS:
                raise
            yield Answer(left[done], why=f"the process that minimised it {death.how}")
            left = left[done + 1 :]


# -- in the process


def main(orders: dict[str, Any], pipe: int) -> None:
    """Do the tasks in order; report the beginning and the answer of each."""
    from conformance.minimise.subject import Subject
    from conformance.worker import limit_threads
    from devices import registry
    from opinfo.catalog import catalogue
    from opinfo.device import open_device
    from opinfo.layouts import forget_geometries

    tell = teller(pipe)
    limit_threads()
    path = orders["descriptor"]
    device = open_device(registry.load_file(Path(path)) if path else registry.get(orders["device"]))
    catalogue()  # takes seconds: before any work is told to have begun
    subjects: OrderedDict[tuple[str, str], Subject] = OrderedDict()
    for given in orders["tasks"]:
        task = Task(CellKey(*given["cell"]), given["layout"], given["kind"])
        tell({"what": "begin"})
        faulthandler.dump_traceback_later(_SILENCE / 2, exit=True)
        name = (task.cell.op, task.cell.dtype)
        subject = subjects.pop(name, None) or Subject.of(*name, device, orders["samples"])
        subjects[name] = subject
        answer = solve(subject, task)
        faulthandler.cancel_dump_traceback_later()
        tell(
            {
                "what": "answer",
                "example": asdict(answer.example) if answer.example else None,
                "script": answer.script,
                "why": answer.why,
            }
        )
        if len(subjects) > 4:
            subjects.popitem(last=False)
            forget_geometries()


def solve(subject: Any, task: Task) -> Answer:
    """Find the failure again, and the smallest example of it."""
    from conformance.layout.applies import applicable
    from conformance.minimise.describe import example_of
    from conformance.minimise.search import candidate_of, minimise, start_of
    from conformance.minimise.subject import Sign, where_of

    clause = task.cell.clause
    if clause not in applicable(subject.traits):
        return Answer(task, why=f"{clause} does not apply to {task.cell.op}[{task.cell.dtype}]")
    if task.layout:
        start = start_of(subject, clause, Sign(task.kind, where_of(task.layout)), task.layout)
    else:
        failure = subject.run_all(clause).smallest
        start = None
        if failure is not None:
            start = start_of(subject, clause, Sign.of(failure), failure.layout)
            script = failure.repro
            if start is None and (laid := getattr(script, "laid", None)) is not None:
                start = candidate_of(laid.sample, failure.layout), failure
    if start is None:
        return Answer(task, why="it does not fail again in a fresh process")
    found = minimise(subject, clause, *start)
    script = found.failure.repro
    return Answer(task, example_of(found), script() if script is not None else "")
