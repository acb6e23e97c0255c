"""``conform manifest``: keep the expected failures of a device true."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from conformance.commands.manifest_input import Given
from devices._text import suggestion
from devices.block import Kind
from devices.cell import CellKey
from devices.errors import ConformError
from reports.gate import ExitCode

if TYPE_CHECKING:
    from devices.lifecycle.add import Cause
    from devices.lifecycle.update import Left, Update

_MOST = 20  # cells that are named one by one

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def manifest() -> None:
    """Expected failures: check them, bring them up to date, say why."""


def _which(command: _F) -> _F:
    """The options that say whose manifest."""
    for option in (
        click.option("--descriptor", type=click.Path(path_type=Path), help="A descriptor.py."),
        click.option("--device", metavar="NAME", help="The device whose manifest it is."),
        click.option(
            "--manifest", "path", type=click.Path(path_type=Path), help="The file itself."
        ),
    ):
        command = option(command)
    return command


def _against(command: _F) -> _F:
    """The options that say which cells are planned."""
    for option in (
        click.option("--plan", metavar="NAME", help="Cells as planned here: quick, core or full."),
        click.option(
            "--run",
            "runs",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Cells and facts of a run's folder; needs neither torch nor the device.",
        ),
    ):
        command = option(command)
    return command


@manifest.command()
@_which
@_against
@click.option("--no-plan", is_flag=True, help="Do not ask which cells are planned.")
@click.option("--fix", is_flag=True, help="Write the canonical form.")
def lint(
    path: Path | None,
    device: str | None,
    descriptor: Path | None,
    runs: tuple[Path, ...],
    plan: str | None,
    no_plan: bool,
    fix: bool,
) -> int:
    """Check a manifest: form, dates, contradictions, and blocks that match nothing.

    Blocks are held against the cells of --run RUN, or of plan `full` as it is planned here now. Exits
    1 for problems, 4 for a manifest that cannot be read.
    """
    from devices.expectations import lint as find
    from devices.lifecycle.canonical import canonical

    given = Given.of(path, device, descriptor, runs)
    read = given.read()
    if fix:
        wanted = canonical(read.text, read.manifest)
        if wanted != read.text:
            _write(read.path, wanted)
            click.echo(f"{read.path}: written in canonical form")
            read = given.read()
    cells = None if no_plan else given.cells(plan or "full")
    problems = find(read.manifest, cells, given.facts(), date.today(), read.text)
    for problem in problems:
        click.echo(str(problem))
    blocks = _count(len(read.manifest.blocks), "block")
    if not problems:
        click.echo(f"{read.path}: {blocks}, no problems")
        return ExitCode.GREEN.value
    click.echo(f"{read.path}: {blocks}, {_count(len(problems), 'problem')}")
    return ExitCode.REGRESSION.value


@manifest.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@_which
@click.option("--reason", help="Record failures that no block expects, for this reason.")
@click.option("--kind", type=click.Choice([each.value for each in Kind]), help="Whose cause it is.")
@click.option("--issue", metavar="URL", help="Where it is discussed.")
@click.option("--expires", metavar="DATE", help="The last day on which the new blocks hold.")
@click.option("--clauses", metavar="GLOB,…", help="Only cells of these clauses.")
@click.option("--ops", metavar="GLOB,…", help="Only cells of these ops.")
@click.option("--dtypes", metavar="GLOB,…", help="Only cells of these dtypes.")
@click.option(
    "--unseen-too",
    is_flag=True,
    help="Take dtypes that no RUN planned to be as those that were; else they stay as they are.",
)
@click.option("--dry-run", is_flag=True, help="Show the difference, write nothing.")
@click.option("--check", is_flag=True, help="As --dry-run, and exit 1 if there is a difference.")
def update(
    runs: tuple[Path, ...],
    path: Path | None,
    device: str | None,
    descriptor: Path | None,
    reason: str | None,
    kind: str | None,
    issue: str | None,
    expires: str | None,
    clauses: str | None,
    ops: str | None,
    dtypes: str | None,
    unseen_too: bool,
    dry_run: bool,
    check: bool,
) -> int:
    """Bring a manifest up to date with runs, and show the difference.

    What passes in every RUN leaves its blocks. What fails unexpectedly is added with --reason, if two
    runs of one plan agree on it. Cells in which the runs disagree are named and left alone, and so is
    what no run saw. Exits 1 where flaky cells pass too seldom.
    """
    from devices.lifecycle.difference import unified
    from devices.lifecycle.update import update as bring_up_to_date

    given = Given.of(path, device, descriptor, runs)
    cause = _cause(reason, kind, issue, expires)
    read = given.read(may_be_new=cause is not None)
    evidence = given.evidence()
    planned = list(dict.fromkeys(key for run in evidence for key in run.planned))
    done = bring_up_to_date(
        read.text,
        read.manifest,
        evidence,
        date.today(),
        cause=cause,
        wanted=_selection(planned, clauses, ops, dtypes),
        dtypes=() if unseen_too else given.dtypes(),
    )
    changed = done.text != read.text
    if changed:
        for line in unified(read.text, done.text, str(read.path)):
            click.echo(line)
        if not (dry_run or check):
            given.parse(done.text, read.path)  # whatever is written can be read
            _write(read.path, done.text)
    _tell(done, read.path, written=changed and not (dry_run or check))
    if done.floors or (check and changed):
        return ExitCode.REGRESSION.value
    return ExitCode.GREEN.value


@manifest.command()
@click.argument("cell", metavar="CELL")
@_which
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Say what a run made of it.",
)
def explain(
    cell: str,
    path: Path | None,
    device: str | None,
    descriptor: Path | None,
    runs: tuple[Path, ...],
) -> int:
    """Say which block decides over CELL and why, such as 'layout.values::add[float32]'.

    A cell is written as reports write it. Shown are the blocks that decide, those that lost and to
    which, and those that do not hold here; with --run the verdict on what the run saw.
    """
    from devices.lifecycle.evidence import comparable, judged
    from devices.lifecycle.explain import explain as why
    from devices.lifecycle.explain import text
    from devices.verdicts import judge_flaky

    given = Given.of(path, device, descriptor, runs)
    key = given.cell(cell)
    read = given.read()
    today = date.today()
    explained = why(read.manifest, key, given.facts())
    evidence = given.evidence()
    if evidence:
        comparable(read.manifest, evidence)
    seen = [
        (run.name, run.cells[key], judged(explained.match.expectation, run.cells[key], today))
        for run in evidence
        if key in run.cells
    ]
    for line in text(explained, seen):
        click.echo(line)
    for run in evidence:
        if key not in run.planned:
            click.echo(f"{run.name}: not planned{_near(key, run.planned)}")
        elif key not in run.cells:
            click.echo(f"{run.name}: no outcome")
    expectation = explained.match.expectation
    if len(seen) > 1 and expectation is not None and expectation.min_pass_rate is not None:
        overall = judge_flaky(
            expectation,
            [each.observed for _, each, _ in seen],
            expired=expectation.is_expired(today),
        )
        click.echo(f"all runs together: {overall.verdict}\n    {overall.why}")
    return ExitCode.GREEN.value


@manifest.command()
@_which
@_against
@click.option(
    "--soon", default=60, show_default=True, help="Days ahead in which a block expires soon."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def stats(
    path: Path | None,
    device: str | None,
    descriptor: Path | None,
    runs: tuple[Path, ...],
    plan: str | None,
    soon: int,
    as_json: bool,
) -> int:
    """Count blocks by kind, clause family and age; with --run or --plan the cells that they match."""
    from devices.lifecycle.stats import stats as count
    from devices.lifecycle.stats import text

    given = Given.of(path, device, descriptor, runs)
    read = given.read()
    cells = given.cells(plan or "full") if runs or plan else None
    counted = count(
        read.manifest, given.facts(), date.today(), soon=timedelta(days=soon), cells=cells
    )
    if as_json:
        click.echo(
            json.dumps({"manifest": str(read.path), **dataclasses.asdict(counted)}, indent=2)
        )
    else:
        click.echo(str(read.path))
        for line in text(counted):
            click.echo(line)
    return ExitCode.GREEN.value


def _cause(
    reason: str | None, kind: str | None, issue: str | None, expires: str | None
) -> Cause | None:
    """What new blocks say. Raises UsageError where that cannot be."""
    from devices.lifecycle.add import Cause

    if reason is None:
        for name, value in (("kind", kind), ("issue", issue), ("expires", expires)):
            if value is not None:
                raise click.UsageError(f"--{name} goes with --reason, which new blocks need")
        return None
    if not reason.strip():
        raise click.UsageError("--reason is blank: say in a sentence what causes the failures")
    if issue is not None and not re.fullmatch(r"https?://[^\s/]+\S*", issue):
        raise click.UsageError(f"--issue {issue!r} is no URL: write the address in full")
    try:
        last = date.fromisoformat(expires) if expires is not None else None
    except ValueError:
        raise click.UsageError(
            f"--expires {expires!r} is no date: write it as 2027-03-01"
        ) from None
    return Cause(reason.strip(), Kind(kind) if kind else None, issue, last)


def _selection(
    planned: Sequence[CellKey], clauses: str | None, ops: str | None, dtypes: str | None
) -> Callable[[CellKey], bool]:
    """Whether a cell is among those asked for. Raises BadOption for a glob that matches nothing."""
    from conformance.options import matching

    chosen = []
    for option, text, names in (
        ("--clauses", clauses, {key.clause for key in planned}),
        ("--ops", ops, {key.op for key in planned}),
        ("--dtypes", dtypes, {key.dtype for key in planned}),
    ):
        globs = [part.strip() for part in (text or "").split(",") if part.strip()]
        if text is not None and not globs:
            raise click.UsageError(f"{option} was given an empty list: leave it out")
        chosen.append(matching(option, globs, names) if globs else None)
    return lambda key: all(
        names is None or name in names for name, names in zip(key, chosen, strict=True)
    )


def _tell(done: Update, path: Path, *, written: bool) -> None:
    """What became of the blocks, and the cells that were left alone."""
    counts = [
        f"{_count(len(blocks), 'block')} {what}"
        for blocks, what in (
            (done.removed, "removed"),
            (done.narrowed, "narrowed"),
            (done.added, "added"),
        )
        if blocks
    ]
    if counts:
        click.echo(f"{path}: {', '.join(counts)}{'' if written else ' (nothing was written)'}")
    else:
        click.echo(f"{path}: nothing to change")
    _name("regression: flaky, and below their pass rate", done.floors, "")
    _name(
        "left alone: the runs disagree",
        done.disagreeing,
        'if one is known to come and go, write a block with outcome = "flaky", expires and'
        " min_pass_rate",
    )
    _name(
        "not recorded: fail, and not as a block expects",
        done.unrecorded,
        "what is known can be recorded with --reason TEXT, from two runs that agree",
    )


def _name(title: str, cells: Sequence[Left], advice: str) -> None:
    if not cells:
        return
    click.echo(f"{title} ({_count(len(cells), 'cell')})")
    for each in cells[:_MOST]:
        click.echo(f"    {each.key}: {each.why}")
    if len(cells) > _MOST:
        click.echo(f"    and {len(cells) - _MOST:,} more")
    if advice:
        click.echo(f"    {advice}")


def _near(key: CellKey, planned: Iterable[CellKey]) -> str:
    """Planned cells that may have been meant."""
    names = {str(each) for each in planned if each.clause == key.clause}
    return suggestion(str(key), names)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _write(path: Path, text: str) -> None:
    """Replace a file at once: whoever reads it sees the old text or the new. Raises ConformError."""
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode())
        if path.exists():
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConformError(f"{path}: cannot be written: {error.strerror or error}") from None
