"""The gate: judges a run. Counts by clause, problems, and the exit code. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum

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
    """What a run or the gate exits with; in line with pytest's own."""

    GREEN = 0
    REGRESSION = 1  # regressions, or improvements that the manifest does not record
    INCOMPLETE = 2  # planned cells without an outcome; partial or empty runs
    INFRASTRUCTURE = 3  # not a single cell could be checked: the machine, not the device's ops
    USAGE = 4  # bad arguments or unreadable files
    NOTHING_SELECTED = 5

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(slots=True)
class Tally:
    """Counts of cells. Always ``passed`` of ``judged``: never only a percentage.

    ``unsupported``, ``blocked``, ``crashes``, ``hangs`` and ``errors`` count outcomes, less the cells that are
    unsupported by declaration: those are ``declared``, passed over and not judged; ``expected``,
    ``regressions``, ``improvements`` and ``flaky`` count verdicts, so a cell may be in one of each.
    ``no_evidence`` are results that contradict themselves, counted nowhere else.
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

    @property
    def judged(self) -> int:
        """The denominator: planned cells less those whose references disagree, and those that the
        device does not support by declaration."""
        return self.planned - self.ambiguous - self.declared

    def add(self, result: CellResult | None) -> None:
        """Count a planned cell."""
        if result is None:
            self.count(Outcome.NOT_RUN, Verdict.MISSING)
        elif problem_with(result) is not None:
            self.planned += 1
            self.no_evidence += 1
        elif result.outcome is Outcome.PASS and result.verdict is Verdict.OK:
            self.planned += 1  # as most are: this saves looking them up
            self.passed += 1
        else:
            self.count(result.outcome, result.verdict)

    def count(self, outcome: Outcome, verdict: Verdict, cells: int = 1) -> None:
        """Count planned cells of this outcome and verdict."""
        self.planned += cells
        names = [_COUNTED.get(outcome), _COUNTED.get(verdict)]
        if outcome is Outcome.UNSUPPORTED and verdict is Verdict.OK:
            names = ["declared"]
        for name in filter(None, names):
            setattr(self, name, getattr(self, name) + cells)

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
    """The gate's answer. ``tallies`` is by clause, in plan order; ``counts`` their sum.

    ``new`` are the results that the gate stops at or reports, regressions before improvements;
    those of provisional clauses are among ``provisional`` instead, and gate nothing. ``notes`` is what else
    is reported.
    """

    run: Run
    exit_code: ExitCode
    problems: tuple[str, ...]
    tallies: dict[str, Tally]
    counts: Tally
    new: tuple[CellResult, ...]
    provisional: tuple[CellResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def green(self) -> bool:
        return self.exit_code is ExitCode.GREEN


def gate(
    run: Run, *, allow_improvements: bool = False, partial: bool = False, against: Run | None = None
) -> GateResult:
    """Judge every planned cell of a run.

    Green only if each cell has an outcome that its verdict can follow from, a pass at least one
    executed check, and no cell is a regression (or an improvement, unless ``allow_improvements``); provisional
    clauses never gate. A partial run, a lone shard and an empty run are incomplete. ``partial`` judges the
    selected cells alone: that is what pytest exits by, and never what `conform gate` does. With a baseline to
    compare it ``against``, only what is new counts; raises NoBaseline where that run cannot be one.
    """
    compared = Against.of(run, against) if against is not None else None
    cells = run.parsed.selected if partial else run.parsed.cells
    tallies = tally(run, cells)
    counts = Tally.sum(tallies.values())
    new: list[CellResult] = []
    provisional: list[CellResult] = []
    if counts.regressions or counts.improvements:
        for result in _new(run, cells, compared.inherited if compared else frozenset()):
            clause = run.parsed.clauses[result.key.clause]
            (provisional if clause.provisional else new).append(result)
    incomplete = _incomplete(run, cells, counts, partial=partial)
    if compared is not None and (gone := compared.gone):
        incomplete.append(
            f"{number(len(gone), 'cell of the baseline is', 'cells of the baseline are')} no longer "
            f"planned, although torch and the suite are the same; the first is {gone[0]}"
        )
    nothing = nothing_checked([run.results[cell] for cell in cells if cell in run.results])
    problems = [*filter(None, [nothing]), *incomplete]
    regressions = sum(result.verdict is Verdict.REGRESSION for result in new)
    improvements = len(new) - regressions
    if regressions:
        problems.append(f"{number(regressions, 'regression')}: not expected by the manifest")
    if improvements and not allow_improvements:
        problems.append(
            f"{number(improvements, 'improvement')} that the manifest does not record: "
            f"`conform manifest update {run.folder}` narrows or removes the blocks, or allow them "
            "with --allow-improvements"
        )
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
        notes += (f"the device's module {left}. Samples, references and judges run without that.",)
    return GateResult(
        run, code, tuple(problems), tallies, counts, tuple(new), tuple(provisional), notes
    )


def tally(run: Run, cells: Iterable[CellKey]) -> dict[str, Tally]:
    """Counts by clause, in the order of the cells."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for cell in cells:
        tallies[cell.clause].add(run.results.get(cell))
    return dict(tallies)


