"""Determines the outcome of each recorded call in a run from the outcomes of its cells. This module does not import
torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from conformance.recordings.wire import RecordedCall, Recording
from devices.cell import CellKey, Verdict
from devices.files import write_whole
from reports.folder import CALLS_FILE, RECORDING_FILE
from reports.model import CellResult
from reports.replayed_calls import PASSING, CallOutcome, JudgedCall, outcome_of

#: The most calls that the end of a run shows.
_SHOWN: Final = 8

_TOO_LARGE: Final = "its tensors have more elements than --max-elements allows"
_UNFINISHED: Final = "the run ended before every clause was checked"

#: The clauses that compare the elements of a result with those of the CPU.
_OF_VALUES: Final = frozenset(
    {"layout.values", "layout.as_strided", "precision.ulp", "precision.exact_sums"}
)


def judge_calls(
    recording: Recording,
    results: Mapping[CellKey, CellResult],
    left_out: Mapping[str, str],
    of_any_values: Collection[str] = (),
    *,
    too_large: Collection[str] = (),
    unfinished: Collection[str] = (),
) -> list[JudgedCall]:
    """Returns the recorded calls with their outcomes. The worst outcomes come first; among equal outcomes, the calls
    that the program makes most often. ``left_out`` has the reasons why some calls have no cells, by the name of the
    call. ``of_any_values`` has the names of the calls whose inputs do not determine the values of the result,
    ``too_large`` those that ``--max-elements`` leaves out, and ``unfinished`` those that have cells without a result
    because the run ended."""
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
            too_large=name in too_large,
            unfinished=name in unfinished,
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
    too_large: bool,
    unfinished: bool,
) -> JudgedCall:
    results = list(results)
    outcome, deciding = outcome_of(results)
    place = call.place
    plain = JudgedCall(
        name, call.op, call.dtype, outcome, call.count, call.where,
        line=place.line, module=place.module,
    )  # fmt: skip
    if too_large and not results:
        return msgspec.structs.replace(plain, outcome=CallOutcome.LEFT_OUT, why=_TOO_LARGE)
    if unfinished and outcome in (CallOutcome.RIGHT, CallOutcome.NOT_JUDGED):
        return msgspec.structs.replace(plain, outcome=CallOutcome.NOT_JUDGED, why=_UNFINISHED)
    if outcome is CallOutcome.RIGHT:
        compared = {each.key.clause for each in deciding} & _OF_VALUES
        if compared and not of_any_values:
            return plain
        why = "no clause that compares values applies to the call"
        if of_any_values:
            why = "the inputs do not determine the values, as for random numbers"
        return msgspec.structs.replace(plain, outcome=CallOutcome.NOT_BY_VALUE, why=why)
    shown = next((each for each in deciding if each.repro), deciding[0] if deciding else None)
    if shown is None:
        why = next((each.note for each in results), "")
        return msgspec.structs.replace(plain, why=reason or why or "no clause applies to the call")
    return msgspec.structs.replace(
        plain,
        why=shown.message or shown.note,
        cells=tuple(str(each.key) for each in deciding),
        repro=shown.repro or "",
        expected=all(each.verdict is Verdict.EXPECTED for each in deciding),
    )


def keep_recording(folder: Path, recording: Path) -> None:
    """Copies the file of a recording into a results folder. Raises OSError."""
    write_whole(folder / RECORDING_FILE, recording.read_bytes())


def lines_of(judged: Iterable[JudgedCall], max_elements: int | None = None) -> Iterator[str]:
    """Yields the lines about the recorded calls that a run prints at its end: the number of calls with each outcome,
    then each call that is wrong or not judged. ``max_elements`` is the number that the user gave."""
    judged = list(judged)
    counts: dict[CallOutcome, list[int]] = {}
    for each in judged:
        found = counts.setdefault(each.outcome, [0, 0])
        found[0] += 1
        found[1] += each.count
    order = [*PASSING, *(each for each in CallOutcome if each not in PASSING)]
    parts = [
        f"{counts[each][0]:,} {each.value} ({counts[each][1]:,} times)"
        for each in order
        if each in counts
    ]
    yield f"recorded calls: {', '.join(parts)}"
    if CallOutcome.LEFT_OUT in counts:
        yield f"left out: calls with more than {max_elements:,} elements (--max-elements), which were not tested"
    bad = [each for each in judged if each.outcome not in (*PASSING, CallOutcome.LEFT_OUT)]
    for each in bad[:_SHOWN]:
        at = f" at {each.where}" if each.where else ""
        listed = ", as the manifest expects" if each.expected else ""
        yield f"{each.outcome.value}{listed}: {each.call} [{each.dtype}], {each.count:,} times{at}"
        if each.why:
            yield f"    {each.why}"
    if len(bad) > _SHOWN:
        yield f"and {len(bad) - _SHOWN:,} more in {CALLS_FILE}"
