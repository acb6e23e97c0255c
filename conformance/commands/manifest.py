"""``conform manifest``: check the expected failures of a device, update them, and explain them."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.commands import known_cell
from conformance.contract import Contract, load
from devices import registry
from devices.cell import CellKey
from devices.descriptor import DTYPES, Descriptor, common_facts
from devices.errors import ConformError, suggestion
from devices.files import write_whole
from devices.lifecycle.evidence import Evidence
from devices.manifest import CauseKind, Manifest
from devices.pinned import read_pinned
from opinfo.layouts import covering_set
from reports.gate import ExitCode
from reports.model import evidence_of
from reports.run import load_run

if TYPE_CHECKING:
    from devices.lifecycle.update import Cause, Left, Update

_MOST = 20  # cells that are listed


@dataclass(frozen=True, slots=True)
class Read:
    """A manifest: its path, its text, and its content."""

    path: Path
    text: str
    manifest: Manifest


@dataclass(slots=True)
class Given:
    """The manifest, device and runs that a command line names."""

    path: Path | None
    descriptor: Descriptor | None
    runs: tuple[Path, ...]
    contract: Contract
    recorded: Path | None = None  # the manifest that the first run was judged by
    evidence: list[Evidence] = field(default_factory=list)

    @classmethod
    def of(
        cls, path: Path | None, device: str | None, descriptor: Path | None, runs: Sequence[Path]
    ) -> Given:
        """Look the device up, and read the runs. Raises ConformError."""
        given = cls(path, None, tuple(runs), load())
        loaded = [load_run(each) for each in runs]
        given.evidence = [
            evidence_of(run, str(each)) for run, each in zip(loaded, runs, strict=True)
        ]
        if loaded and loaded[0].provenance.expectations not in ("", "none"):
            given.recorded = Path(loaded[0].provenance.expectations)
        if descriptor is not None:
            given.descriptor = registry.load_file(descriptor)
        elif device is not None:
            given.descriptor = registry.get(device)
        elif loaded:
            given.descriptor = registry.installed().devices.get(loaded[0].provenance.device)
        elif path is None:
            given.descriptor = _own_device()
        return given

    def read(self, *, may_be_new: bool = False) -> Read:
        """The manifest. Raises ConformError where none is known, or it cannot be read."""
        path = self._path(may_be_new=may_be_new)
        if not path.exists():
            if may_be_new:
                return Read(path, "", Manifest(path=path))
            raise ConformError(
                f"{path} does not exist: `conform manifest update RUN RUN --reason TEXT` starts it from two"
                " runs that agree"
            )
        manifest = self.load(path)
        return Read(path, path.read_bytes().decode("utf-8-sig"), manifest)

    def load(self, path: Path) -> Manifest:
        return Manifest.load(path, set(self.contract.clauses), self._layouts(path))

    def parse(self, text: str, path: Path) -> Manifest:
        return Manifest.parse(text, path, set(self.contract.clauses), self._layouts(path))

    def _layouts(self, path: Path) -> frozenset[str]:
        """Those of the covering set, and of the examples that are pinned for the manifest or its device."""
        folders = [path.parent, self.descriptor.folder if self.descriptor is not None else None]
        return covering_set().ids | {pin.layout for each in folders for pin in read_pinned(each)}

    def _path(self, *, may_be_new: bool) -> Path:
        if self.path is not None:
            return self.path
        if self.recorded is not None and self.recorded.is_file():
            return self.recorded
        device = self.descriptor
        if device is not None and device.expectations is not None:
            return device.expectations
        if device is not None and device.folder is not None and may_be_new:
            return device.folder / "expected.toml"
        whose = f"device '{device.name}' has no manifest" if device else "no manifest is known"
        raise ConformError(f"{whose}: name the file with --manifest PATH")

    def facts(self) -> Mapping[str, str]:
        """Those of the first run; without runs those of the device, or if it is not here those of any machine."""
        if self.evidence:
            return self.evidence[0].facts
        if self.descriptor is None or self.descriptor.unavailable() is not None:
            return common_facts()
        return self.descriptor.facts()

    def dtypes(self) -> Collection[str]:
        """The dtypes that the device declares; all, if it is not known here."""
        return self.descriptor.dtypes if self.descriptor is not None else DTYPES

    def cells(self, plan: str) -> Iterable[CellKey]:
        """The cells of the runs; without runs those of a plan, which is made now."""
        if self.evidence:
            return dict.fromkeys(key for run in self.evidence for key in run.planned)
        from conformance.plan.planner import make_plan
        from opinfo.device import open_device
        from opinfo.plan import plan_spec

        spec = plan_spec(plan)
        device = self.descriptor or _own_device()
        if (why := device.unavailable()) is not None:
            raise ConformError(
                f"device {device.name!r} cannot be used here ({why}), so its cells cannot be planned:"
                " give --run RUN"
            )
        click.echo(f"planning {plan} on {device.name} (--run RUN is faster)", err=True)
        return make_plan(spec, open_device(device), self.contract).cells


def _own_device() -> Descriptor:
    """The device that a run uses if none is named."""
    from conformance.plan.selection import machines_own

    return machines_own()


@click.group()
def manifest() -> None:
    """Expected failures: check, update, explain and count them."""


def _given(with_runs: bool = True) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The options that name a manifest, and runs; the command gets them as a ``Given``."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def called(
            path: Path | None,
            device: str | None,
            descriptor: Path | None,
            runs: tuple[Path, ...],
            **options: Any,
        ) -> int:
            return command(Given.of(path, device, descriptor, runs), **options)

        for option in (
            click.option("--descriptor", type=click.Path(path_type=Path), help="The device's descriptor.py."),
            click.option("--device", metavar="NAME", help="The device that the manifest is for."),
            click.option("--manifest", "path", type=click.Path(path_type=Path), help="The manifest's path."),
        ):  # fmt: skip
            called = option(called)
        if with_runs:
            text = "A results folder: its cells and facts are used. Needs neither torch nor the device."
            runs = click.option("--run", "runs", multiple=True, type=click.Path(path_type=Path), help=text)  # fmt: skip
            called = runs(called)
        return called

    return decorate


_plan = click.option("--plan", metavar="NAME", help="Plan to compare with: quick, core or full.")


@manifest.command()
@_given()
@_plan
@click.option("--no-plan", is_flag=True, help="Do not compare with planned cells.")
@click.option("--fix", is_flag=True, help="Rewrite the file in canonical form.")
def lint(
    given: Given,
    plan: str | None,
    no_plan: bool,
    fix: bool,
) -> int:
    """Check a manifest: form, dates, contradictions, and blocks that match nothing.

    Blocks are compared with the cells of --run RUN, or with plan `full`, which is made now. Exits 1 if there are
    problems, 4 if the manifest cannot be read.
    """
    from devices.lifecycle.inspection import lint as find
    from devices.lifecycle.text import canonical

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
@_given(with_runs=False)
@click.option("--reason", help="Add failures that no block expects, with this reason.")
@click.option(
    "--kind", type=click.Choice([each.value for each in CauseKind]), help="Who must fix the cause."
)
@click.option("--issue", metavar="URL", help="The issue that discusses it.")
@click.option("--expires", metavar="DATE", help="The last day on which the new blocks hold.")
@click.option("--clauses", metavar="GLOB,…", help="Only cells of these clauses.")
@click.option("--ops", metavar="GLOB,…", help="Only cells of these ops.")
@click.option("--dtypes", metavar="GLOB,…", help="Only cells of these dtypes.")
@click.option(
    "--unseen-too",
    is_flag=True,
    help="Treat dtypes that no RUN planned like those that were planned; otherwise they do not change.",
)
@click.option("--dry-run", is_flag=True, help="Show the difference without writing it.")
@click.option("--check", is_flag=True, help="Like --dry-run, and exit 1 if there is a difference.")
def update(
    given: Given,
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
    """Update a manifest from runs, and show the difference.

    Cells that pass in every RUN are removed from their blocks. With --reason, unexpected failures on which two
    runs of one plan agree are added. Cells on which the runs disagree are listed and not changed, and cells that
    no run saw are not changed. Exits 1 if flaky cells pass less often than their block demands.
    """
    from devices.lifecycle.text import unified
    from devices.lifecycle.update import update as bring_up_to_date

    cause = _cause(reason, kind, issue, expires)
    read = given.read(may_be_new=cause is not None)
    planned = list(dict.fromkeys(key for run in given.evidence for key in run.planned))
    done = bring_up_to_date(
        read.text,
        read.manifest,
        given.evidence,
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
    _report(done, read.path, written=changed and not (dry_run or check))
    if done.floors or (check and changed):
        return ExitCode.REGRESSION.value
    return ExitCode.GREEN.value


@manifest.command()
@click.argument("cell", metavar="CELL")
@_given()
def explain(
    given: Given,
    cell: str,
) -> int:
    """Explain what is expected of a cell, and why.

    CELL is written as in reports, such as 'layout.values::add[float32]'. Shows the blocks that decide, the blocks that they override, and the blocks whose conditions are not met;
    with --run also the verdict on the cell's outcome in that run.
    """
    from devices.lifecycle.evidence import comparable, judged
    from devices.lifecycle.inspection import explain as why
    from devices.lifecycle.inspection import explanation_text
    from devices.verdicts import judge_flaky

    key = known_cell(cell, (name for run in given.evidence for name in run.planned))
    read = given.read()
    today = date.today()
    explained = why(read.manifest, key, given.facts())
    evidence = given.evidence
    if evidence:
        comparable(read.manifest, evidence)
    seen = [
        (run.name, run.cells[key], judged(explained.match.expectation, run.cells[key], today))
        for run in evidence
        if key in run.cells
    ]
    for line in explanation_text(explained, seen):
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
@_given()
@_plan
@click.option(
    "--soon",
    default=60,
    show_default=True,
    help="Days before its last day in which a block expires soon.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stats(
    given: Given,
    plan: str | None,
    soon: int,
    as_json: bool,
) -> int:
    """Count blocks by kind, clause family and age, and with --run or --plan the cells that they match."""
    from devices.lifecycle.inspection import stats as count
    from devices.lifecycle.inspection import stats_text

    read = given.read()
    cells = given.cells(plan or "full") if given.runs or plan else None
    counted = count(
        read.manifest, given.facts(), date.today(), soon=timedelta(days=soon), cells=cells
    )
    if as_json:
        click.echo(
            json.dumps({"manifest": str(read.path), **dataclasses.asdict(counted)}, indent=2)
        )
    else:
        click.echo(str(read.path))
        for line in stats_text(counted):
            click.echo(line)
    return ExitCode.GREEN.value


def _cause(
    reason: str | None, kind: str | None, issue: str | None, expires: str | None
) -> Cause | None:
    """The cause that new blocks state. Raises UsageError."""
    from devices.lifecycle.update import Cause

    if reason is None:
        for name, value in (("kind", kind), ("issue", issue), ("expires", expires)):
            if value is not None:
                raise click.UsageError(f"--{name} needs --reason")
        return None
    if not reason.strip():
        raise click.UsageError("--reason is empty: say in a sentence what causes the failures")
    if issue is not None and not re.fullmatch(r"https?://[^\s/]+\S*", issue):
        raise click.UsageError(f"--issue {issue!r} is not a URL: write the full address")
    try:
        last = date.fromisoformat(expires) if expires is not None else None
    except ValueError:
        raise click.UsageError(
            f"--expires {expires!r} is not a date: write it as 2027-03-01"
        ) from None
    return Cause(reason.strip(), CauseKind(kind) if kind else None, issue, last)


def _selection(
    planned: Sequence[CellKey], clauses: str | None, ops: str | None, dtypes: str | None
) -> Callable[[CellKey], bool]:
    """Whether the options select a cell. Raises BadOption for a glob that matches nothing."""
    from conformance.plan.options import matching

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


def _report(done: Update, path: Path, *, written: bool) -> None:
    """Report the changes, and the cells that were not changed."""
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
    if done.unseen:
        click.echo(
            f"no RUN planned {_count(len(done.unseen), 'dtype')} of these blocks, so these did not change: give a"
            " run of a larger plan, or --unseen-too"
        )
    _list("regression: flaky cells below their pass rate", done.floors, "")
    _list(
        "not changed: the runs disagree",
        done.disagreeing,
        'for a cell that is known to be flaky, write a block with outcome = "flaky", expires and'
        " min_pass_rate",
    )
    _list(
        "not recorded: unexpected failures",
        done.unrecorded,
        "--reason TEXT records known failures, from two runs that agree",
    )


def _list(title: str, cells: Sequence[Left], advice: str) -> None:
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
    """Planned cells with a similar name."""
    names = {str(each) for each in planned if each.clause == key.clause}
    return suggestion(str(key), names)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path.resolve(), text)
    except OSError as error:
        raise ConformError(f"{path}: cannot be written: {error.strerror or error}") from None