def number(count: int, noun: str, nouns: str = "") -> str:
    """``1 cell``, ``1,234 cells``; ``nouns`` is the plural where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def _new(run: Run, cells: Iterable[CellKey], but: frozenset[CellKey]) -> list[CellResult]:
    """The regressions, then the improvements, of the cells that are not among ``but``."""
    found: dict[Verdict, list[CellResult]] = {Verdict.REGRESSION: [], Verdict.IMPROVEMENT: []}
    for cell in cells:
        result = run.results.get(cell)
        if result is None or result.verdict not in found or cell in but:
            continue
        if problem_with(result) is None:
            found[result.verdict].append(result)
    return [*found[Verdict.REGRESSION], *found[Verdict.IMPROVEMENT]]


def not_whole(run: Run) -> list[str]:
    """Why a run is no evidence for a whole plan: it is empty, partial, or one shard of several."""
    plan, origin, problems = run.parsed, run.provenance, []
    if not plan.cells:
        problems.append("no cells are planned: no evidence")
    if origin.partial:
        chosen = f" ({', '.join(run.plan.selection)})" if run.plan.selection else ""
        problems.append(
            f"a partial run{chosen}: {len(plan.selected):,} of "
            f"{number(len(plan.cells), 'planned cell')} were selected; only a run of all of them, "
            "without --ops, --dtypes, --clauses, --max-time, -k, --lf, -x or paths, can pass the gate or be published"
        )
    if origin.is_shard:
        problems.append(f"only shard {origin.shard}: join all shards with `conform merge` first")
    return problems


def without_outcome(missing: Sequence[CellKey], planned: int) -> str:
    """How many planned cells have no outcome, and the first of them."""
    has = "has" if len(missing) == 1 else "have"
    return (
        f"{len(missing):,} of {number(planned, 'planned cell')} {has} no outcome; "
        f"the first is {missing[0]}"
    )


def _incomplete(run: Run, cells: tuple[CellKey, ...], counts: Tally, *, partial: bool) -> list[str]:
    problems = [] if partial else not_whole(run)
    if partial and not cells:
        problems.append("no cells are selected: no evidence")
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
        problems.append(f"{number(counts.no_evidence, 'result')} without evidence: {cell} {why}")
    return problems


def nothing_checked(results: Sequence[CellResult]) -> str | None:
    """Why the machine is to blame, where something was tried and nothing could be checked."""
    unchecked = (Outcome.ERROR, Outcome.NOT_RUN)
    if not results or any(r.outcome not in unchecked and not by_declaration(r) for r in results):
        return None
    cells = number(len(results), "cell")
    if all(map(by_declaration, results)):
        return (
            f"not one of {cells} was checked: all are unsupported by declaration; "
            "expected a device that declares what at least one selected clause requires"
        )
    said = next((result.message for result in results if result.message), "no message")
    return (
        f"not one of {cells} could be checked: the problem is the machine, not the device's operators; "
        f"expected a working device and harness; the first says: {said}"
    )


# -- against a baseline: a cell that failed there in the same way does not fail the gate


class NoBaseline(RunError):
    """This run cannot be compared with that one. The text says why."""


@dataclass(frozen=True, slots=True)
class Against:
    """A run compared with an earlier one, for a device whose manifest lags its failures: the gate then asks
    whether a change makes anything worse.

    ``inherited`` are the cells that stand as badly in the baseline; ``gone`` those that it has an outcome for, but
    that are not planned any more though torch and suite are the same.
    """

    baseline: Run
    inherited: frozenset[CellKey]
    gone: tuple[CellKey, ...]

    @property
    def note(self) -> str:
        """What is reported of the baseline."""
        origin, count = self.baseline.provenance, len(self.inherited)
        return (
            f"against the run of {origin.start} (torch {origin.torch}): {number(count, 'cell')} failed "
            f"there in the same way and {'is' if count == 1 else 'are'} not counted as new"
        )

    @classmethod
    def of(cls, run: Run, baseline: Run) -> Against:
        """Compare cell by cell. Raises NoBaseline if the baseline is of another device or plan, or not
        whole."""
        mine, its = run.provenance, baseline.provenance
        refused = f"--against {baseline.folder}: "
        for name in ("device", "plan"):
            here, there = getattr(mine, name), getattr(its, name)
            if here != there:
                raise NoBaseline(f"{refused}its {name} is {there!r}, not {here!r}")
        if its.partial or its.is_shard:
            raise NoBaseline(f"{refused}is a partial run or a shard; expected a whole run")
        if missing := len(baseline.missing):
            few = number(missing, "cell of that run has", "cells of that run have")
            raise NoBaseline(f"{refused}{few} no outcome; expected a complete run")
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
    """Whether the baseline has the same verdict for the same reason: the outcome, what was raised, and no
    layout that fails now and did not."""
    return (
        before is not None
        and (before.verdict, before.outcome, before.raises)
        == (now.verdict, now.outcome, now.raises)
        and set(now.layouts) <= set(before.layouts)
    )


# -- levels of conformance: what the cells come to against each level's frozen list


class Level(msgspec.Struct, frozen=True):
    """A level of conformance: how many cells that its frozen list, in that version, has passed.

    ``unplanned`` cells of the list are not in the run's plan, and count against the device. ``open``
    are clauses, of the level's ``clauses``, that the suite does not check yet. ``reached`` is true only
    if there are none of these and every listed cell passes.
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
            text += f"; {self.unplanned:,} are not in this plan"
        if self.open:
            are = "is" if self.open == 1 else "are"
            text += f"; {self.open} of its {self.clauses} clauses {are} not checked yet"
        return text


def levels_of(run: Run) -> list[Level]:
    """Each level that the run's plan states."""
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
