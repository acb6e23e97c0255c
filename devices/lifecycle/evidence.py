"""Compares the cells of one or more runs with a manifest, and the runs with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.errors import ConformError
from devices.manifest import ExpectedOutcome, Manifest
from devices.verdicts import ENDS, Expectation, Judgement, Match, Matcher, judge_cell, judge_flaky


class EvidenceError(ConformError):
    """The error for runs that cannot be compared with each other or with the manifest."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The observation of a cell, and the layouts that were run (an empty set if the clause has no layouts)."""

    observed: Observed
    ran: frozenset[str] = frozenset()

    def agrees(self, other: Seen) -> bool:
        """Returns True if this observation and ``other`` have the same outcome, failing layouts and exception type,
        and so do their other checks if the cell ended its process."""

        def facts(observed: Observed) -> tuple[object, ...]:
            rest = facts(observed.rest) if observed.rest is not None else None
            return observed.outcome, observed.layouts, observed.raises, rest

        return facts(self.observed) == facts(other.observed)

    @property
    def parts(self) -> tuple[Seen, ...]:
        """The observations that are judged separately: for a cell that ended its process, that of the end and that
        of the other checks; for any other cell, this observation alone."""
        if self.observed.rest is None:
            return (self,)
        return (Seen(replace(self.observed, rest=None)), Seen(self.observed.rest, self.ran))

    def facing(self, expected: ExpectedOutcome) -> Seen:
        """Returns the part of the observation that a block with this outcome is about: the end of the process for
        ``crash`` and ``hang``, the other checks for all other outcomes."""
        return self.parts[0 if expected in ENDS else -1]

    @property
    def passed(self) -> frozenset[str]:
        """The layouts in which a failing cell passed: those that ran and did not fail. Empty for a cell whose outcome
        is not ``fail``, because the observation does not say which layouts failed."""
        if self.observed.outcome is not Outcome.FAIL:
            return frozenset()
        return self.ran - self.observed.layouts

    def __str__(self) -> str:
        text = str(self.observed.outcome)
        if self.observed.raises:
            text += f" with {self.observed.raises}"
        if self.observed.layouts:
            text += f" in {', '.join(sorted(self.observed.layouts))}"
        if self.observed.rest is not None and self.observed.rest.outcome is not Outcome.PASS:
            text += f", other checks: {self.parts[-1]}"
        return text


@dataclass(frozen=True, slots=True)
class Evidence:
    """A run as evidence for a manifest: the origin of the run, its planned cells, and the observations of the cells
    that ran."""

    name: str  # the folder, as the user gave it
    device: str
    plan: str
    plan_hash: str
    torch: str
    driver: str
    start: str
    facts: Mapping[str, str]
    planned: Sequence[CellKey]
    cells: Mapping[CellKey, Seen]


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """A cell with the observation on which all runs agree, the blocks of the manifest that match the cell, and the
    verdict with its reason."""

    key: CellKey
    seen: Seen
    match: Match
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Left:
    """A cell that an update of the manifest does not change, and the reason."""

    key: CellKey
    why: str


@dataclass(slots=True)
class Findings:
    """The cells of one or more runs, grouped by the change that an update can make for them."""

    improved: list[JudgedCell] = field(default_factory=list)  # better than expected, in every run
    regressed: list[JudgedCell] = field(default_factory=list)  # unexpected, the same in every run
    disagreeing: list[Left] = field(default_factory=list)
    floors: list[Left] = field(default_factory=list)  # flaky cells below their pass rate
    as_expected: dict[CellKey, Seen] = field(default_factory=dict)  # cells that a block expects so
    matches: dict[CellKey, Match] = field(default_factory=dict)  # for every planned cell
    judged: int = 0


def comparable(manifest: Manifest, runs: Sequence[Evidence]) -> None:
    """Raises EvidenceError unless all runs have the same device, torch and driver, and the same values of the facts
    that conditions of the manifest use."""
    first = runs[0]
    used = sorted({condition.fact for block in manifest.blocks for condition in block.when})

    def where(run: Evidence) -> dict[str, str | None]:
        read = {
            f"the fact '{each}', which conditions of the manifest use": run.facts.get(each)
            for each in used
        }
        return {"device": run.device, "torch": run.torch, "driver": run.driver, **read}

    for other in runs[1:]:
        there = where(other)
        for what, one in where(first).items():
            if one != (two := there[what]):
                raise EvidenceError(
                    f"{first.name} and {other.name} differ in {what}: the values are {one!r} and {two!r}; give"
                    " runs of one machine, and update once for each machine"
                )
        if other.start == first.start and other.cells == first.cells and first.cells:
            raise EvidenceError(
                f"{first.name} and {other.name} are the same run: give two separate runs"
            )


