"""The gate: judges a run by counting its cells and finding problems, and decides the exit code. Nothing is written."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from pathlib import PurePath
from typing import Final

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from reports.model import (
    PLANNED,
    CellResult,
    Clause,
    Run,
    RunError,
    StatedLevel,
    by_declaration,
    problem_with,
)


class ExitCode(IntEnum):
    """The exit codes of a run and of the gate. They are compatible with pytest's exit codes."""

    GREEN = 0
    REGRESSION = 1  # red: regressions, or improvements that the manifest does not record
    INCOMPLETE = 2  # planned cells without an outcome; partial or empty runs
    INFRASTRUCTURE = 3  # no cell could be checked: the machine is at fault, not the device's ops
    USAGE = 4  # bad arguments or unreadable files
    NOTHING_SELECTED = 5

    @property
    def label(self) -> str:
        """The name of the exit code in one or two words. The name ``red`` also stands for a run that has unexpected
        passes but no regression."""
        return "red" if self is ExitCode.REGRESSION else self.name.lower().replace("_", " ")


#: The flaky cells that the remarks name.
_NAMED: Final = 8


@dataclass(slots=True)
class Tally:
    """Counts of cells. The score is ``passed`` out of ``judged``, and is never shown as a percentage alone.

    ``unsupported``, ``blocked``, ``crashes``, ``hangs`` and ``errors`` count outcomes. ``declared`` counts the cells
    that are unsupported by declaration; these cells are not judged and not counted in ``unsupported``. ``expected``,
    ``regressions``, ``improvements`` and ``flaky`` count verdicts, so a cell may count once by its outcome and once by
    its verdict. ``not_gating`` counts the regressions and improvements of provisional clauses, which are not counted in
    ``regressions`` and ``improvements``. ``no_evidence`` counts results that contradict themselves; these are counted
    nowhere else.
    """

    planned: int = 0
    passed: int = 0
    ambiguous: int = 0
    unsupported: int = 0
    declared: int = 0
    blocked: int = 0
    crashes: int = 0
    hangs: int = 0
    errors: int = 0
    missing: int = 0
    expected: int = 0
    regressions: int = 0
    improvements: int = 0
    flaky: int = 0
    no_evidence: int = 0
    not_gating: int = 0

    @property
    def judged(self) -> int:
        """The denominator of the score: all planned cells except the cells whose references disagree and the cells that
        are unsupported by declaration."""
        return self.planned - self.ambiguous - self.declared

    def add(self, result: CellResult | None) -> None:
        """Counts one planned cell. ``result`` is None if the cell has no result."""
        if result is None:
            self.count(Outcome.NOT_RUN, Verdict.MISSING)
        elif problem_with(result) is not None:
            self.planned += 1
            self.no_evidence += 1
        elif result.outcome is Outcome.PASS and result.verdict is Verdict.OK:
            self.planned += 1  # most cells; a shortcut for ``count``
            self.passed += 1
        else:
            self.count(result.outcome, result.verdict)

    def count(self, outcome: Outcome, verdict: Verdict, cells: int = 1) -> None:
        """Adds a number of planned cells that have the given outcome and verdict."""
        self.planned += cells
        names = [_COUNTED.get(outcome), _COUNTED.get(verdict)]
        if outcome is Outcome.UNSUPPORTED and verdict is Verdict.OK:
            names = ["declared"]
        for name in filter(None, names):
            setattr(self, name, getattr(self, name) + cells)

    def set_aside(self) -> None:
        """Moves the counts of regressions and improvements to ``not_gating``, as is done for a provisional clause."""
        self.not_gating += self.regressions + self.improvements
        self.regressions = self.improvements = 0

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        return cls(*map(sum, zip(*map(astuple, tallies))))


