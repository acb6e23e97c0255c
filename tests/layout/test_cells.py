"""A cell's record: what its checks and failures add up to."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from conformance.checks.cells import KEPT, CellRecord, Failed, Recorder, Unread
from conformance.checks.ops.context import OpContext
from conformance.suites.layout import SUITE
from devices.cell import CellKey, CellOutcome, Outcome
from devices.failure import Difference, Failure, Kind
from opinfo.catalog import catalogue
from opinfo.compare import Arguments
from opinfo.exceptions import exceptions
from opinfo.samples import Sample, choose, draw, probe
from tests.faulty import run_faulty
from tests.planting.calls import KernelCall

KEY = CellKey("layout.values", "add", "float32")


def failure(layout: str = "transposed", size: int = 4, **more: Any) -> Failed:
    failed = Failure(kind=Kind.VALUES, detail=f"wrong in {layout}", layout=layout, **more)
    return Failed(failed, size)


def record(*what: str) -> CellRecord:
    """A record in which these things happened, in this order."""
    cell = CellRecord(KEY)
    happen = {
        "check": lambda: cell.check(0, "contiguous"),
        "fail": lambda: cell.fail(failure()),
        "error": lambda: cell.error("no such layout"),
        "block": lambda: cell.block("device.capability", "no int64"),
        "pass over": lambda: cell.pass_over("an input is int64"),
        "refuse": lambda: cell.refuse(NotImplementedError("no kernel")),
        "ambiguous": lambda: cell.ambiguous.append("the references differ"),
    }
    for event in what:
        happen[event]()
    return cell


def test_a_record_without_a_check_is_an_error() -> None:
    cell = record()
    assert cell.outcome() is Outcome.ERROR
    assert (
        cell.to_outcome().message
        == "no check was executed; a cell that checked nothing is an error, not a pass"
    )


def test_a_record_with_checks_alone_passes_and_has_nothing_to_say() -> None:
    cell = record("check")
    assert (cell.outcome(), cell.to_outcome().message) == (Outcome.PASS, "")


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        ("fail", Outcome.FAIL),
        ("error", Outcome.ERROR),
        ("block", Outcome.BLOCKED),
        ("refuse", Outcome.UNSUPPORTED),
        ("ambiguous", Outcome.AMBIGUOUS),
    ],
)
def test_anything_else_beats_a_pass(event: str, outcome: Outcome) -> None:
    assert record("check", event).outcome() is outcome
    assert record(event, "check").outcome() is outcome


_ORDER = ("fail", "error", "block", "refuse", "ambiguous")


@pytest.mark.parametrize(("stronger", "weaker"), list(combinations(_ORDER, 2)))
def test_the_most_serious_of_what_happened_decides(stronger: str, weaker: str) -> None:
    wanted = record("check", stronger)
    for events in ((stronger, weaker), (weaker, stronger)):
        found = record("check", *events)
        assert (found.outcome(), found.to_outcome().message) == (
            wanted.outcome(),
            wanted.to_outcome().message,
        )


def test_a_blocked_cell_names_the_clause_that_must_hold_first() -> None:
    told = record("check", "block").to_outcome()
    assert told.blocked_by == "device.capability"
    assert told.message == "blocked by device.capability: no int64"


@pytest.mark.parametrize(
    ("left", "outcome", "message"),
    [
        (
            Unread.of(RuntimeError("no"), "autograd.first"),
            Outcome.BLOCKED,
            "blocked by autograd.first: every call raised an exception; the first was RuntimeError: no",
        ),
        (Unread.of(NotImplementedError("no")), Outcome.UNSUPPORTED, "NotImplementedError: no"),
        (Unread("wrong already"), Outcome.BLOCKED, "blocked by layout.values: wrong already"),
    ],
)
def test_calls_that_leave_nothing_to_judge_are_no_mistake_of_ours(
    left: Unread, outcome: Outcome, message: str
) -> None:
    cell = CellRecord(CellKey("layout.bounds", "add", "float32"))
    cell.unread = left
    told = cell.to_outcome()
    assert told.outcome is outcome and told.message.startswith(message)
    assert cell.to_outcome() == told and len(cell.blocked) + len(cell.unsupported) == 1


def test_what_is_passed_over_hides_nothing_that_was_judged() -> None:
    assert record("pass over").to_outcome().declared
    assert record("fail", "pass over").outcome() is Outcome.FAIL
    assert record("check", "pass over").to_outcome().message == "noted: an input is int64"


def test_a_refusal_names_the_exception() -> None:
    cell = record("refuse")
    assert cell.to_outcome().message == "NotImplementedError: no kernel"
    assert cell.to_outcome().raises == "NotImplementedError"


def test_checks_are_counted_with_their_samples_and_layouts() -> None:
    cell = CellRecord(KEY)
    cell.check(0, "contiguous")
    cell.check(0, "transposed", 3)
    cell.check(2, "contiguous")
    document = cell.to_outcome()
    assert (document.checks, document.samples) == (5, 2)
    assert document.ran_layouts == ("contiguous", "transposed")


def test_the_smallest_failure_is_shown_and_all_are_counted() -> None:
    cell = record("check", "check", "check")
    cell.fail(failure("transposed", size=9))
    cell.fail(failure("contiguous+step_inner", size=2))
    cell.fail(failure("contiguous", size=2))
    assert cell.to_outcome().message == "[contiguous] wrong in contiguous (3 of 3 checks fail)"
    assert cell.to_outcome().layouts == ("contiguous", "contiguous+step_inner", "transposed")


def test_a_single_failure_is_told_without_a_count() -> None:
    assert record("check", "fail").to_outcome().message == "[transposed] wrong in transposed"


def test_every_failing_layout_is_named_however_many_failures_are_kept() -> None:
    cell = CellRecord(KEY)
    for number in range(KEPT + 7):
        cell.fail(failure(f"layout{number}"))
    assert len(cell.failures) == KEPT and len(cell.to_outcome().layouts) == KEPT + 7
    assert f"({KEPT + 7} of " in cell.to_outcome().message


def test_the_worst_error_and_the_shown_exception_are_reported() -> None:
    cell = CellRecord(KEY)
    cell.fail(failure(where=Difference(1, 9, error=0.5), size=1, raises="ValueError"))
    cell.fail(failure(where=Difference(1, 9, error=2.0), size=3))
    document = cell.to_outcome()
    assert (document.worst_error, document.raises) == (2.0, "ValueError")


def test_an_outcome_survives_json() -> None:
    told = record("check", "fail", "refuse").to_outcome()
    assert msgspec.json.decode(msgspec.json.encode(told), type=CellOutcome) == told
    assert told.cell == KEY


def test_a_recorder_has_the_selected_clauses_alone() -> None:
    recorder = Recorder("add", "float32", ["layout.values", "layout.bounds"])
    assert recorder.get("layout.values") and recorder.get("layout.inplace") is None
    assert recorder.get("layout.inplace") is None
    found = recorder.get("layout.bounds")
    assert found is not None and found.key == CellKey("layout.bounds", "add", "float32")


def test_a_call_that_names_a_dtype_which_is_not_declared_may_be_refused() -> None:
    ctx: Any = SimpleNamespace(
        device=SimpleNamespace(descriptor=SimpleNamespace(dtypes=frozenset({"float32"})))
    )
    for named, why in (
        (torch.float64, "the dtype argument of a call is float64"),
        (torch.float32, ""),
        (1, ""),
    ):
        for call in (
            Arguments((torch.ones(2), named), {}),
            Arguments((torch.ones(2),), {"dtype": named}),
        ):
            found = OpContext.asks_undeclared(ctx, Sample(0, call, None))
            assert found.startswith(why) and bool(found) == bool(why)


@pytest.mark.parametrize("op", ["transpose", "dot"])
def test_a_cell_means_the_same_whichever_clauses_are_selected(op: str) -> None:
    samples = choose(draw(catalogue()[op], "complex64"), 4)
    alone = [check for check in SUITE.op_checks if check.clause == "layout.values"]
    counts = [
        run_faulty(op, "complex64", samples, checks, KernelCall.honest)
        .cells["layout.values"]
        .checks
        for checks in (alone, SUITE.op_checks)
    ]
    assert counts[0] == counts[1] > 0


def test_expanded_operands_are_not_judged_where_no_value_would_be_compared() -> None:
    (expanded,) = (each for each in SUITE.op_checks if each.clause == "layout.expanded_read")
    for op, applies in (("nn.functional.dropout2d", False), ("nn.functional.softmin", True)):
        samples = choose(draw(catalogue()[op], "float32"), 4)
        assert expanded.applies(probe(catalogue()[op], "float32", samples, exceptions())) == applies
