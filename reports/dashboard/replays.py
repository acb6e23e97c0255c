"""Replays on the dashboard: the data about a replayed program's calls that the site publishes, and the content of
the program's page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devices.cell import CellKey, Verdict
from reports.advice import sentence, todo
from reports.causes import Cause
from reports.dashboard import documents
from reports.dashboard.series import Series, slug
from reports.folder import CALLS_FILE
from reports.junit import clean
from reports.model import CellResult, Clause, Run, RunError
from reports.replayed_calls import PASSING, CallOutcome, JudgedCall, outcome_of, read_calls

#: The order of the counts: what is right first, then the worst.
ORDER = (*PASSING, *(each for each in CallOutcome if each not in PASSING))

#: What an outcome means, and the kind of status whose shape shows it.
MEANING = {
    CallOutcome.RIGHT: "every clause that applies to the call passes",
    CallOutcome.NOT_BY_VALUE: "dtypes, strides and memory are right; no clause judges the values",
    CallOutcome.CRASHED: "the call ended the process, or did not return",
    CallOutcome.WRONG: "a clause fails",
    CallOutcome.MISSING: "the device does not implement the call",
    CallOutcome.FELL_BACK: "the call ran on the CPU",
    CallOutcome.NOT_JUDGED: "the call cannot be repeated on its own",
    CallOutcome.LEFT_OUT: "the run left the call out (--max-elements)",
}
SHAPE = {
    CallOutcome.RIGHT: "pass",
    CallOutcome.NOT_BY_VALUE: "ambiguous",
    CallOutcome.CRASHED: "crash",
    CallOutcome.WRONG: "fail",
    CallOutcome.MISSING: "unsupported",
    CallOutcome.FELL_BACK: "blocked",
    CallOutcome.NOT_JUDGED: "ambiguous",
    CallOutcome.LEFT_OUT: "unsupported",
}


def published(run: Run, causes: Iterable[Cause]) -> documents.Replay | None:
    """Returns the calls of a replay in the form in which the site publishes them; None for a run that is not a replay.

    Raises RunError if the list of calls is damaged, or if it contradicts the record of the run.
    """
    listed = read_calls(run.folder)
    if listed is None:
        return None
    of_call: dict[str, list[CellResult]] = {}
    for cell, result in run.results.items():
        of_call.setdefault(cell.unit, []).append(result)
    calls = {each.call: each for each in listed.calls}
    for each in listed.calls:
        outcome, _ = outcome_of(of_call.get(each.call, ()))
        if each.outcome is CallOutcome.LEFT_OUT and each.call not in of_call:
            continue
        if outcome is not (CallOutcome.RIGHT if each.outcome in PASSING else each.outcome):
            raise RunError(
                f"{run.folder / CALLS_FILE}: lists {each.call} as {each.outcome.value}, and by the record of the run it is "
                f"{outcome.value}. The file was changed, or belongs to another run: replay the recording again"
            )
    if missing := sorted(of_call.keys() - calls.keys()):
        raise RunError(
            f"{run.folder / CALLS_FILE}: lacks {missing[0]}, which the record of the run has. The file was changed, or belongs "
            "to another run: replay the recording again"
        )
    return documents.Replay(
        clean(listed.program),
        [_call(each, of_call.get(each.call, ())) for each in listed.calls],
        [*_causes(causes, run.parsed.clauses, calls)],
        _worst(of_call),
    )


def _call(call: JudgedCall, results: Iterable[CellResult]) -> documents.ReplayedCall:
    failing = None if call.outcome in PASSING else next(iter(outcome_of(results)[1]), None)
    return documents.ReplayedCall(
        clean(call.call), clean(call.op), clean(call.dtype), call.outcome, call.count,
        clean(call.line), clean(call.module), clean(call.why)[:_LONGEST_WHY],
        None if failing is None else _cleaned(failing.key), call.expected,
    )  # fmt: skip


#: The clause that compares the values of a call with those of the CPU.
_VALUES = "layout.values"

#: The longest message of a call in the list, in characters. The page of the cell has all of it.
_LONGEST_WHY = 400


def _causes(
    causes: Iterable[Cause], clauses: Mapping[str, Clause], calls: Mapping[str, JudgedCall]
) -> Iterator[documents.ReplayCause]:
    """Yields the causes of failing calls in the order in which to fix them: causes that the manifest does not list
    come first, and each time the cause that affects most calls that no earlier cause affects."""
    left = [
        (cause, {unit: calls[unit] for unit in (each.key.unit for each in cause.results)})
        for cause in causes
    ]
    known: set[str] = set()

    def urgency(item: tuple[Cause, Mapping[str, JudgedCall]]) -> tuple[bool, int, int, int]:
        cause, affected = item
        unexpected = cause.verdict is not Verdict.EXPECTED
        times = sum(each.count for each in affected.values())
        return unexpected, len(affected.keys() - known), len(affected), times

    while left:
        first = max(left, key=urgency)
        left.remove(first)
        yield _cause(*first, clauses, len(first[1].keys() - known))
        known |= first[1].keys()


def _cause(
    cause: Cause, affected: Mapping[str, JudgedCall], clauses: Mapping[str, Clause], further: int
) -> documents.ReplayCause:
    most = max(affected.values(), key=lambda each: each.count)
    return documents.ReplayCause(
        clean(sentence(cause)), clean(todo(cause, clauses)), cause.verdict.value,
        len(affected), further, sum(each.count for each in affected.values()),
        clean(most.line), clean(most.module), _cleaned(cause.example.key),
    )  # fmt: skip


def _worst(of_call: Mapping[str, Iterable[CellResult]]) -> documents.WorstError | None:
    errors = [
        (result.worst_error, result)
        for results in of_call.values()
        for result in results
        # Other clauses compare with other operands, of any size, than those of the recorded ranges.
        if result.worst_error is not None and result.key.clause == _VALUES
    ]
    if not errors:
        return None
    error, result = max(errors, key=lambda each: each[0])
    return documents.WorstError(clean(result.key.unit), f"{error:g}", _cleaned(result.key))


def _cleaned(key: CellKey) -> CellKey:
    return CellKey(*map(clean, key))


# -- what the page shows


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """The number of a program's distinct calls that have an outcome, the number of times that the program makes
    these calls, and both numbers as a percentage of all."""

    outcome: CallOutcome
    calls: int
    times: int
    share_of_calls: float
    share_of_times: float


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a program's newest replay on a device. ``has_cells`` is true if the run of this replay is also the
    newest run of its series; only then do the pages of the cells show the results of the replay."""

    slug: str
    series: Series
    run: documents.RunDocument
    replay: documents.Replay
    counts: tuple[OutcomeCount, ...]
    has_cells: bool

    @property
    def calls(self) -> int:
        """The number of distinct calls of the program."""
        return len(self.replay.calls)

    @property
    def times(self) -> int:
        """The number of calls that the program makes, counting repetitions of the same call."""
        return sum(each.times for each in self.replay.calls)

    @property
    def right(self) -> OutcomeCount:
        return self.counts[0]

    @property
    def not_right(self) -> list[documents.ReplayedCall]:
        return [each for each in self.replay.calls if each.outcome is not CallOutcome.RIGHT]

    @property
    def right_calls(self) -> list[documents.ReplayedCall]:
        return [each for each in self.replay.calls if each.outcome is CallOutcome.RIGHT]


def pages_of(series: Iterable[Series]) -> list[Page]:
    """Returns one page for each program and device, made from the newest replay of the program on that device."""
    found: dict[tuple[str, str], Page] = {}
    for each in series:
        for run in each.runs:
            if (replay := run.replay) is not None:
                name = slug(f"{each.slug}-{replay.program or 'program'}")
                counts = tuple(_counts(replay.calls))
                page = Page(name, each, run, replay, counts, run is each.latest)
                found[each.slug, replay.program] = page
    return list(found.values())


def _counts(calls: Sequence[documents.ReplayedCall]) -> Iterable[OutcomeCount]:
    times = sum(each.times for each in calls)
    for outcome in ORDER:
        having = [each for each in calls if each.outcome is outcome]
        made = sum(each.times for each in having)
        if having or outcome is CallOutcome.RIGHT:
            yield OutcomeCount(
                outcome, len(having), made, 100 * len(having) / max(len(calls), 1), 100 * made / max(times, 1)
            )  # fmt: skip