_COUNTED: Mapping[Outcome | Verdict, str] = {
    Outcome.PASS: "passed",
    Outcome.AMBIGUOUS: "ambiguous",
    Outcome.UNSUPPORTED: "unsupported",
    Outcome.BLOCKED: "blocked",
    Outcome.CRASH: "crashes",
    Outcome.HANG: "hangs",
    Outcome.ERROR: "errors",
    Outcome.NOT_RUN: "missing",
    Verdict.EXPECTED: "expected",
    Verdict.REGRESSION: "regressions",
    Verdict.IMPROVEMENT: "improvements",
    Verdict.FLAKY: "flaky",
}


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of the gate. ``tallies`` has the counts by clause, in plan order; ``counts`` is their sum.

    ``new`` are the unexpected results that turn the gate red, regressions before improvements. ``provisional`` are the
    unexpected results of provisional clauses, which do not turn the gate red. ``problems`` are the reasons for an exit
    code other than 0; the first reason decides the code. ``must_pass`` has the cells of a must-pass list; it is None if
    every cell gates. With a list, ``new`` has the listed cells that do not pass, regressions first, and ``provisional``
    all other unexpected results. ``obstacles`` are those problems because of which the run
    cannot be judged; unexpected results are not among them. ``notes`` are remarks that do not affect the code.
    """

    run: Run
    exit_code: ExitCode
    problems: tuple[str, ...]
    tallies: dict[str, Tally]
    counts: Tally
    new: tuple[CellResult, ...]
    provisional: tuple[CellResult, ...]
    notes: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    must_pass: frozenset[CellKey] | None = None

    @property
    def green(self) -> bool:
        return self.exit_code is ExitCode.GREEN

    @property
    def found(self) -> tuple[str, ...]:
        """The numbers of unexpected results as phrases; results that turn the gate red come first: ``65 regressions``,
        ``1 cell passes that expected.toml lists as failing``, ``207 more in clauses that do not gate yet``."""
        regressions = sum(result.verdict is Verdict.REGRESSION for result in self.new)
        phrases = [number(regressions, "regression")] if regressions else []
        if better := self.new[regressions:]:
            excused = self.must_pass is not None
            phrases.append((_excused if excused else _better)(self.run, better))
        if aside := len(self.provisional):
            more = f"{aside:,} more" if phrases else number(aside, "unexpected result")
            where = "in clauses that do not gate yet"
            if self.must_pass is not None:
                where = "in cells that the must-pass list does not name"
            phrases.append(f"{more} {where}")
        if self.must_pass is not None:
            results = filter(None, map(self.run.results.get, self.must_pass))
            passing = sum(result.outcome is Outcome.PASS for result in results)
            phrases.append(
                f"{passing:,} of {number(len(self.must_pass), 'cell')} that must pass do"
            )
        return tuple(phrases)


def gate(
    run: Run,
    *,
    allow_improvements: bool = False,
    partial: bool = False,
    against: Run | None = None,
    must_pass: frozenset[CellKey] | None = None,
) -> GateResult:
    """Judges every planned cell of a run.

    A run is green only if every cell has an outcome that fits its verdict, every pass has at least one executed check,
    and no cell is a regression (or an improvement, unless ``allow_improvements`` is true). Results of provisional
    clauses do not turn the gate red. A partial run, a single shard and an empty run are incomplete. If ``partial`` is
    true, only the selected cells are judged; the exit code of pytest is computed in this way, but the exit code of
    `conform gate` never is. If a baseline ``against`` is given, cells that failed in the baseline in the same way are
    not counted. Raises NoBaseline if the run cannot be compared with the baseline.

    If the cells of a must-pass list are given, only these gate: each must pass, whatever the manifest says. Flaky cells
    and cells whose references disagree are excepted.
    """
    compared = Against.of(run, against) if against is not None else None
    cells = run.parsed.selected if partial else run.parsed.cells
    tallies = tally(run, cells)
    counts = Tally.sum(tallies.values())
    new: list[CellResult] = []
    provisional: list[CellResult] = []
    if counts.regressions or counts.improvements or counts.not_gating:
        for result in _new(run, cells, compared.inherited if compared else frozenset()):
            clause = run.parsed.clauses[result.key.clause]
            (provisional if clause.provisional else new).append(result)
    if must_pass is not None:
        inherited = compared.inherited if compared else frozenset()
        aside = [result for result in (*new, *provisional) if result.key not in must_pass]
        new = _not_passing(run, [cell for cell in cells if cell in must_pass - inherited])
        provisional = aside
    incomplete = _incomplete(run, cells, counts, partial=partial)
    if compared is not None and (gone := compared.gone):
        unplanned = number(
            len(gone),
            "cell of the baseline is no longer planned",
            "cells of the baseline are no longer planned",
        )
        incomplete.append(
            f"{unplanned}, although torch and the suite are the same; the first is {gone[0]}"
        )
    nothing = nothing_checked([run.results[cell] for cell in cells if cell in run.results])
    obstacles = [*filter(None, [nothing]), *incomplete]
    if must_pass is None:
        problems = [*obstacles, *_unexpected(run, new, allow_improvements=allow_improvements)]
    else:
        broken = (
            f"{number(len(new), 'cell that must pass does', 'cells that must pass do')} not pass"
        )
        problems = [*obstacles, *([f"{broken}; the first is {new[0].key}"] if new else [])]
    if partial and not cells:
        code = ExitCode.NOTHING_SELECTED
    elif nothing:
        code = ExitCode.INFRASTRUCTURE
    elif incomplete:
        code = ExitCode.INCOMPLETE
    elif problems:
        code = ExitCode.REGRESSION
    else:
        code = ExitCode.GREEN
    notes: tuple[str, ...] = (compared.note,) if compared is not None else ()
    if left := run.provenance.left_behind:
        notes += (
            f"importing the device's module {left}. The suite undoes these side effects for samples, references and checks.",
        )
    notes += tuple(_quarantine([run.results[cell] for cell in cells if cell in run.results]))
    return GateResult(
        run,
        code,
        problems=tuple(problems),
        tallies=tallies,
        counts=counts,
        new=tuple(new),
        provisional=tuple(provisional),
        notes=notes,
        obstacles=tuple(obstacles),
        must_pass=must_pass,
    )


def _not_passing(run: Run, cells: Iterable[CellKey]) -> list[CellResult]:
    """Returns the results of the cells that did not pass, regressions first. Results that say nothing about the device
    are left out: flaky cells, cells whose references disagree, and cells without an outcome, which make the run
    incomplete."""
    found = [run.results[cell] for cell in cells if cell in run.results]
    found = [
        result
        for result in found
        if result.outcome not in (Outcome.PASS, Outcome.AMBIGUOUS, Outcome.NOT_RUN)
        and result.verdict not in (Verdict.FLAKY, Verdict.IMPROVEMENT)
        and problem_with(result) is None
    ]
    return sorted(found, key=lambda result: result.verdict is not Verdict.REGRESSION)


def _excused(run: Run, results: Sequence[CellResult]) -> str:
    """Returns a part of a sentence that says how many cells must pass, but are expected not to."""
    name, count = manifest_name(run) or "the manifest", len(results)
    declared = sum(map(by_declaration, results))
    parts = []
    if listed := count - declared:
        cells = number(listed, "cell that must pass is", "cells that must pass are")
        parts.append(f"{cells} listed in {name} as failing")
    if declared:
        cells = number(declared, "cell that must pass is", "cells that must pass are")
        parts.append(f"{cells} unsupported by declaration")
    return "; ".join(parts)


def _unexpected(run: Run, new: Sequence[CellResult], *, allow_improvements: bool) -> Iterable[str]:
    """Yields the text of one problem for all regressions and of one for all improvements in ``new``, which must have
    the regressions first."""
    regressions = sum(result.verdict is Verdict.REGRESSION for result in new)
    if regressions:
        name = manifest_name(run)
        count = number(regressions, "regression")
        yield (
            f"{count}: failures that {name} does not list"
            if name
            else f"{count}: failures (the run had no manifest)"
        )
    if (better := new[regressions:]) and not allow_improvements:
        yield (
            f"{_better(run, better)}: `conform manifest update {shlex.quote(str(run.folder))}` updates the "
            "list, `conform gate --allow-improvements` accepts the run as it is"
        )


def _quarantine(results: Iterable[CellResult]) -> Iterable[str]:
    """Yields remarks on the cells that a block of the manifest allows to be flaky, so that nobody forgets them."""
    flaky = [result for result in results if result.verdict is Verdict.FLAKY]
    for result in flaky[:_NAMED]:
        yield f"quarantine: {result.key}: {result.why}"
    if (more := len(flaky) - _NAMED) > 0:
        yield f"quarantine: {number(more, 'more flaky cell')}"


def _better(run: Run, results: Sequence[CellResult]) -> str:
    """Returns a part of a sentence that says how many of the ``results`` are better than the manifest expects."""
    name, count = manifest_name(run) or "the manifest", len(results)
    if all(result.outcome is Outcome.PASS for result in results):
        return f"{number(count, 'cell passes', 'cells pass')} that {name} lists as failing"
    return f"{number(count, 'cell does better', 'cells do better')} than {name} says"


def manifest_name(run: Run) -> str:
    """Returns the file name of the run's manifest, such as ``expected.toml``; an empty text if the run had no
    manifest."""
    path = run.provenance.expectations
    return "" if path in ("", "none") else PurePath(path).name


def tally(run: Run, cells: Iterable[CellKey]) -> dict[str, Tally]:
    """Returns the counts of the given cells by clause, in the order of the cells."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for cell in cells:
        tallies[cell.clause].add(run.results.get(cell))
    for clause, counts in tallies.items():
        if run.parsed.clauses[clause].provisional:
            counts.set_aside()
    return dict(tallies)


