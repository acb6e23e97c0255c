"""Minimises new failures after a run, and writes repro scripts of cells that crashed, hung or ended in an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path

import msgspec
from jinja2 import StrictUndefined, Template

from conformance.checks.child import ChildDied, Tell
from conformance.search.minimise.tasks import Bench, Orders, Task, in_turn, minimised
from conformance.suites import SEARCHED, suite_of
from devices.cell import CallKey, CellKey, Outcome, Verdict
from devices.failure import Failure, Kind
from devices.files import file_name, write_whole
from reports.causes import causes
from reports.gate import number
from reports.junit import one_line
from reports.model import CellResult

#: Seconds for loading torch and making the inputs, in addition to the time limit of the cell.
_LOADING = 60.0
#: The end of the name of a script for the other checks of a cell that ended its process.
_OTHER_CHECKS = "other-checks"
_TARGET = "conformance.search.repros:serve"

Say = Callable[[str], None]

#: The template of a script that runs a whole cell as the suite does, for a cell that ended outside of its
#: calls.
_RUNS_CELL = Path(__file__).with_name("runs_cell.py.jinja")


def write_repro(folder: Path, cell: CellKey, text: str, *, rest: bool = False) -> str:
    """Writes a cell's repro script into a results folder; with ``rest``, the script for the other checks of a cell that
    ended its process. Returns its path relative to the folder."""
    names = (*cell[1:], _OTHER_CHECKS) if rest else cell[1:]
    return write_script(folder, "repro", cell.clause, names, text)


def write_script(folder: Path, inside: str, clause: str, names: Iterable[str], text: str) -> str:
    """Writes a script into ``inside/<clause>`` of a folder. Returns its path relative to the folder."""
    name = file_name("-".join(filter(None, names)))
    path = Path(inside, clause, f"{name}.py")
    write_whole(folder / path, text)
    return path.as_posix()


# -- new failures, minimised


def tasks_of(every: Collection[CellResult], families: Mapping[str, str], most: int) -> list[Task]:
    """Returns up to ``most`` regressions to minimise: first one failure of each cause, then a second failure of each
    cause, and so on."""
    new = [
        r
        for r in every
        if r.verdict is Verdict.REGRESSION
        and r.outcome is Outcome.FAIL
        and suite_of(r.key.clause) in SEARCHED  # programs of other suites are already minimised
    ]
    members = [
        [cause.example, *(r for r in cause.results if r is not cause.example)]
        for cause in causes(new, families, every)
    ]
    turns = (result for turn in zip_longest(*members) for result in turn if result is not None)
    return [Task(result.key, result.failure) for result, _ in zip(turns, range(most))]


def with_examples(
    results: dict[CellKey, CellResult],
    bench: Bench,
    families: Mapping[str, str],
    folder: Path,
    most: int,
    say: Say,
    deadline: float | None = None,
) -> dict[CellKey, CellResult]:
    """Minimises new failures, and returns the results with the minimised examples added. In the results folder, the
    script of an example replaces the script that its cell had before. After ``deadline``, in seconds of ``time.time()``,
    no failure is minimised."""
    tasks = tasks_of(results.values(), families, most)
    if not tasks:
        return results
    failures = number(len(tasks), "new failure")
    if _is_over(deadline):
        say(f"{failures} not minimised, because --max-time is over")
        return results
    say(f"minimising {failures} …")
    started, found, count = time.monotonic(), dict(results), 0
    try:
        for answer in minimised(bench, tasks):
            cell = answer.task.cell
            if answer.example is not None:
                count += 1
                repro = write_repro(folder, cell, answer.script)
                found[cell] = msgspec.structs.replace(
                    found[cell], example=answer.example, repro=repro
                )
            if _is_over(deadline):
                break
    except ChildDied as death:
        say(f"minimising ended early: the subprocess {death}")
    seconds = time.monotonic() - started
    say(f"minimised {count:,} of {failures} in {seconds:.1f} s")
    return found


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.time() > deadline


# -- cells that did not finish


class Unfinished(msgspec.Struct, frozen=True):
    """A cell that crashed, hung or ended in an error. ``seconds`` is its time limit; ``call`` is the call that caused
    the end, if known."""

    cell: CellKey
    message: str
    seconds: float
    call: CallKey | None = None
    judged: bool = False  # True if the call had returned and its result was being judged


def with_repros(
    results: Mapping[CellKey, CellResult], cells: Sequence[Unfinished], bench: Bench, folder: Path
) -> dict[CellKey, CellResult]:
    """Returns the results with a repro script for each unfinished cell.

    The script runs the cell's last call, its case, or the whole cell in a child process, and reports how the child
    ended. The scripts are written in a subprocess, because the device may already fail when the inputs of a script are
    made.
    """
    found = dict(results)
    for cell, text in _scripts(bench, cells):
        found[cell] = msgspec.structs.replace(found[cell], repro=write_repro(folder, cell, text))
    return found


def _scripts(bench: Bench, cells: Sequence[Unfinished]) -> Iterator[tuple[CellKey, str]]:
    whole = [msgspec.structs.replace(each, seconds=each.seconds + _LOADING) for each in cells]
    single = [each for each in whole if each.call is not None or not each.cell.dtype]
    with suppress(ChildDied):  # the device cannot be opened
        for each, text in in_turn(_TARGET, bench, single, len(single)):
            if text and isinstance(text, str):
                whole.remove(each)
                yield each.cell, text
    for each in whole:
        if each.cell.dtype:  # the options of a run can select ops but not cases
            yield each.cell, _cell_script(bench, each)


def _cell_script(bench: Bench, each: Unfinished) -> str:
    cell = each.cell
    device = f"--descriptor={bench.descriptor}" if bench.descriptor else f"--device={bench.device}"
    selection = (
        f"--plan={bench.plan}",
        f"--clauses={cell.clause}",
        f"--ops={cell.unit}",
        f"--dtypes={cell.dtype}",
    )
    template = Template(
        _RUNS_CELL.read_text("utf-8"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    text: str = template.render(
        cell=each.cell,
        device=bench.device,
        message=one_line(each.message).replace("\\", "/").replace('"""', "'''"),
        torch=version("torch"),
        seconds=each.seconds,
        run=["-q", "--tb=no", "-n", "0", "--expectations=none", device, *selection],
    )
    return text


# -- in the subprocess


def serve(given: object, tell: Tell) -> None:
    """Sends the script of each cell in turn, or an empty string for a cell without a script. The function runs in the
    subprocess."""
    from conformance.checks.cases.script import has_source, script_of_case
    from conformance.checks.repro.modules import NotCarried
    from conformance.search.minimise.candidates import CandidateRunner
    from conformance.suites import find_case

    orders = msgspec.convert(given, Orders[Unfinished])
    device = orders.bench.open()
    tell.ready()
    for each in orders.tasks:
        text, case = "", find_case(each.cell)
        failure = Failure(kind=Kind.ENDED, detail=each.message)
        with suppress(NotCarried):  # no script can be written
            if case is not None and has_source(device.descriptor):
                case = replace(case, seconds=each.seconds)
                text = script_of_case(case, device.descriptor, failure, dies=True)
            elif each.call is not None:
                runner = CandidateRunner.of(
                    each.cell.unit,
                    each.cell.dtype,
                    device,
                    orders.bench.samples,
                    orders.bench.source(),
                    variant=each.cell.variant,
                )
                given = each.cell.clause, each.call, each.seconds
                text = runner.script_of(*given, judged=each.judged, failure=failure)
        tell(text)
