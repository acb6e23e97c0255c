"""The outcome of a recorded call, from the results of its cells."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conformance.recordings.outcomes import judge_calls, lines_of
from conformance.recordings.wire import (
    FORMAT,
    Header,
    Place,
    RecordedCall,
    RecordedTensor,
    Recording,
)
from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult
from reports.replayed_calls import CallOutcome

CALL = RecordedCall(
    "aten.cos.default",
    [{"tensor": 0}],
    {},
    (RecordedTensor("float32", (3,), (1,)),),
    count=7,
    places=((Place("Net", "net.py:3"), 7),),
)
RECORDING = Recording(Header(FORMAT, 1), (CALL,))


def result(outcome: Outcome, clause: str = "layout.values", **more: Any) -> CellResult:
    key = CellKey(clause, CALL.name, "float32")
    verdict = Verdict.OK if outcome is Outcome.PASS else Verdict.REGRESSION
    return CellResult(key=key, outcome=outcome, verdict=verdict, **more)


def judged(*results: CellResult, left_out: str = "") -> Any:
    reasons = {CALL.name: left_out} if left_out else {}
    (found,) = judge_calls(RECORDING, {each.key: each for each in results}, reasons)
    return found


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((Outcome.PASS, Outcome.PASS), CallOutcome.RIGHT),
        ((Outcome.PASS, Outcome.FAIL), CallOutcome.WRONG),
        ((Outcome.FAIL, Outcome.CRASH), CallOutcome.CRASHED),
        ((Outcome.PASS, Outcome.HANG), CallOutcome.CRASHED),
        ((Outcome.UNSUPPORTED, Outcome.BLOCKED), CallOutcome.MISSING),
        ((Outcome.PASS, Outcome.ERROR), CallOutcome.RIGHT),
        ((Outcome.ERROR, Outcome.PASS), CallOutcome.NOT_BY_VALUE),
        ((Outcome.ERROR, Outcome.BLOCKED), CallOutcome.NOT_JUDGED),
    ],
)
def test_the_worst_cell_decides(outcomes: tuple[Outcome, ...], expected: CallOutcome) -> None:
    clauses = ("layout.values", "layout.output_strides")
    found = judged(*(result(each, clause) for each, clause in zip(outcomes, clauses)))
    assert found.outcome is expected
    assert (found.count, found.where) == (7, "net.py:3 (Net)")


@pytest.mark.parametrize("clause", ["layout.values", "precision.ulp"])
def test_a_call_of_any_values_is_not_judged_by_value(clause: str) -> None:
    passed = result(Outcome.PASS, clause)
    (found,) = judge_calls(RECORDING, {passed.key: passed}, {}, {CALL.name})
    assert found.outcome is CallOutcome.NOT_BY_VALUE and "do not determine the values" in found.why
    assert list(lines_of([found])) == ["recorded calls: 1 not judged by value (7 times)"]
    failed = result(Outcome.FAIL, clause)
    (found,) = judge_calls(RECORDING, {failed.key: failed}, {}, {CALL.name})
    assert found.outcome is CallOutcome.WRONG


def test_a_call_that_no_clause_compares_with_the_cpu_is_not_judged_by_value() -> None:
    found = judged(result(Outcome.PASS, "layout.output_strides"))
    assert (found.outcome, found.why) == (
        CallOutcome.NOT_BY_VALUE,
        "no clause that compares values applies to the call",
    )


def test_a_call_that_ran_on_the_cpu_fell_back() -> None:
    fell = result(Outcome.FAIL, "dispatch.no_silent_fallback")
    assert judged(result(Outcome.PASS), fell).outcome is CallOutcome.FELL_BACK
    assert judged(result(Outcome.FAIL), fell).outcome is CallOutcome.WRONG


def test_a_call_without_cells_is_not_judged_and_says_why() -> None:
    found = judged(left_out="torch has no such op")
    assert (found.outcome, found.why) == (CallOutcome.NOT_JUDGED, "torch has no such op")


def test_a_failure_that_the_manifest_lists_is_marked() -> None:
    failed = result(Outcome.FAIL)
    listed = msgspec.structs.replace(failed, verdict=Verdict.EXPECTED)
    known, new = judged(listed), judged(listed, result(Outcome.FAIL, "layout.bounds"))
    assert (known.expected, new.expected) == (True, False)
    assert [*lines_of([known])][1].startswith(f"wrong, as the manifest expects: {CALL.name} ")
    assert [*lines_of([new])][1].startswith(f"wrong: {CALL.name} ")


def test_the_lines_name_the_calls_that_are_not_right() -> None:
    assert list(lines_of([judged(result(Outcome.PASS))])) == ["recorded calls: 1 right (7 times)"]
    lines = list(lines_of([judged(result(Outcome.CRASH, note="the worker was killed"))]))
    assert lines[0] == "recorded calls: 1 crashed (7 times)"
    assert lines[1] == f"crashed: {CALL.name} [float32], 7 times at net.py:3 (Net)"
