"""The outcomes of cells in a run: the report of a worker about an item, cells that ended a process, repeated runs of
flaky cells, and the verdict on each cell according to the manifest. The functions have no side effects. The controller
and the workers use the module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from conformance.checks.call_hooks import is_on_cpu
from conformance.contract import Clause
from conformance.plan.selection import Item
from devices.cell import CallKey, CellKey, CellOutcome, Outcome, Verdict
from devices.failure import Failure, Kind
from devices.manifest import ExpectedOutcome
from devices.verdicts import Matcher, judge_cell, judge_flaky, judge_parts
from reports.model import CellResult

#: Verdicts that make an item fail in pytest's eyes.
BAD: Final = frozenset({Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.MISSING})

# A flaky cell runs only a few more times: its pass rate is a lower bound, and no statistic is made of it.
_FEWEST_RUNS: Final = 5
_MOST_RUNS: Final = 20


class ItemReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The report about an item, which the process that ran the item sends to the controller."""

    cells: tuple[CellOutcome, ...] = ()
    asked: int = 0  # answers of the stride reference
    missed: int = 0  # … that were computed
    shipped: int = 0  # … that came with this package


_encode: Final = msgspec.json.Encoder().encode
read_report: Final = msgspec.json.Decoder(ItemReport).decode


def write_report(report: ItemReport) -> str:
    """Returns a report as JSON text. The report is not sent in binary form, because other pytest plugins may read the
    properties of pytest's reports, too."""
    return _encode(report).decode()


class GroupCall(msgspec.Struct, frozen=True):
    """A call that several clauses share, identified by the first of these clauses and the key of the call."""

    group: str
    call: CallKey


