"""Determines the outcome of each recorded call in a run from the outcomes of its cells. This module does not import
torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from conformance.recordings.wire import RecordedCall, Recording
from devices.cell import CellKey, Outcome, Verdict
from devices.files import write_whole
from reports.folder import CALLS_FILE, RECORDING_FILE
from reports.model import CellResult, by_declaration

#: The most calls that the end of a run shows.
_SHOWN: Final = 8

#: The clause that a call breaks which runs on the CPU instead of the device.
_FALLBACK: Final = "dispatch.no_silent_fallback"

#: The clauses that compare the elements of a result with those of the CPU.
_OF_VALUES: Final = frozenset(
    {"layout.values", "layout.as_strided", "precision.ulp", "precision.exact_sums"}
)


class CallOutcome(str, Enum):
    """The outcome of a recorded call on a device. The members are ordered from the worst to the best."""

    CRASHED = "crashed"  # the process ended, or the call did not end
    WRONG = "wrong"
    MISSING = "missing"  # the device does not implement the call
    FELL_BACK = "fell back"  # it ran on the CPU
    NOT_JUDGED = "not judged"
    NOT_BY_VALUE = "not judged by value"  # dtypes, strides and memory are right
    RIGHT = "right"


class JudgedCall(msgspec.Struct, frozen=True):
    """A recorded call with its outcome. ``cells`` are the cells that decided the outcome, and ``why`` is the message of
    the first of them. ``expected`` is True if the manifest lists all of them."""

    call: str
    op: str
    dtype: str
    outcome: CallOutcome
    count: int
    where: str
    why: str = ""
    cells: tuple[str, ...] = ()
    repro: str = ""
    expected: bool = False


class _Calls(msgspec.Struct, frozen=True):
    """The content of ``calls.json``."""

    calls: tuple[JudgedCall, ...]
    format: int = 1


def judge_calls(
    recording: Recording,
    results: Mapping[CellKey, CellResult],
    left_out: Mapping[str, str],
    of_any_values: Collection[str] = (),
) -> list[JudgedCall]:
    """Returns the recorded calls with their outcomes. The worst outcomes come first; among equal outcomes, the calls
    that the program makes most often. ``left_out`` has the reasons why some calls have no cells, by the name of the
    call. ``of_any_values`` has the names of the calls whose inputs do not determine the values of the result."""
    of_call: dict[str, list[CellResult]] = {}
    for cell, result in results.items():
        of_call.setdefault(cell.unit, []).append(result)
    judged = [
        _judge(
            name,
            call,
            of_call.get(name, ()),
            left_out.get(name, ""),
            of_any_values=name in of_any_values,
        )
        for name, call in recording.named().items()
    ]
    order = list(CallOutcome)
    return sorted(judged, key=lambda each: (order.index(each.outcome), -each.count, each.call))


def _judge(
    name: str,
    call: RecordedCall,
    results: Iterable[CellResult],
    reason: str,
    *,
    of_any_values: bool,
) -> JudgedCall:
    tried = [each for each in results if not by_declaration(each)]
    grouped: dict[CallOutcome, list[CellResult]] = {}
    for each in tried:
        grouped.setdefault(_of_cell(each), []).append(each)
    outcome = next((each for each in CallOutcome if each in grouped), CallOutcome.NOT_JUDGED)
    if outcome is CallOutcome.NOT_JUDGED and CallOutcome.RIGHT in grouped:
        outcome = CallOutcome.RIGHT  # the results are right; a clause could not be checked
    known = name, call.op, call.dtype, outcome, call.count, call.where
    if outcome is CallOutcome.RIGHT:
        compared = {each.key.clause for each in grouped[outcome]} & _OF_VALUES
        if compared and not of_any_values:
            return JudgedCall(*known)
        why = "no clause that compares values applies to the call"
        if of_any_values:
            why = "the inputs do not determine the values, as for random numbers"
        return JudgedCall(*known[:3], CallOutcome.NOT_BY_VALUE, *known[4:], why)
    deciding = grouped.get(outcome, [])
    shown = next((each for each in deciding if each.repro), deciding[0] if deciding else None)
    if shown is None:
        return JudgedCall(*known, why=reason or "no clause applies to the call")
    why = shown.message or shown.note
    listed = all(each.verdict is Verdict.EXPECTED for each in deciding)
    cells = tuple(str(each.key) for each in deciding)
    return JudgedCall(*known, why, cells, shown.repro or "", listed)


def _of_cell(result: CellResult) -> CallOutcome:
    if result.outcome in (Outcome.CRASH, Outcome.HANG):
        return CallOutcome.CRASHED
    if result.outcome is Outcome.FAIL:
        fell = result.key.clause == _FALLBACK
        return CallOutcome.FELL_BACK if fell else CallOutcome.WRONG
    if result.outcome is Outcome.UNSUPPORTED:
        return CallOutcome.MISSING
    return CallOutcome.RIGHT if result.outcome is Outcome.PASS else CallOutcome.NOT_JUDGED


def write_calls(folder: Path, judged: Iterable[JudgedCall]) -> None:
    """Writes the outcomes of the recorded calls to a file in a results folder. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(_Calls(tuple(judged))), indent=1)
    write_whole(folder / CALLS_FILE, data + b"\n")


def keep_recording(folder: Path, recording: Path) -> None:
    """Copies a recording into a results folder. Raises OSError."""
    write_whole(folder / RECORDING_FILE, recording.read_bytes())


def lines_of(judged: Iterable[JudgedCall]) -> Iterator[str]:
    """Yields the lines about the recorded calls that a run prints at its end: the number of calls with each outcome,
    then each call that is wrong or not judged."""
    judged = list(judged)
    counts: dict[CallOutcome, list[int]] = {}
    for each in judged:
        found = counts.setdefault(each.outcome, [0, 0])
        found[0] += 1
        found[1] += each.count
    first = CallOutcome.RIGHT, CallOutcome.NOT_BY_VALUE
    order = [*first, *(each for each in CallOutcome if each not in first)]
    parts = [
        f"{counts[each][0]:,} {each.value} ({counts[each][1]:,} times)"
        for each in order
        if each in counts
    ]
    yield f"recorded calls: {', '.join(parts)}"
    good = (CallOutcome.RIGHT, CallOutcome.NOT_BY_VALUE)
    bad = [each for each in judged if each.outcome not in good]
    for each in bad[:_SHOWN]:
        at = f" at {each.where}" if each.where else ""
        listed = ", as the manifest expects" if each.expected else ""
        yield f"{each.outcome.value}{listed}: {each.call} [{each.dtype}], {each.count:,} times{at}"
        if each.why:
            yield f"    {each.why}"
    if len(bad) > _SHOWN:
        yield f"and {len(bad) - _SHOWN:,} more in {CALLS_FILE}"
