"""The commands of ``conform manifest``, which check, update, explain and count the expected failures of a device."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from conformance.commands import PATH, globs_of, known_cell, options, print_first, print_json
from conformance.contract import load
from conformance.plan.selection import find_descriptor
from conformance.plan.usage import replay_manifest
from devices import registry, torch_version
from devices.cell import CellKey, Verdict
from devices.descriptor import DTYPES, Descriptor, common_facts
from devices.errors import ConformError, suggestion
from devices.manifest import Block, CauseKind, ExpectedOutcome, Known, Manifest
from devices.pinned import read_pinned
from devices.torch_version import require_torch
from opinfo.layouts import covering_set
from opinfo.plan import plan_spec
from reports.advice import TRIAGE, drafts
from reports.causes import causes_of
from reports.gate import ExitCode, number
from reports.junit import one_line
from reports.model import evidence_of, write_file
from reports.run import load_run

if TYPE_CHECKING:
    from devices.lifecycle.update import Cause, Update


class Read(NamedTuple):
    """A manifest that was read, with its path and its text."""

    path: Path
    text: str
    manifest: Manifest


class Given:
    """The manifest, device and runs that a command line names. The constructor raises ConformError if a run or the
    device cannot be read."""

    def __init__(
        self, path: Path | None, device: str | None, descriptor: Path | None, runs: Sequence[Path]
    ) -> None:
        self.path, self.contract = path, load()
        loaded = [load_run(each) for each in runs]
        self.last = loaded[-1] if loaded else None
        self.evidence = [evidence_of(run, str(each)) for run, each in zip(loaded, runs)]
        named = descriptor is not None or device is not None
        # The manifest that the first run was judged by; a device that is named has its own.
        recorded = loaded[0].provenance.expectations if loaded and not named else ""
        self.recorded = Path(recorded) if recorded not in ("", "none") else None
        self.descriptor: Descriptor | None = None
        if loaded and not named:
            self.descriptor = registry.installed().devices.get(loaded[0].provenance.device)
        elif named or path is None:
            self.descriptor = find_descriptor(device, descriptor)

    def drafts(self) -> dict[CellKey, str]:
        """Returns a draft of a reason for each cell that regressed in the last run. The drafts are made from the causes
        of the failures."""
        if self.last is None:
            return {}
        results = self.last.results.values()
        return drafts(causes_of(self.last, [r for r in results if r.verdict is Verdict.REGRESSION]))

    def read_manifest(self, *, may_be_new: bool = False) -> Read:
        """Returns the manifest. Raises ConformError if no manifest is known or the file cannot be read. With
        ``may_be_new`` a manifest that does not exist yet is returned as empty."""
        path = self._path(may_be_new=may_be_new)
        if path.exists():
            manifest = Manifest.load(path, self._known_names(path))
            return Read(path, path.read_bytes().decode("utf-8-sig"), manifest)
        if may_be_new:
            return Read(path, "", Manifest(path=path))
        raise ConformError(
            f"{path} does not exist: create it with `conform manifest update RUN RUN --triage`, from"
            " two runs of the same plan"
        )

    def write(self, path: Path, text: str) -> None:
        """Writes the text of a manifest to a file. Raises ConformError, without writing, if the text is not a valid
        manifest."""
        Manifest.parse(text, path, self._known_names(path))
        write_file(path.resolve(), text.encode())

    def _known_names(self, path: Path) -> Known:
        """Returns the names that a manifest may use: the clauses, the layouts of the covering set, and the layouts of
        examples that are pinned in the folder of the manifest or of its device."""
        folders = [path.parent, self.descriptor.folder if self.descriptor is not None else None]
        pinned = {pin.layout for each in folders for pin in read_pinned(each)}
        return {"clause": self.contract.clauses, "layouts": covering_set().ids | pinned}

    @property
    def _of_a_replay(self) -> bool:
        return self.last is not None and plan_spec(self.last.provenance.plan).recorded

    def _path(self, *, may_be_new: bool) -> Path:
        if self.path is not None:
            return self.path
        if self.recorded is not None and self.recorded.is_file():
            return self.recorded
        device = self.descriptor
        if device is not None and self._of_a_replay:
            path = replay_manifest(device)
            if path is not None and (may_be_new or path.is_file()):
                return path
        elif device is not None and device.expectations is not None:
            return device.expectations
        elif device is not None and device.folder is not None and may_be_new:
            return device.folder / "expected.toml"
        whose = f"device '{device.name}' has no manifest" if device else "no manifest is known"
        raise ConformError(f"{whose}: name the file with --manifest PATH")

    def facts(self) -> Mapping[str, str]:
        """Returns the facts about the machine from the first run. Without runs, returns the facts of the device or, if
        the device is not available, the facts that every machine has. If torch is not installed, the fact ``torch`` is
        the newest supported version."""
        if self.evidence:
            return self.evidence[0].facts
        newest = {"torch": "{}.{}".format(*torch_version.LAST)}
        if self.descriptor is None or self.descriptor.unavailable() is not None:
            return {**newest, **common_facts()}
        return {**newest, **self.descriptor.facts()}

    def dtypes(self) -> Collection[str]:
        """Returns the dtypes that the device declares; all dtypes if no device is known."""
        return self.descriptor.dtypes if self.descriptor is not None else DTYPES

    def cells(self, plan: str) -> Iterable[CellKey]:
        """Returns the cells of the runs. Without runs, makes the named plan and returns its cells."""
        if self.evidence:
            return dict.fromkeys(key for run in self.evidence for key in run.planned)
        spec = plan_spec(plan)
        device = self.descriptor or find_descriptor(None, None)
        if (why := device.unavailable()) is not None:
            raise ConformError(
                f"device {device.name!r} cannot be used here ({why}), so its cells cannot be planned:"
                " give --run RUN"
            )
        require_torch()
        click.echo(
            f"making plan {plan} of {device.name} (with --run RUN, no plan has to be made)",
            err=True,
        )
        from conformance.plan.planner import make_plan

        return make_plan(spec, device, self.contract).cells


@click.group()
def manifest() -> None:
    """Check, update, explain and count the expected failures of a device."""


def _with_manifest_options(command: Callable[..., int]) -> Callable[..., int]:
    """Returns a command to which the options for the manifest, the device and the runs are added. The values of these
    options are passed to the command as one ``Given`` object."""

    @options("manifest")
    @functools.wraps(command)
    def with_options(
        path: Path | None,
        device: str | None,
        descriptor: Path | None,
        runs: tuple[Path, ...],
        **options: Any,
    ) -> int:
        return command(Given(path, device, descriptor, runs), **options)

    return with_options


@manifest.command()
@options("runs")
@_with_manifest_options
@options("lint")
def lint(given: Given, plan: str | None, no_plan: bool, fix: bool) -> int:
    """Check the form and the dates of a manifest, and find contradictions and blocks that match no cell.

    Blocks are compared with the cells of --run RUN. Without --run and --no-plan, the command makes a plan (`full`, or
    the one that --plan names) and compares the blocks with its cells. Exits 1 if there are problems, 4 if the manifest
    cannot be read.
    """
    from devices.lifecycle.inspection import lint as find
    from devices.lifecycle.text import canonical

    read = given.read_manifest()
    if fix:
        wanted = canonical(read.text, read.manifest)
        if wanted != read.text:
            given.write(read.path, wanted)
            click.echo(f"{read.path}: written in canonical form")
            read = given.read_manifest()
    cells = None if no_plan else given.cells(plan or "full")
    problems = find(read.manifest, cells, given.facts(), date.today(), read.text)
    for problem in problems:
        click.echo(str(problem))
    found = number(len(problems), "problem") if problems else "no problems"
    click.echo(f"{read.path}: {number(len(read.manifest.blocks), 'block')}, {found}")
    return ExitCode.REGRESSION if problems else ExitCode.GREEN


@manifest.command()
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN...")
@_with_manifest_options
@options("update")
def update(
    given: Given,
    clauses: str | None,
    ops: str | None,
    dtypes: str | None,
    unseen_too: bool,
    dry_run: bool,
    check: bool,
    triage: bool,
    **cause: str | None,
) -> int:
    """Update a manifest from runs, and show the difference.

    Cells that pass in every RUN are removed from their blocks. With --reason or --triage, unexpected failures on which
    two runs of one plan agree are added. Cells on which the runs disagree are listed and not changed, and cells that
    no run saw are not changed. Exits 1 if flaky cells pass less often than their block demands.
    """
    from devices.lifecycle.text import unified
    from devices.lifecycle.update import update as bring_up_to_date

    stated = _cause(triage, **cause)
    read = given.read_manifest(may_be_new=stated is not None)
    planned = list(dict.fromkeys(key for run in given.evidence for key in run.planned))
    done = bring_up_to_date(
        read.text,
        read.manifest,
        given.evidence,
        date.today(),
        cause=stated,
        drafts=given.drafts() if triage else {},
        wanted=_selection(planned, clauses, ops, dtypes),
        dtypes=() if unseen_too else given.dtypes(),
    )
    changed, written = done.text != read.text, not (dry_run or check)
    if changed:
        click.echo("\n".join(unified(read.text, done.text, str(read.path))))
    if changed and written:
        given.write(read.path, done.text)
    _report(done, read.path, written=written)
    return ExitCode.REGRESSION if done.floors or (check and changed) else ExitCode.GREEN


@manifest.command("import")
@click.argument("file", type=PATH)
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN RUN2")
@_with_manifest_options
@options("import")
def import_list(given: Given, file: Path, format_name: str | None, dry_run: bool) -> int:
    """Add the failures that another suite's skip list names to a manifest.

    FILE is a skip list: a dictionary in Python as in torch-xpu-ops, a configuration of torch-spyre in YAML, disabled
    tests in JSON as in torch_npu, or a plain list with one test, operator or cell per line. RUN and RUN2 are two runs of
    one plan. Of the cells that FILE is about, those that fail in both runs are added, with `triage:` and the
    explanation of FILE as the draft of a reason. Cells that pass are not added, and entries about no planned cell are
    listed.
    """
    from devices.lifecycle.skip_lists import cells_of, read_skip_list, reason_of, unmatched_hint
    from devices.lifecycle.text import unified
    from devices.lifecycle.update import Cause
    from devices.lifecycle.update import update as bring_up_to_date

    entries = read_skip_list(file, format_name)
    read = given.read_manifest(may_be_new=True)
    planned = list(dict.fromkeys(key for run in given.evidence for key in run.planned))
    last = given.last
    assert last is not None  # click requires a run
    device = given.descriptor.torch_type if given.descriptor is not None else ""
    matched = cells_of(entries, planned, {last.provenance.device, device} - {""})
    failing = {key for key, result in last.results.items() if result.verdict is Verdict.REGRESSION}
    drafts = {
        cell: f"{TRIAGE} {reason_of(entry, file.name)}"
        for cell, entry in matched.cells.items()
        if cell in failing
    }
    done = bring_up_to_date(
        read.text,
        read.manifest,
        given.evidence,
        date.today(),
        cause=Cause(f"{TRIAGE} {file.name} skips it"),
        drafts=drafts,
        wanted=drafts.__contains__,
        dtypes=given.dtypes(),
    )
    if done.text != read.text:
        click.echo("\n".join(unified(read.text, done.text, str(read.path))))
        if not dry_run:
            given.write(read.path, done.text)
    _report(done, read.path, written=not dry_run)
    passing = len(matched.cells) - len(drafts)
    click.echo(
        f"{file}: {number(len(entries), 'entry', 'entries')}, about {number(len(matched.cells), 'planned cell')}; "
        f"{passing:,} of these do not fail unexpectedly and were not added"
    )
    if matched.unmatched:
        count = number(len(matched.unmatched), "entry is", "entries are")
        click.echo(f"{count} about no planned cell:")
        print_first(
            f"{one_line(entry.name)}{unmatched_hint(entry, planned)}" for entry in matched.unmatched
        )
    return ExitCode.GREEN


@manifest.command()
@click.argument("cell")
@options("runs")
@_with_manifest_options
@options("quarantine")
def quarantine(
    given: Given,
    cell: str,
    until: str,
    reason: str,
    min_pass_rate: float,
    issue: str | None,
    dry_run: bool,
) -> int:
    """Let a flaky cell pass or fail until a date.

    CELL is written as in reports, such as 'streams.wait::wait_event'. A block with the outcome `flaky` is added for this
    cell alone. Until the date, the cell does not turn the gate red unless it crashes or passes too rarely, and the gate's
    summary lists it. After the date, its failures are regressions again.
    """
    from devices.lifecycle.text import Editing, unified
    from devices.verdicts import Matcher, conflict_text

    last = _date("--until", until)
    stated = _cause(False, reason=reason, kind=None, issue=issue, expires=None)
    assert stated is not None  # --reason is required
    if last < date.today():
        raise click.UsageError(f"--until {until} has passed; expected today or a later day")
    key = known_cell(cell, (name for run in given.evidence for name in run.planned))
    read = given.read_manifest(may_be_new=True)
    block = Block(
        line=0,
        clause=(key.clause,),
        op=(key.unit,),
        dtype=(key.dtype,) if key.dtype else ("*",),
        variant=(key.variant,),
        outcome=ExpectedOutcome.FLAKY,
        min_pass_rate=min_pass_rate,
        reason=stated.reason,
        issue=stated.issue,
        expires=last,
    )
    active = read.manifest.active(given.facts())
    decided = Matcher(active).match(key).expectation
    for old in decided.deciding if decided is not None else ():
        if old.outcome is ExpectedOutcome.FLAKY:
            raise ConformError(
                f"{old.where}: this block already allows {key} to be flaky until {old.expires}: change its date there"
            )
    match = Matcher(dataclasses.replace(active, blocks=(*active.blocks, block))).match(key)
    if match.conflict is not None:
        raise ConformError(conflict_text(match.conflict, key))
    editing = Editing(read.text, read.manifest)
    editing.insert(block)
    text = editing.text()
    click.echo("\n".join(unified(read.text, text, str(read.path))))
    if not dry_run:
        given.write(read.path, text)
    days = (last - date.today()).days
    click.echo(
        f"{read.path}: {key} may pass or fail for {number(days + 1, 'day')}"
        f"{' (nothing was written)' if dry_run else ''}"
    )
    return ExitCode.GREEN


@manifest.command()
@click.argument("cell")
@options("runs")
@_with_manifest_options
def explain(given: Given, cell: str) -> int:
    """Explain what is expected of a cell, and why.

    CELL is written as in reports, such as 'layout.values::add[float32]'. Shows the blocks that decide what is
    expected, the blocks that they override, and the blocks whose conditions are not met; with --run also the verdict on
    the cell's outcome in that run.
    """
    from devices.lifecycle.evidence import comparable, judge_observation
    from devices.lifecycle.inspection import explain as why
    from devices.lifecycle.inspection import explanation_text
    from devices.verdicts import judge_flaky

    key = known_cell(cell, (name for run in given.evidence for name in run.planned))
    read = given.read_manifest()
    today = date.today()
    explained = why(read.manifest, key, given.facts())
    if evidence := given.evidence:
        comparable(read.manifest, evidence)
    seen = [
        (
            run.name,
            run.cells[key],
            judge_observation(explained.match.expectation, run.cells[key], today),
        )
        for run in evidence
        if key in run.cells
    ]
    for line in explanation_text(explained, seen):
        click.echo(line)
    for run in evidence:
        if key not in run.planned:
            names = {str(each) for each in run.planned if each.clause == key.clause}
            click.echo(f"{run.name}: the cell is not planned{suggestion(str(key), names)}")
        elif key not in run.cells:
            click.echo(f"{run.name}: the cell has no outcome")
    expectation = explained.match.expectation
    if len(seen) > 1 and expectation is not None and expectation.min_pass_rate is not None:
        observed = [each.observed for _, each, _ in seen]
        overall = judge_flaky(expectation, observed, expired=expectation.is_expired(today))
        click.echo(f"all runs together: {overall.verdict}\n    {overall.why}")
    return ExitCode.GREEN


@manifest.command()
@options("runs")
@_with_manifest_options
@options("stats")
def stats(given: Given, plan: str | None, soon: int, as_json: bool) -> int:
    """Count blocks by kind, clause family and age, and with --run or --plan the cells that they match."""
    from devices.lifecycle.inspection import stats as count
    from devices.lifecycle.inspection import stats_text

    read, until = given.read_manifest(), timedelta(days=soon)
    cells = given.cells(plan or "full") if given.evidence or plan else None
    counted = count(read.manifest, given.facts(), date.today(), soon=until, cells=cells)
    if as_json:
        print_json({"manifest": str(read.path), **dataclasses.asdict(counted)})
    else:
        click.echo("\n".join([str(read.path), *stats_text(counted)]))
    return ExitCode.GREEN


def _cause(triage: bool, reason: str | None, **more: str | None) -> Cause | None:
    """Returns the cause for the new blocks of a manifest, from the options; None if no block is to be added. Raises
    UsageError if an option is wrong."""
    from devices.lifecycle.update import Cause

    if triage and reason is not None:
        raise click.UsageError("--triage writes a draft of each reason: leave out --reason")
    if triage:
        reason = f"{TRIAGE} unknown"
    if reason is None:
        for name, value in more.items():
            if value is not None:
                raise click.UsageError(f"--{name} needs --reason or --triage")
        return None
    kind, issue, expires = more["kind"], more["issue"], more["expires"]
    if not reason.strip():
        raise click.UsageError(
            "--reason is empty: describe the cause of the failures in a sentence"
        )
    if issue is not None and not re.fullmatch(r"https?://[^\s/]+\S*", issue):
        raise click.UsageError(f"--issue {issue!r} is not a URL: write the full address")
    last = _date("--expires", expires) if expires is not None else None
    return Cause(reason.strip(), CauseKind(kind) if kind else None, issue, last)


def _date(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option} {text!r} is not a date: write a date in the form 2027-03-01"
        ) from None


def _selection(
    planned: Sequence[CellKey], clauses: str | None, ops: str | None, dtypes: str | None
) -> Callable[[CellKey], bool]:
    """Returns a function that returns True for the cells that the options select. Raises ConformError for a glob that
    matches nothing."""
    from conformance.plan.options import matching

    chosen = []
    for index, (option, text) in enumerate(
        (("--clauses", clauses), ("--ops", ops), ("--dtypes", dtypes))
    ):
        globs = globs_of(option, text)
        chosen.append(matching(option, globs, {key[index] for key in planned}) if globs else None)
    return lambda key: all(
        names is None or name in names for name, names in zip(key[:3], chosen, strict=True)
    )


def _report(done: Update, path: Path, *, written: bool) -> None:
    """Prints the number of changed blocks, and the cells whose blocks were not changed."""
    changes = {"removed": done.removed, "narrowed": done.narrowed, "added": done.added}
    counts = [
        f"{number(len(blocks), 'block')} {what}" for what, blocks in changes.items() if blocks
    ]
    nothing = "" if written else " (nothing was written)"
    click.echo(f"{path}: {', '.join(counts) + nothing if counts else 'nothing to change'}")
    if done.unseen:
        click.echo(
            f"these blocks cover {number(len(done.unseen), 'dtype')} that no RUN planned; for such dtypes, nothing was"
            " changed: give a run of a larger plan, or --unseen-too"
        )
    for title, cells, advice in (
        ("regression: flaky cells below their pass rate", done.floors, ""),
        (
            "not changed: the runs disagree",
            done.disagreeing,
            'for a cell that is known to be flaky, write a block with outcome = "flaky", expires and min_pass_rate',
        ),
        (
            "not recorded: unexpected failures",
            done.unrecorded,
            "to record the failures on which two runs agree, give --reason TEXT or --triage",
        ),
    ):
        if cells:
            click.echo(f"{title} ({number(len(cells), 'cell')})")
            print_first(f"{each.key}: {each.why}" for each in cells)
        if cells and advice:
            click.echo(f"    {advice}")