class Lost(msgspec.Struct, frozen=True, omit_defaults=True, tag="lost"):
    """A cell that ended the process in which the cell ran.

    ``outcome`` is ``crash`` or ``hang``; a cell that left the device unusable counts as a crash. ``message`` states how
    the process ended, in the same words for all cells that ended in the same way. ``more`` has details of this cell:
    the stack, or the first failure. ``call`` names the call that ended the process, if it is known. ``judged`` is True
    if the call had returned and its result was being checked. ``frame`` is the innermost frame of the stack in the
    device's own code, if there is one.
    """

    cell: CellKey
    outcome: Outcome
    message: str
    call: GroupCall | None = None
    more: str = ""
    judged: bool = False
    frame: str = ""

    @property
    def of_cpu(self) -> bool:
        """True if the call was made on the CPU, with the arguments of a call on the device. The device is not to blame
        for the end of the process then."""
        return self.call is not None and is_on_cpu(self.call.call)

    @property
    def text(self) -> str:
        """The message, followed by the details of this cell."""
        return "; ".join(filter(None, (self.message, self.more)))

    @property
    def as_outcome(self) -> CellOutcome:
        """The outcome of the cell."""
        call = self.call.call if self.call is not None else None
        failure = Failure(
            kind=Kind.ENDED,
            detail=self.message,
            said=self.text,
            frame=self.frame,
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


#: Hangs of one cell after which the cell does not run again.
_MOST_HANGS: Final = 2
#: Deaths of one cell after which the cell does not run again.
_MOST_DEATHS: Final = 12


class Guilty(msgspec.Struct):
    """The parts of an item that must be skipped: the clauses whose cells ended a process, and the calls that ended a
    process. The clauses run once more, without these calls."""

    clauses: set[str] = set()
    calls: dict[GroupCall, CellKey] = {}  # with the cell that is charged
    judged: dict[GroupCall, str] = {}  # calls that returned, with the clause whose judging ended


def may_run_again(deaths: Sequence[Lost]) -> bool:
    """Returns True if a cell may run again without the calls that ended its process in these ``deaths``, so that its
    other checks count. Each call must be known, and a cell does not run again after its second hang, because each hang
    costs the time limit of the cell."""
    calls = [each.call for each in deaths]
    hangs = sum(each.outcome is Outcome.HANG for each in deaths)
    known = bool(calls) and None not in calls and len(set(calls)) == len(calls)
    return known and hangs < _MOST_HANGS and len(deaths) < _MOST_DEATHS


def with_rest(ended: CellOutcome, again: CellOutcome) -> CellOutcome:
    """Returns the outcome of a cell that ended its process, with the result of its other checks. ``again`` is the
    outcome of the cell when it ran without the calls that end the process."""
    if again.rest is None:
        return ended
    facts = ("checks", "samples", "ran_layouts", "worst_error", "ulps", "ulps_at", "reached")
    return msgspec.structs.replace(
        ended,
        rest=again.rest,
        script=again.script,
        seconds=ended.seconds + again.seconds,
        **{name: getattr(again, name) for name in facts},
    )


def without_end(again: CellOutcome, calls: int) -> CellOutcome:
    """Returns the outcome of a cell in whose ``calls`` the CPU ends the process as well, so that they say nothing about
    the device. ``again`` is the outcome of the cell when it ran without these calls."""
    count = "a call was" if calls == 1 else f"{calls} calls were"
    those = "its" if calls == 1 else "their"
    note = f"{count} left out, because the CPU ends the process, too, if it is called with {those} arguments"
    repro = again.rest.repro if again.rest is not None else None
    joined = "; ".join(filter(None, (again.note, note)))
    return msgspec.structs.replace(again, rest=None, repro=again.repro or repro, note=joined)


class LostCells:
    """The cells of a run that ended a process, grouped by item."""

    def __init__(self, known: Iterable[Lost] = ()) -> None:
        self._items: dict[tuple[str, ...], Guilty] = {}
        self.all: list[Lost] = []
        for lost in known:
            self.add(lost)

    def add(self, lost: Lost) -> None:
        """Adds a cell that ended a process."""
        self.all.append(lost)
        guilty = self._items.setdefault(lost.cell[1:], Guilty())
        guilty.clauses.add(lost.cell.clause)
        if lost.call is not None and lost.judged:
            guilty.judged[lost.call] = lost.cell.clause
        elif lost.call is not None:
            guilty.calls.setdefault(lost.call, lost.cell)

    def deaths_of(self, cell: CellKey) -> list[Lost]:
        """Returns the process ends that count as a crash or hang of a cell, in the order in which they happened."""
        return [each for each in self.all if each.cell == cell]

    def of(self, item: Item) -> Guilty:
        """Returns the clauses and calls that an item must skip."""
        return self._items.get(item.key) or Guilty()


def share_out(cells: Sequence[CellOutcome], seconds: float) -> tuple[CellOutcome, ...]:
    """Returns the outcomes of an item's cells, with all ``seconds`` of the item divided among the cells. The time of
    preparing the item, such as drawing samples, is thus included."""
    rest = max(seconds - sum(cell.seconds for cell in cells), 0.0)
    return tuple(
        msgspec.structs.replace(cell, seconds=round(cell.seconds + rest / len(cells), 6))
        for cell in cells
    )


# -- verdicts


def verdict_of(matcher: Matcher, found: CellOutcome) -> tuple[Verdict, str]:
    """Returns the verdict on the outcome of a cell, and the reason for the verdict. For a flaky cell the outcomes of
    all its runs count."""
    expectation = matcher.expect(found.cell)
    expired = expectation is not None and expectation.is_expired(date.today())
    if found.others and expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY:
        judgement = judge_flaky(expectation, [found.observed, *found.others], expired=expired)
    else:
        ran = frozenset(found.ran_layouts)
        judgement = judge_cell(expectation, found.observed, ran=ran, expired=expired)
    if judgement.verdict is Verdict.EXPECTED and judgement.blocks:
        # The reader of a report wants the reason, and the file that says so.
        reasons = {f"{b.reason} ({Path(b.where).name})" for b in judgement.blocks}
        return judgement.verdict, "; ".join(sorted(reasons))
    if judgement.verdict is Verdict.FLAKY and judgement.blocks:
        until = sorted({f"until {b.expires}: {b.reason}" for b in judgement.blocks})
        return judgement.verdict, "; ".join((judgement.why, *until))
    return judgement.verdict, judgement.why


def fails_its_item(matcher: Matcher, found: CellOutcome, clause: Clause) -> bool:
    """Returns True if the outcome of a cell makes its item fail. A cell of a provisional clause never makes its
    item fail; it is only reported in the summary of the run."""
    return verdict_of(matcher, found)[0] in BAD and not clause.provisional


def result_of(matcher: Matcher, found: CellOutcome) -> CellResult:
    """Returns the result of a cell for the results folder: its outcome, and the verdict on the outcome."""
    verdict, why = verdict_of(matcher, found)
    facts = found.facts()
    if found.rest is not None:
        ran = frozenset(found.ran_layouts)
        end, rest = judge_parts(matcher.expect(found.cell), found.observed, ran=ran)
        facts["rest"] = msgspec.structs.replace(found.rest, ended=end.verdict, verdict=rest.verdict)
    return CellResult(found.cell, found.outcome, verdict, why, **facts)


# -- flaky cells: run again, and held to their pass rate


def runs_for(rate: float | None) -> int:
    """Returns the number of times to run a flaky cell with this pass rate, so that one failure is allowed: for example
    10 runs for a rate of 0.9. The number is between 5 and 20."""
    if rate is None or rate >= 1:
        return _FEWEST_RUNS
    return min(_MOST_RUNS, max(_FEWEST_RUNS, math.ceil(round(1 / (1 - rate), 6))))


def runs_of(matcher: Matcher, cells: Iterable[CellKey]) -> Mapping[str, int]:
    """Returns the clauses of the given cells that the manifest lists as flaky, each with the number of times that the
    cell must run."""
    expected = {cell.clause: matcher.expect(cell) for cell in cells}
    return {
        clause: runs_for(expectation.min_pass_rate)
        for clause, expectation in expected.items()
        if expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY
    }


def together(runs: Sequence[CellOutcome], bad: Sequence[bool]) -> CellOutcome:
    """Combines several runs of a flaky cell into one outcome: the first outcome whose entry in ``bad`` is True,
    otherwise the first outcome that is not a pass. A report thus never shows a pass for a cell whose pass rate was too
    low. The outcomes of the other runs are stored in the field ``others``."""
    failing = (index for index, run in enumerate(runs) if run.outcome is not Outcome.PASS)
    first = next((index for index, wrong in enumerate(bad) if wrong), next(failing, 0))
    others = tuple(run.observed for index, run in enumerate(runs) if index != first)
    return msgspec.structs.replace(runs[first], others=others)