def weigh(
    manifest: Manifest,
    runs: Sequence[Evidence],
    today: date,
    wanted: Callable[[CellKey], bool] = lambda key: True,
) -> Findings:
    """Compares those cells of the runs for which ``wanted`` returns True with the manifest. ``manifest`` must be the
    result of ``Manifest.active`` for the machine of the runs.

    Raises EvidenceError if no selected cell has an outcome, and ManifestConflict if blocks conflict.
    """
    matcher = Matcher(manifest)
    found = Findings()
    for key in dict.fromkeys(key for run in runs for key in run.planned):
        matcher.expect(key)  # raises ManifestConflict
        match = found.matches[key] = matcher.match(key)
        if not wanted(key):
            continue
        if not (seen := [run.cells[key] for run in runs if key in run.cells]):
            continue
        found.judged += 1
        if not match.blocks and all(each.observed.outcome is Outcome.PASS for each in seen):
            continue  # most cells
        _sort_in(found, key, [(run.name, run.cells.get(key)) for run in runs], match, today)
    if not found.judged:
        raise EvidenceError(
            "no selected cell has an outcome in these runs, so there is nothing to do"
        )
    return found


def _sort_in(
    found: Findings,
    key: CellKey,
    by_run: Sequence[tuple[str, Seen | None]],
    match: Match,
    today: date,
) -> None:
    seen = [each for _, each in by_run if each is not None]
    expectation = match.expectation
    if expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY:
        expired = expectation.is_expired(today)
        over_all = judge_flaky(expectation, [each.observed for each in seen], expired=expired)
        if over_all.verdict is Verdict.REGRESSION:
            found.floors.append(Left(key, over_all.why))
        return
    together = _together(seen)
    judgement = judge_observation(expectation, together, today)
    if not all(each.agrees(seen[0]) for each in seen):
        verdicts = {judge_observation(expectation, each, today).verdict for each in seen}
        if verdicts <= {Verdict.OK, Verdict.EXPECTED}:
            found.as_expected[key] = together
        else:
            found.disagreeing.append(_unchanged(key, by_run))
    elif judgement.verdict is Verdict.IMPROVEMENT:
        found.improved.append(JudgedCell(key, together, match, judgement))
    elif judgement.verdict is Verdict.REGRESSION and len(seen) == 1 < len(by_run):
        found.disagreeing.append(_unchanged(key, by_run))  # one run cannot agree with itself
    elif judgement.verdict is Verdict.REGRESSION:
        found.regressed.append(JudgedCell(key, together, match, judgement))
    else:
        found.as_expected[key] = together


def _unchanged(key: CellKey, by_run: Sequence[tuple[str, Seen | None]]) -> Left:
    """Returns a ``Left`` for a cell on which the runs disagree, or which only one of several runs ran. The reason lists
    the observation of the cell in each run, or says that a run has no outcome for the cell."""
    saw = (f"{name}: {each or 'no outcome'}" for name, each in by_run)
    return Left(key, "; ".join(saw))


def judge_observation(expectation: Expectation | None, seen: Seen, today: date) -> Judgement:
    """Returns the verdict on a cell's observation, with the reason."""
    expired = expectation is not None and expectation.is_expired(today)
    return judge_cell(expectation, seen.observed, ran=seen.ran, expired=expired)


def _together(seen: Sequence[Seen]) -> Seen:
    """Returns one observation for the observations of several runs that agree. If the runs ran different layouts, a
    layout counts as passed if it ran in at least one run and failed in no run."""
    if all(each.ran == seen[0].ran for each in seen):
        return seen[0]
    failed = frozenset().union(*(each.parts[-1].observed.layouts for each in seen))
    ran = frozenset().union(*(each.ran for each in seen))
    first = seen[0].observed
    if first.rest is not None:
        return Seen(replace(first, rest=replace(first.rest, layouts=failed)), ran)
    return Seen(replace(first, layouts=failed), ran)
