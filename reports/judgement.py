"""A run judged: counts by clause, what stands against it, and the exit code. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult, Run, by_declaration, problem_with


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
    """Counts of cells. Always ``passed`` of ``judged``: never a percentage alone.

    ``unsupported``, ``crashes``, ``hangs`` and ``errors`` count outcomes, less the cells that are
    unsupported by declaration: those are ``declared``, passed over and not judged; ``expected``,
    ``regressions``, ``improvements`` and ``flaky`` count verdicts, so a cell may be in one of each.
    ``no_evidence`` are results that contradict themselves, counted nowhere else.
    """

    planned: int = 0
    passed: int = 0
    ambiguous: int = 0
    unsupported: int = 0
    declared: int = 0
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
        self.planned += 1
        if result is None:
            self.missing += 1
        elif problem_with(result) is not None:
            self.no_evidence += 1
        elif result.outcome is Outcome.PASS and result.verdict is Verdict.OK:
            self.passed += 1
        elif by_declaration(result):
            self.declared += 1
        else:
            for table in (_OUTCOMES, _VERDICTS):
                name = table.get(result.outcome if table is _OUTCOMES else result.verdict)
                if name is not None:
                    setattr(self, name, getattr(self, name) + 1)

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        total = cls()
        for tally in tallies:
            for field in fields(cls):
                setattr(total, field.name, getattr(total, field.name) + getattr(tally, field.name))
        return total


_OUTCOMES: Mapping[Outcome | Verdict, str] = {
    Outcome.PASS: "passed",
    Outcome.AMBIGUOUS: "ambiguous",
    Outcome.UNSUPPORTED: "unsupported",
    Outcome.CRASH: "crashes",
    Outcome.HANG: "hangs",
    Outcome.ERROR: "errors",
    Outcome.NOT_RUN: "missing",
}
_VERDICTS: Mapping[Outcome | Verdict, str] = {
    Verdict.EXPECTED: "expected",
    Verdict.REGRESSION: "regressions",
    Verdict.IMPROVEMENT: "improvements",
    Verdict.FLAKY: "flaky",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run comes to. ``tallies`` is by clause, in plan order; ``counts`` their sum.

    ``new`` are the results that the gate stops at or reports, regressions before improvements;
    those of provisional clauses are among ``provisional`` instead, and gate nothing.
    """

    exit_code: ExitCode
    problems: tuple[str, ...]
    tallies: dict[str, Tally]
    counts: Tally
    new: tuple[CellResult, ...]
    provisional: tuple[CellResult, ...]
    notes: tuple[str, ...] = ()  # what else is to be told

    @property
    def green(self) -> bool:
        return self.exit_code is ExitCode.GREEN


def judge(
    run: Run,
    *,
    allow_improvements: bool = False,
    partial: bool = False,
    inherited: Collection[CellKey] = (),
    gone: Sequence[CellKey] = (),
) -> Judgement:
    """Judge every planned cell; with ``partial``, the selected ones alone. Cells that are ``inherited`` from a
    baseline are not new; those that are ``gone`` since are missing (see ``reports.against``).

    Green only if each cell has an outcome that its verdict can follow from, a pass at least one
    executed check, and no cell is a regression (or an improvement, unless allowed).
    """
    cells = run.parsed.selected if partial else run.parsed.cells
    tallies = tally(run, cells)
    counts = Tally.sum(tallies.values())
    new, provisional = (
        _new(run, [cell for cell in cells if cell not in inherited])
        if counts.regressions or counts.improvements
        else ((), ())
    )
    incomplete = _incomplete(run, cells, counts, partial=partial)
    if gone:
        incomplete.append(
            f"{number(len(gone), 'cell')} of the baseline {'is' if len(gone) == 1 else 'are'} not "
            f"planned any more, {gone[0]} first, though torch and suite are the same"
        )
    problems = list(incomplete)
    if nothing := _nothing_checked(run, cells):
        problems.insert(0, nothing)
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
    return Judgement(code, tuple(problems), tallies, counts, new, provisional)


def tally(run: Run, cells: Iterable[CellKey]) -> dict[str, Tally]:
    """Counts by clause, in the order of the cells."""
    tallies: dict[str, Tally] = {}
    for cell in cells:
        counts = tallies.get(cell.clause)
        if counts is None:
            counts = tallies[cell.clause] = Tally()
        counts.add(run.results.get(cell))
    return tallies


def number(count: int, noun: str) -> str:
    """``1 cell``, ``1,234 cells``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _new(
    run: Run, cells: Iterable[CellKey]
) -> tuple[tuple[CellResult, ...], tuple[CellResult, ...]]:
    found: dict[Verdict, list[CellResult]] = {Verdict.REGRESSION: [], Verdict.IMPROVEMENT: []}
    for cell in cells:
        result = run.results.get(cell)
        if result is None or result.verdict not in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
            continue
        if problem_with(result) is None:
            found[result.verdict].append(result)
    both = [*found[Verdict.REGRESSION], *found[Verdict.IMPROVEMENT]]
    clauses = run.parsed.clauses
    return (
        tuple(result for result in both if not clauses[result.key.clause].provisional),
        tuple(result for result in both if clauses[result.key.clause].provisional),
    )


def _incomplete(run: Run, cells: tuple[CellKey, ...], counts: Tally, *, partial: bool) -> list[str]:
    problems: list[str] = []
    if not cells:
        problems.append("no cells are " + ("selected" if partial else "planned") + ": no evidence")
    if run.provenance.partial and not partial:
        problems.append(
            f"a partial run: {len(run.parsed.selected):,} of "
            f"{number(len(run.parsed.cells), 'planned cell')} were selected; only a run of all of "
            "them, without --ops, --dtypes, --clauses, -k, --lf, -x or paths, can pass the gate"
        )
    if run.provenance.shard not in ("", "1/1") and not partial:
        problems.append(
            f"shard {run.provenance.shard} alone: join all shards with `conform merge` first"
        )
    if counts.missing:
        missing = set(run.missing)
        first = next(cell for cell in cells if cell in missing)
        problems.append(
            f"{number(counts.missing, 'cell')} of {counts.planned:,} "
            f"{'has' if counts.missing == 1 else 'have'} no outcome, {first} first"
        )
    if counts.no_evidence:
        cell, why = next(
            (cell, why)
            for cell in cells
            if cell in run.results and (why := problem_with(run.results[cell])) is not None
        )
        problems.append(f"{number(counts.no_evidence, 'result')} without evidence: {cell} {why}")
    return problems


def _nothing_checked(run: Run, cells: Iterable[CellKey]) -> str | None:
    """Why the machine is to blame, where something was tried and nothing could be checked."""
    results = [run.results[cell] for cell in cells if cell in run.results]
    unchecked = (Outcome.ERROR, Outcome.NOT_RUN)
    checked = (r for r in results if r.outcome not in unchecked and not by_declaration(r))
    if not results or any(checked):
        return None
    if all(map(by_declaration, results)):
        return (
            f"not one of {number(len(results), 'cell')} was checked: all are unsupported by "
            "declaration; expected a device that declares what some selected clause requires"
        )
    said = next((result.message for result in results if result.message), "no message")
    return (
        f"not one of {number(len(results), 'cell')} could be checked: expected a working device "
        f"and harness; the first says: {said}"
    )
