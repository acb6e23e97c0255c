"""The outcome of each recorded call in a run: the cells of a call, taken together. The module does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from conformance.recordings.wire import RecordedCall, Recording
from devices.cell import CellKey, Outcome
from devices.files import write_whole
from reports.folder import CALLS_FILE, RECORDING_FILE
from reports.model import CellResult, by_declaration

#: The most calls that the end of a run shows.
_SHOWN: Final = 8

#: The clause that a call breaks which runs on the CPU instead of the device.
_FALLBACK: Final = "dispatch.no_silent_fallback"


class CallOutcome(str, Enum):
    """What a device makes of a recorded call, from the worst outcome to the best."""

    CRASHED = "crashed"  # the process ended, or the call did not end
    WRONG = "wrong"
    MISSING = "missing"  # the device does not implement the call
    FELL_BACK = "fell back"  # it ran on the CPU
    NOT_JUDGED = "not judged"
    RIGHT = "right"


class JudgedCall(msgspec.Struct, frozen=True):
    """A recorded call with its outcome. ``cells`` are those that decided the outcome, ``why`` is the message of the
    first."""

    call: str
    op: str
    dtype: str
    outcome: CallOutcome
    count: int
    where: str
    why: str = ""
    cells: tuple[str, ...] = ()
    repro: str = ""


class _Calls(msgspec.Struct, frozen=True):
    """The content of ``calls.json``."""

    calls: tuple[JudgedCall, ...]
    format: int = 1


def judge_calls(
    recording: Recording,
    results: Mapping[CellKey, CellResult],
    left_out: Mapping[str, str],
) -> list[JudgedCall]:
    """Returns the recorded calls with their outcomes, the worst first, and those that the program makes most often first.
    ``left_out`` has the reasons why calls have no cells, by the name of the call."""
    of_call: dict[str, list[CellResult]] = {}
    for cell, result in results.items():
        of_call.setdefault(cell.unit, []).append(result)
    judged = [
        _judge(name, call, of_call.get(name, ()), left_out.get(name, ""))
        for name, call in recording.named().items()
    ]
    order = list(CallOutcome)
    return sorted(judged, key=lambda each: (order.index(each.outcome), -each.count, each.call))


def _judge(name: str, call: RecordedCall, results: Iterable[CellResult], reason: str) -> JudgedCall:
    tried = [each for each in results if not by_declaration(each)]
    grouped: dict[CallOutcome, list[CellResult]] = {}
    for each in tried:
        grouped.setdefault(_of_cell(each), []).append(each)
    outcome = next((each for each in CallOutcome if each in grouped), CallOutcome.NOT_JUDGED)
    if outcome is CallOutcome.NOT_JUDGED and CallOutcome.RIGHT in grouped:
        outcome = CallOutcome.RIGHT  # the results are right; a clause could not be checked
    known = name, call.op, call.dtype, outcome, call.count, call.where
    if outcome is CallOutcome.RIGHT:
        return JudgedCall(*known)
    deciding = grouped.get(outcome, [])
    shown = next((each for each in deciding if each.repro), deciding[0] if deciding else None)
    if shown is None:
        return JudgedCall(*known, why=reason or "no clause applies to the call")
    why = shown.message or shown.note
    return JudgedCall(*known, why, tuple(str(each.key) for each in deciding), shown.repro or "")


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
    """Writes the outcomes into a results folder. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(_Calls(tuple(judged))), indent=1)
    write_whole(folder / CALLS_FILE, data + b"\n")


def keep_recording(folder: Path, recording: Path) -> None:
    """Copies a recording into a results folder. Raises OSError."""
    write_whole(folder / RECORDING_FILE, recording.read_bytes())


def lines_of(judged: Iterable[JudgedCall]) -> Iterator[str]:
    """Yields the lines about the recorded calls at the end of a run: the number of calls with each outcome, and the calls
    that are not right."""
    judged = list(judged)
    counts: dict[CallOutcome, list[int]] = {}
    for each in judged:
        found = counts.setdefault(each.outcome, [0, 0])
        found[0] += 1
        found[1] += each.count
    order = [CallOutcome.RIGHT, *(each for each in CallOutcome if each is not CallOutcome.RIGHT)]
    parts = [
        f"{counts[each][0]:,} {each.value} ({counts[each][1]:,} times)"
        for each in order
        if each in counts
    ]
    yield f"recorded calls: {', '.join(parts)}"
    bad = [each for each in judged if each.outcome is not CallOutcome.RIGHT]
    for each in bad[:_SHOWN]:
        at = f" at {each.where}" if each.where else ""
        yield f"{each.outcome.value}: {each.call} [{each.dtype}], {each.count:,} times{at}"
        if each.why:
            yield f"    {each.why}"
    if len(bad) > _SHOWN:
        yield f"and {len(bad) - _SHOWN:,} more in {CALLS_FILE}"
