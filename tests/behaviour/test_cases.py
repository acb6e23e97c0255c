"""Cases as data, and the outcomes that they lead to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance import contract, suites
from conformance.checks.cases.cases import BehaviourCase, Cases, collect_cases, not_here
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotDeclared, NotShown
from conformance.checks.cases.execution import PATIENCE
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.suites import planned_cases
from devices import registry
from devices.cell import CellKey, Outcome
from devices.failure import Difference, Failure, Kind
from opinfo.device import Device, open_device
from tests.behaviour import examples

EXAMPLES = {case.name: case for case in examples.cases}


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    threads = torch.get_num_threads()
    yield open_device(registry.get("cpu"))
    torch.set_num_threads(threads)


@pytest.fixture
def context(device: Device) -> CaseContext:
    return CaseContext(device, "a test")


def ran(name: str, device: Device) -> CellRecord:
    record = CellRecord(CellKey("device.count", name, ""))
    run_case(EXAMPLES[name], record, device, DeviceLocator(device="cpu"))
    return record


# Outcomes


@pytest.mark.parametrize(
    ("name", "outcome", "checks", "message"),
    [
        ("passes", Outcome.PASS, 2, ""),
        ("fails", Outcome.FAIL, 2, "sums are right: expected 3, found 2"),
        ("checks_nothing", Outcome.ERROR, 0, "no check was executed; a cell that checked nothing is an error, not a pass"),
        ("stands_on_what_is_not_so", Outcome.FAIL, 2, "a precondition of the check failed: no work was in flight"),
        ("raises", Outcome.FAIL, 1, "raised KeyError: 'no such block'"),
        ("refuses", Outcome.UNSUPPORTED, 0, "NotImplementedError: no kernel for that"),
        ("never_in_flight", Outcome.BLOCKED, 0, "blocked by streams.query: it was over"),
        ("in_its_own_process", Outcome.PASS, 1, ""),
    ],
)  # fmt: skip
def test_how_a_case_ends(
    device: Device, name: str, outcome: Outcome, checks: int, message: str
) -> None:
    record = ran(name, device)
    assert (record.outcome(), record.checks, record.to_outcome().message) == (
        outcome,
        checks,
        message,
    )


def test_an_exception_names_its_type(device: Device) -> None:
    assert ran("raises", device).to_outcome().raises == "KeyError"


def test_a_case_that_finds_nothing_in_flight_is_tried_with_more_of_it(device: Device) -> None:
    examples.ATTEMPTS.clear()
    record = ran("in_flight_later", device)
    assert (record.outcome(), record.checks) == (Outcome.PASS, 2)
    assert list(PATIENCE[:3]) == examples.ATTEMPTS


def test_work_that_is_never_in_flight_fails_the_clause_that_says_so(device: Device) -> None:
    case = replace(EXAMPLES["never_in_flight"], clause="streams.query")
    record = CellRecord(CellKey("streams.query", "never_in_flight", ""))
    run_case(case, record, device, DeviceLocator(device="cpu"))
    assert (record.outcome(), record.to_outcome().message) == (Outcome.FAIL, "it was over")


def test_a_case_that_needs_work_in_flight_is_unsupported_where_nothing_holds_it(
    context: CaseContext,
) -> None:
    with pytest.raises(NotDeclared, match="neither `gate` nor `busy`"):
        context.hold()


def test_a_case_that_judges_values_too_goes_on_without_a_hold_and_says_so(
    context: CaseContext,
) -> None:
    for _ in range(2):
        with context.hold(needed=False) as hold:
            hold.pending("it is not done", None)
            hold.waits(None, "it waits")
            hold.keeps_waiting(lambda: None, "it waits")
    assert (context.checks, len(context.notes)) == (0, 1)


@pytest.mark.parametrize("index", [0, 1])
def test_the_default_stream_of_an_index_is_held_on_it(index: int) -> None:
    context = CaseContext(open_device(registry.get("simulated")), "a test")
    stream = context.current_stream(index)
    with context.hold(stream) as hold:
        assert not stream.query() and context.current_stream(1 - index).query()
        hold.release()
    context.settle()


def test_capabilities_beyond_the_clauses_are_asked_of_the_descriptor(device: Device) -> None:
    record = ran("takes_more", device)
    assert (record.outcome(), record.declared, record.checks) == (Outcome.UNSUPPORTED, True, 0)
    assert (
        record.to_outcome().message
        == "by declaration: the descriptor does not declare graphs, streams"
    )


def test_a_case_for_two_devices_is_not_passed_on_one(device: Device) -> None:
    record = ran("takes_two", device)
    assert (record.outcome(), record.declared, record.checks) == (Outcome.UNSUPPORTED, True, 0)
    assert (
        record.to_outcome().message
        == "not on this machine: it has one device, but the case needs 2"
    )


def test_a_case_for_two_devices_runs_on_two(device: Device) -> None:
    two = replace(device, descriptor=replace(device.descriptor, device_count=lambda: 2))
    assert ran("takes_two", two).outcome() is Outcome.PASS


def test_a_case_of_no_layout_names_none(device: Device) -> None:
    told = ran("fails", device).to_outcome()
    assert (told.layouts, told.ran_layouts, told.samples) == ((), (), 0)


# Judging


def test_tensors_are_compared_bit_for_bit(context: CaseContext) -> None:
    nan = torch.tensor([1.0, float("nan")])
    context.equal(nan.clone(), nan, "a NaN equals itself")
    with pytest.raises(CheckFailed) as failed:
        context.equal(torch.tensor([[1.0, -0.0]]), torch.tensor([[1.0, 0.0]]), "zeros")
    assert context.checks == 2
    assert failed.value.failure == Failure(
        kind=Kind.VALUES,
        subject="zeros",
        expected="0.0",
        found="-0.0",
        where=Difference(1, 2, (0, 1)),
    )
    text = "zeros: expected 0.0, found -0.0; 1 of 2 differ, the first at [0, 1]"
    assert str(failed.value) == text


@pytest.mark.parametrize(
    ("other", "kind", "expected", "found"),
    [
        (torch.zeros(2, 1), Kind.SHAPE, "(2,)", "(2, 1)"),
        (torch.zeros(2, dtype=torch.float64), Kind.DTYPE, "torch.float32", "torch.float64"),
    ],
    ids=["shape", "dtype"],
)
def test_tensors_of_other_shapes_or_dtypes_are_not_equal(
    context: CaseContext, other: torch.Tensor, kind: Kind, expected: str, found: str
) -> None:
    with pytest.raises(CheckFailed) as failed:
        context.equal(other, torch.zeros(2), "the form")
    want = Failure(kind=kind, subject="the form", expected=expected, found=found)
    assert (failed.value.failure, context.checks) == (want, 1)


def test_a_check_has_a_kind_of_its_own_or_that_of_its_case(context: CaseContext) -> None:
    kinds = []
    for kind in (None, Kind.ORDER):
        with pytest.raises(CheckFailed) as failed:
            context.check(False, "it holds", kind=kind)
        kinds.append(failed.value.failure.kind)
    assert kinds == [context.default, Kind.ORDER]


def test_a_call_that_does_not_raise_fails_the_check(context: CaseContext) -> None:
    with pytest.raises(CheckFailed, match="expected ValueError, found 3") as failed:
        context.raises(ValueError, int, "3", text="it raises")
    assert failed.value.failure.kind is Kind.NOT_RAISED


def test_a_call_that_raises_another_type_fails_the_check(context: CaseContext) -> None:
    with pytest.raises(CheckFailed, match=r"expected KeyError, found ValueError\(") as failed:
        context.raises(KeyError, int, "three", text="it raises")
    assert failed.value.failure.kind is Kind.RAISED


def test_the_message_of_what_is_raised_is_judged(context: CaseContext) -> None:
    context.raises(ValueError, int, "three", text="it raises", match="three")
    with pytest.raises(CheckFailed, match="a message that matches .*four"):
        context.raises(ValueError, int, "three", text="it raises", match="four")


def test_a_device_without_a_way_to_be_busy_shows_nothing(context: CaseContext) -> None:
    with pytest.raises(NotShown, match="neither `gate` nor `busy`"), context.hold():
        pass


# Data


def test_over_makes_a_case_of_each_key() -> None:
    cases = Cases()

    @cases("device.count", over={"one": (1,), "two": (2,)}, indices=2)
    def counts(context: CaseContext, number: int) -> None:
        """It counts."""

    assert [(c.name, c.arguments, c.indices, c.statement) for c in cases] == [
        ("one", (1,), 2, "It counts."),
        ("two", (2,), 2, "It counts."),
    ]


def test_two_cases_of_one_name_are_refused() -> None:
    case = BehaviourCase("device.count", "one", print)
    with pytest.raises(ValueError, match="device.count has two cases named 'one'"):
        collect_cases([case], [case])


def test_an_environment_takes_a_process() -> None:
    with pytest.raises(ValueError, match="requires own_process=True"):
        BehaviourCase("device.count", "one", print, environment=(("A", "b"),))


def test_what_is_missing_is_named() -> None:
    case = BehaviourCase("device.count", "one", print, requires=frozenset({"streams"}), indices=3)
    assert not_here(case, frozenset({"streams"}), 3) == ""
    assert "does not declare streams" in not_here(case, frozenset(), 3)
    assert not_here(case, frozenset({"streams"}), 2).endswith(
        "it has 2 devices, but the case needs 3"
    )


@pytest.mark.parametrize("suite", suites.suites(), ids=lambda suite: suite.name)
def test_a_suite_checks_clauses_of_its_own_families(suite: suites.Suite) -> None:
    known = contract.load().clauses
    for case in suite.cases:
        assert known[case.clause].unit == "case"
        assert suites.suite_of(case.clause) == suite.name, case
        assert case.statement, f"{case.clause}::{case.name} says nothing of itself"
    for check in suite.op_checks:
        assert known[check.clause].unit == "op"
        assert suites.suite_of(check.clause) == suite.name, check


def test_every_plan_takes_a_part_of_what_core_takes() -> None:
    few = suites.planned_cases(contract.load(), more=False)
    every = suites.planned_cases(contract.load())
    # Not as sets: arguments may be literals that cannot be hashed.
    by_id = {case.id: case for case in every}
    assert len(by_id) == len(every)
    assert [case.id for case in few if by_id.get(case.id) != case] == []
    assert {case.clause for case in few} == {case.clause for case in every}


def test_of_a_stream_that_does_not_say_whether_it_captures_the_module_is_asked() -> None:
    """As torch 2.11's streams do not: the module says it of the current one."""
    entered: list[str] = []

    class Silent:
        def __enter__(self) -> None:
            entered.append("stream")

        def __exit__(self, *error: object) -> None:
            entered.clear()

    class Module:
        def own(self, role: str) -> Any:
            return lambda: [role, *entered] == ["is_capturing", "stream"]

    ask: Any = CaseContext.is_capturing
    assert ask(Module(), Silent()) is True and not entered
    Silent.is_capturing = lambda self: False  # type: ignore[attr-defined]
    assert ask(Module(), Silent()) is False


def test_what_a_case_says_is_whole_sentences() -> None:
    cases = planned_cases(contract.load(), more=True)
    assert cases and [case.id for case in cases if not case.statement.endswith(".")] == []
