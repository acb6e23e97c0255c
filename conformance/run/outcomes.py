"""The outcomes of cells in a run: a worker's report of an item, cells that ended a process, flaky cells, and the verdict on
each cell by the manifest. Pure functions, used by the controller and by workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from conformance.contract import Clause
from devices.cell import CallKey, CellKey, CellOutcome, Outcome, Verdict
from devices.failure import Failure, Kind
from devices.manifest import ExpectedOutcome
from devices.verdicts import Matcher, judge, judge_flaky
from reports.model import CellResult

#: Verdicts that make an item fail in pytest's eyes.
BAD: Final = frozenset({Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.MISSING})

# A flaky cell runs only a few more times: its pass rate is a lower bound, and no statistic is made of it.
_FEWEST_RUNS: Final = 5
_MOST_RUNS: Final = 20


class ItemReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process that ran an item reports to the controller."""

    cells: tuple[CellOutcome, ...] = ()
    asked: int = 0  # answers of the stride reference
    missed: int = 0  # … that were computed
    shipped: int = 0  # … that came with this package


_encode: Final = msgspec.json.Encoder().encode
read_report: Final = msgspec.json.Decoder(ItemReport).decode


def write_report(report: ItemReport) -> str:
    """As text: other plugins may read the properties of pytest's reports, too."""
    return _encode(report).decode()


class GroupCall(msgspec.Struct, frozen=True):
    """A call, and the first clause of the group of clauses that share it."""

    group: str
    call: CallKey


class Lost(msgspec.Struct, frozen=True, omit_defaults=True, tag="lost"):
    """A cell that ended the process that ran it.

    ``outcome`` is ``crash`` or ``hang``; a device that was left unusable is a crash. ``message`` says how it ended: cells
    that ended alike say the same. ``more`` is its own: the stack, or what failed first. ``call`` names the call of the
    cell's group that did it, if that is known; ``judged`` says that it had returned, and that the cell's clause was
    being judged.
    """

    cell: CellKey
    outcome: Outcome
    message: str
    call: GroupCall | None = None
    more: str = ""
    judged: bool = False

    @property
    def text(self) -> str:
        return "; ".join(filter(None, (self.message, self.more)))

    @property
    def as_outcome(self) -> CellOutcome:
        call = self.call.call if self.call is not None else None
        failure = Failure(
            kind=Kind.ENDED,
            detail=self.message,
            said=self.text,
            layout=call.layout if call is not None else "",
            sample=call.sample if call is not None else None,
        )
        return CellOutcome(
            cell=self.cell,
            outcome=self.outcome,
            failure=failure,
            note=self.more,
            call=call,
            judged=self.judged,
        )


class Guilty(msgspec.Struct):
    """What an item must leave out: clauses whose cells ended a process, and the calls that did it."""

    clauses: set[str] = set()
    calls: dict[GroupCall, CellKey] = {}  # with the cell that is charged


class LostCells:
    """All cells of a run that ended a process, by item."""

    def __init__(self, known: Iterable[Lost] = ()) -> None:
        self._items: dict[tuple[str, str], Guilty] = {}
        self.all: list[Lost] = []
        for lost in known:
            self.add(lost)

    def add(self, lost: Lost) -> None:
        self.all.append(lost)
        guilty = self._items.setdefault((lost.cell.op, lost.cell.dtype), Guilty())
        guilty.clauses.add(lost.cell.clause)
        if lost.call is not None and not lost.judged:
            guilty.calls.setdefault(lost.call, lost.cell)

    def of(self, op: str, dtype: str) -> Guilty:
        """What the item of this op (or case) and dtype must leave out."""
        return self._items.get((op, dtype)) or Guilty()


def share_out(cells: Sequence[CellOutcome], seconds: float) -> tuple[CellOutcome, ...]:
    """The cells of an item with its ``seconds`` divided among them: what prepares them, such as sampling, counts too."""
    rest = max(seconds - sum(cell.seconds for cell in cells), 0.0)
    return tuple(
        msgspec.structs.replace(cell, seconds=round(cell.seconds + rest / len(cells), 6))
        for cell in cells
    )


# -- verdicts


def verdict_of(matcher: Matcher, found: CellOutcome) -> tuple[Verdict, str]:
    """The verdict on a cell's outcome, and the reason. The other runs of a flaky cell count too."""
    expectation = matcher.expect(found.cell)
    expired = expectation is not None and expectation.is_expired(date.today())
    if found.others and expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY:
        judgement = judge_flaky(expectation, [found.observed, *found.others], expired=expired)
    else:
        ran = frozenset(found.ran_layouts)
        judgement = judge(expectation, found.observed, ran=ran, expired=expired)
    if judgement.verdict is Verdict.EXPECTED and judgement.blocks:
        # The reader of a report wants the reason, and the file that says so.
        reasons = {f"{b.reason} ({Path(b.where).name})" for b in judgement.blocks}
        return judgement.verdict, "; ".join(sorted(reasons))
    return judgement.verdict, judgement.why


def fails_its_item(matcher: Matcher, found: CellOutcome, clause: Clause) -> bool:
    """Whether a cell makes its item fail. Provisional clauses gate nothing: the run's summary reports them."""
    return verdict_of(matcher, found)[0] in BAD and not clause.provisional


def result_of(matcher: Matcher, found: CellOutcome) -> CellResult:
    """A cell's outcome, judged, as the results folder holds it."""
    verdict, why = verdict_of(matcher, found)
    return CellResult(found.cell, found.outcome, verdict, why, **found.facts())


# -- flaky cells: run again, and held to their pass rate


def runs_for(rate: float | None) -> int:
    """The number of runs that allows for one failure: 10 for a rate of 0.9; from 5 to 20."""
    if rate is None or rate >= 1:
        return _FEWEST_RUNS
    return min(_MOST_RUNS, max(_FEWEST_RUNS, math.ceil(round(1 / (1 - rate), 6))))


def runs_of(matcher: Matcher, cells: Iterable[CellKey]) -> Mapping[str, int]:
    """The clauses of these cells that are flaky, with the number of runs of each."""
    expected = {cell.clause: matcher.expect(cell) for cell in cells}
    return {
        clause: runs_for(expectation.min_pass_rate)
        for clause, expectation in expected.items()
        if expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY
    }


def together(runs: Sequence[CellOutcome], bad: Sequence[bool]) -> CellOutcome:
    """One outcome for several runs of a cell: the first run that is ``bad`` by itself, else the first one that does
    not pass, so that a report never shows a pass where the rate was missed. The other runs are in ``others``."""
    failing = (index for index, run in enumerate(runs) if run.outcome is not Outcome.PASS)
    first = next((index for index, wrong in enumerate(bad) if wrong), next(failing, 0))
    others = tuple(run.observed for index, run in enumerate(runs) if index != first)
    return msgspec.structs.replace(runs[first], others=others)