def number(count: int, noun: str, nouns: str = "") -> str:
    """Returns a count with its noun, such as ``1 cell`` or ``1,234 cells``. ``nouns`` is the plural, if adding an s is
    not enough."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def _new(run: Run, cells: Iterable[CellKey], but: frozenset[CellKey]) -> list[CellResult]:
    """Returns the regressions and then the improvements among the given cells, leaving out the cells in ``but``."""
    found: dict[Verdict, list[CellResult]] = {Verdict.REGRESSION: [], Verdict.IMPROVEMENT: []}
    for cell in cells:
        result = run.results.get(cell)
        if result is None or result.verdict not in found or cell in but:
            continue
        if problem_with(result) is None:
            found[result.verdict].append(result)
    return [*found[Verdict.REGRESSION], *found[Verdict.IMPROVEMENT]]


def not_whole(run: Run) -> list[str]:
    """Returns the reasons why a run does not show the result of a whole plan: the run is empty, partial, or one shard
    of several."""
    plan, origin, problems = run.parsed, run.provenance, []
    if not plan.cells:
        problems.append("the plan has no cells, so nothing was checked")
    if origin.partial:
        problems.append(
            f"{partial_run(run)}; only a run of all cells (without --ops, --dtypes, --clauses, --max-time, -k, --lf, "
            "-x or paths) can pass the gate or be published"
        )
    if origin.is_shard:
        problems.append(f"only shard {origin.shard}: join all shards with `conform merge` first")
    return problems


def partial_run(run: Run) -> str:
    """Returns a text that says how many cells a partial run had selected, and by which options."""
    plan = run.parsed
    chosen = f" ({', '.join(run.plan.selection)})" if run.plan.selection else ""
    count = number(len(plan.cells), "planned cell")
    return f"a partial run{chosen}: {len(plan.selected):,} of {count} were selected"


def without_outcome(missing: Sequence[CellKey], planned: int) -> str:
    """Returns a text with the number of planned cells without an outcome, and the first of these cells."""
    has = "has" if len(missing) == 1 else "have"
    return (
        f"{len(missing):,} of {number(planned, 'planned cell')} {has} no outcome; "
        f"the first is {missing[0]}"
    )


def _incomplete(run: Run, cells: tuple[CellKey, ...], counts: Tally, *, partial: bool) -> list[str]:
    problems = [] if partial else not_whole(run)
    if partial and not cells:
        problems.append("no cell is selected, so nothing was checked")
    if counts.missing:
        absent = set(run.missing)
        missing = [cell for cell in cells if cell in absent]
        problems.append(without_outcome(missing, counts.planned))
    if counts.no_evidence:
        cell, why = next(
            (cell, why)
            for cell in cells
            if cell in run.results and (why := problem_with(run.results[cell])) is not None
        )
        contradictions = number(
            counts.no_evidence, "result contradicts itself", "results contradict themselves"
        )
        problems.append(f"{contradictions}; the first is the result of {cell}: {why}")
    return problems


def nothing_checked(results: Sequence[CellResult]) -> str | None:
    """Returns a text that says why no cell was checked; None if at least one cell was checked or if there are no
    results. If not all cells are unsupported by declaration, the text says that the machine or the installation is at
    fault."""
    unchecked = (Outcome.ERROR, Outcome.NOT_RUN)
    if not results or any(r.outcome not in unchecked and not by_declaration(r) for r in results):
        return None
    cells = number(len(results), "cell")
    if all(map(by_declaration, results)):
        return (
            f"none of {cells} was checked: all are unsupported by declaration. Select a clause whose capabilities the "
            "descriptor declares, or declare them"
        )
    said = next((result.message for result in results if result.message), "no message")
    return (
        f"none of {cells} could be checked, so the machine or the installation is at fault, not the device's "
        f"operators; the first message is: {said}"
    )


# -- against a baseline: a cell that failed in the baseline in the same way does not fail the gate


class NoBaseline(RunError):
    """The error for a run that cannot be the baseline of another run. The text of the error says why."""


@dataclass(frozen=True, slots=True)
class Against:
    """A comparison of a run with an earlier run, its baseline. The comparison shows whether a change makes anything
    worse, for a device whose manifest does not list all failures yet.

    ``inherited`` are the cells that failed in the baseline in the same way. ``gone`` are the cells of the baseline that
    are no longer planned, although torch and the suite are the same.
    """

    baseline: Run
    inherited: frozenset[CellKey]
    gone: tuple[CellKey, ...]

    @property
    def note(self) -> str:
        """The remark about the comparison with the baseline that reports show."""
        origin, count = self.baseline.provenance, len(self.inherited)
        return (
            f"compared with the run of {origin.start} (torch {origin.torch}): {number(count, 'cell')} failed in "
            f"that run in the same way and {'is' if count == 1 else 'are'} not counted as new"
        )

    @classmethod
    def of(cls, run: Run, baseline: Run) -> Against:
        """Compares two runs cell by cell. Raises NoBaseline if the baseline has a different device or plan, or is
        not a complete run."""
        mine, its = run.provenance, baseline.provenance
        refused = f"--against {baseline.folder}: "
        for name in ("device", "plan"):
            here, there = getattr(mine, name), getattr(its, name)
            if here != there:
                raise NoBaseline(
                    f"{refused}the {name} of the baseline is {there!r}, and that of RUN is {here!r}"
                )
        if its.partial or its.is_shard:
            raise NoBaseline(
                f"{refused}the baseline is a partial run or a shard; expected a whole run"
            )
        if missing := len(baseline.missing):
            few = number(
                missing,
                "cell of the baseline has no outcome",
                "cells of the baseline have no outcome",
            )
            raise NoBaseline(f"{refused}{few}; expected a complete run")
        inherited = frozenset(
            cell
            for cell, result in run.results.items()
            if result.verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
            and _as_bad(result, baseline.results.get(cell))
        )
        gone: tuple[CellKey, ...] = ()
        if (mine.torch, mine.suite_version) == (its.torch, its.suite_version):
            gone = tuple(cell for cell in baseline.parsed.cells if cell not in run.parsed.known)
        return cls(baseline, inherited, gone)


def _as_bad(now: CellResult, before: CellResult | None) -> bool:
    """Returns True if a cell had the same verdict, outcome and exception in the baseline, and all its failing layouts
    failed there too. The same must be true of the other checks of a cell that ended its process, if they do not pass."""
    if before is None:
        return False
    told = [(now.verdict, *_as_failed(now)), (before.verdict, *_as_failed(before))]
    return told[0] == told[1] and set(now.failing_layouts) <= set(before.failing_layouts)


def _as_failed(result: CellResult) -> tuple[object, ...]:
    rest = result.rest
    if rest is None or rest.outcome is Outcome.PASS:
        return result.outcome, result.raises
    return result.outcome, result.raises, rest.outcome, rest.raises


# -- levels of conformance: how many cells of each level's frozen list pass


class Level(msgspec.Struct, frozen=True):
    """The result of a run for a level of conformance: how many of the level's ``listed`` cells passed. ``version`` is
    the version of the frozen list of cells.

    ``unplanned`` is the number of listed cells that are not in the run's plan; they count against the device. ``open``
    is the number of the level's ``clauses`` that the suite does not check yet. ``reached`` is True if ``open`` is 0 and
    every listed cell passed.
    """

    level: int
    title: str
    version: str
    passed: int
    listed: int
    unplanned: int
    clauses: int
    open: int
    reached: bool

    def __str__(self) -> str:
        passed = f"{self.passed:,} of {self.listed:,} cells pass"
        text = f"level {self.level} {self.title} ({self.version}): {passed}"
        if self.unplanned:
            text += f"; {number(self.unplanned, 'cell is not in this plan', 'cells are not in this plan')}"
        if self.open:
            are = "is" if self.open == 1 else "are"
            text = f"{text}; {self.open} of its {self.clauses} clauses {are} not checked yet"
        return text


def levels_of(run: Run) -> list[Level]:
    """Returns the result of a run for each level of conformance that the run's plan states."""
    if not run.plan.levels:
        return []
    passed = [
        result is not None and result.outcome is Outcome.PASS and problem_with(result) is None
        for result in map(run.results.get, run.parsed.cells)
    ]
    return [_level(stated, run.plan.clauses, passed) for stated in run.plan.levels]


def _level(stated: StatedLevel, clauses: Iterable[Clause], passed: Sequence[bool]) -> Level:
    within = [clause for clause in clauses if clause.level <= stated.level]
    still = sum(clause.status == PLANNED for clause in within)
    listed = stated.listed
    passes = sum(sum(passed[first : first + length]) for first, length in stated.planned)
    return Level(
        stated.level, stated.title, stated.version, passes, listed,
        listed - sum(length for _, length in stated.planned), len(within), still,
        reached=not still and 0 < listed == passes,
    )  # fmt: skip
