"""Planning a replay: from shapes alone, within ``--max-time``, without the calls that ``--max-elements`` leaves out."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import torch

from conformance.checks.cells import Recorder
from conformance.contract import load
from conformance.plan.planner import make_plan
from conformance.plan.selection import NothingSelected, without_units
from conformance.recordings import operands
from conformance.recordings.fidelity import fidelity_of
from conformance.recordings.outcomes import judge_calls, lines_of
from conformance.recordings.recorder import CallRecorder
from conformance.recordings.source import RecordedSource
from conformance.recordings.wire import FORMAT, Header, RecordedCall, RecordedTensor, Recording
from conformance.run.progress import OutOfTime, Planning
from conformance.suites import planned_op_checks
from devices import registry
from devices.cell import CellKey, Outcome, Verdict
from opinfo.exceptions import exceptions
from opinfo.plan import plan_spec
from opinfo.samples import probe
from reports.model import CellResult
from reports.replayed_calls import CallOutcome
from tests.recordings.running import conform

#: Together 3 GiB in float16: no test may draw them.
_HUGE = (2**15, 2**14)


def tensor_of(shape: tuple[int, ...], dtype: str = "float16") -> RecordedTensor:
    return RecordedTensor(dtype, shape)


def call_of(op: str, *shapes: tuple[int, ...], dtype: str = "float16", **more: Any) -> RecordedCall:
    tensors = tuple(tensor_of(each, dtype) for each in shapes)
    return RecordedCall(op, [{"tensor": n} for n in range(len(shapes))], more, tensors)


def source_of(*calls: RecordedCall) -> RecordedSource:
    return RecordedSource(Recording(Header(FORMAT, 1), calls), "0" * 16)


def planned(source: RecordedSource) -> dict[str, set[str]]:
    """The clauses that are planned for each call, by its op."""
    plan = make_plan(plan_spec("replay"), registry.get("cpu"), load(), source=source)
    found: dict[str, set[str]] = {}
    for cell in plan.cells:
        found.setdefault(cell.unit.partition(".")[0], set()).add(cell.clause)
    return found


def test_a_plan_draws_no_element(monkeypatch: pytest.MonkeyPatch) -> None:
    def draws(*_: object) -> None:
        raise AssertionError("a tensor was drawn while planning")

    monkeypatch.setattr(operands, "draw_tensor", draws)
    monkeypatch.setattr("conformance.recordings.source._MOST_ELEMENTS", 2**40)
    ones = RecordedCall("aten.ones.default", [[2**40]], {"dtype": None}, ())
    found = planned(
        source_of(
            call_of("aten.add.Tensor", _HUGE, _HUGE), call_of("aten.nonzero.default", _HUGE), ones
        )
    )
    assert {"layout.values", "layout.output_strides", "precision.trust"} <= found["add"]
    assert "layout.values" in found["nonzero"] and "layout.values" in found["ones"]


def a_program() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    net = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.LayerNorm(6), torch.nn.ReLU())
    found = net(x).softmax(1)
    found[found > 0.1].sum().backward()
    found.sum().item()
    torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5).step()
    torch.stft(torch.randn(40), 8, return_complex=True).abs()
    torch.nonzero(x > 0)
    torch._foreach_mul_([torch.ones(3)], 2.0)


def test_every_clause_that_applies_to_a_call_is_planned_from_its_shapes() -> None:
    recorder = CallRecorder()
    with recorder.recording_program():
        a_program()
    source = RecordedSource(recorder.recording(), "0" * 16)
    checks, more = planned_op_checks(load()), 0
    assert len(source.subjects()) > 30
    for subject in source.subjects().values():
        dtype = next(iter(subject.dtypes))
        by_values, by_shapes = (
            {
                check.clause
                for check in checks
                if check.applies(probe(subject, dtype, samples, exceptions()))
            }
            for samples in (source.samples(subject, dtype), source.shapes(subject, dtype))
        )
        assert by_values <= by_shapes, subject.id
        more += len(by_shapes - by_values)
    assert more < 0.02 * len(checks) * len(source.subjects()), "the plan is guesswork"


def test_a_clause_that_the_values_rule_out_is_reported_with_the_reason() -> None:
    recorder = Recorder("relu.default~000000", "float16", ["layout.values", "layout.bounds"])
    recorder.drop("layout.values", "the CPU raises")
    assert recorder.get("layout.values") is None and recorder.get("layout.bounds") is not None
    found = recorder.cells["layout.values"].to_outcome()
    assert (found.outcome, found.declared) == (Outcome.UNSUPPORTED, True)
    assert found.message == "the CPU raises"


def test_a_call_that_the_cpu_refuses_is_not_judged_and_says_why() -> None:
    call = call_of("aten.neg.default", (3,))
    key = CellKey("layout.values", call.name, "float16")
    result = CellResult(key=key, outcome=Outcome.UNSUPPORTED, verdict=Verdict.OK, note="no")
    (found,) = judge_calls(Recording(Header(FORMAT, 1), (call,)), {key: result}, {})
    assert (found.outcome, found.why) == (CallOutcome.NOT_JUDGED, "no")


def test_calls_are_left_out_by_the_elements_of_their_tensors_together() -> None:
    small, large = (
        call_of("aten.neg.default", (300,)),
        call_of("aten.add.Tensor", (20, 20), (20, 20)),
    )
    source = source_of(small, large)
    assert source.larger_than(799) == {large.name} and source.larger_than(800) == frozenset()
    cells = [CellKey("layout.values", each.name, "float16") for each in (small, large)]
    assert without_units(cells, {large.name}, "--max-elements") == cells[:1]
    with pytest.raises(NothingSelected, match="--max-elements leaves out every recorded call"):
        without_units(cells[1:], {large.name}, "--max-elements")


def test_the_elements_of_a_result_count_too() -> None:
    zeros = call_of("aten.zeros_like.default", (3,))
    large = msgspec.structs.replace(zeros, op="aten.new_zeros.default", args=[{"tensor": 0}, [900]])
    huge = msgspec.structs.replace(large, args=[{"tensor": 0}, [2**30]])
    source = source_of(zeros, large, huge)
    assert source.larger_than(899) == {large.name, huge.name}
    source.leave_out_large_results()
    assert source.left_out == {
        huge.name: "its result has more than 268,435,456 elements: 1,073,741,824"
    }
    assert [*source.subjects()] == [zeros.name, large.name]


def test_a_call_that_is_left_out_is_never_right() -> None:
    call = call_of("aten.neg.default", (3000,))
    recording = Recording(Header(FORMAT, 1), (call,))
    (found,) = judge_calls(recording, {}, {}, too_large={call.name})
    assert found.outcome is CallOutcome.LEFT_OUT
    assert list(lines_of([found], 2000)) == [
        "recorded calls: 1 left out (1 times)",
        "left out: calls with more than 2,000 elements (--max-elements), which were not tested",
    ]


@pytest.mark.parametrize("clauses", [(), ("layout.values",)])
def test_a_call_with_cells_that_did_not_run_is_not_right(clauses: tuple[str, ...]) -> None:
    call = call_of("aten.neg.default", (3,))
    keys = [CellKey(each, call.name, "float16") for each in clauses]
    passed = {key: CellResult(key=key, outcome=Outcome.PASS, verdict=Verdict.OK) for key in keys}
    recording = Recording(Header(FORMAT, 1), (call,))
    (found,) = judge_calls(recording, passed, {}, unfinished={call.name})
    assert found.outcome is CallOutcome.NOT_JUDGED
    assert found.why == "the run ended before every clause was checked"


def test_calls_that_the_run_did_not_make_are_not_made_for_the_fidelity() -> None:
    source = source_of(call_of("aten.neg.default", (3,)), call_of("aten.cos.default", (3,)))
    made, _ = source.subjects()
    assert fidelity_of(source, {made}).reasons["the run did not make the call"] == 1
    late = fidelity_of(source, {made}, deadline=time.time() - 1)
    assert late.reasons["not compared, because --max-time is over"] == 1 and late.exact == 0


def test_a_plan_that_takes_long_says_how_far_it_is() -> None:
    said: list[str] = []
    planning = Planning(said.append, "recorded calls")
    planning.step(1, 900)
    planning.due = time.monotonic() - 1
    planning.step(2, 900)
    planning.step(3, 900)
    assert said == ["planning: 2 of 900 recorded calls"]


def test_the_time_of_a_run_counts_while_it_is_planned() -> None:
    planning = Planning(print, "recorded calls", deadline=time.time() - 1)
    with pytest.raises(OutOfTime, match="over when 7 of 900 recorded calls were planned") as error:
        planning.step(7, 900)
    assert error.value.exit_code == 2


PROGRAM = """
import torch
x = torch.ones(2000)
print((x + x[:1]).sum(), x[:3].neg())
"""


@pytest.mark.slow
def test_a_replay_says_which_calls_it_leaves_out(tmp_path: Any) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    conform("record", "-o", "calls.jsonl", "--", "python", "program.py", folder=tmp_path)
    replay = ("replay", "calls.jsonl", "--device", "cpu", "-n", "0")
    done = conform(*replay, "--max-elements", "1999", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "partial run (--max-elements)" in done.stdout
    assert "left out: calls with more than 1,999 elements" in done.stdout
    assert "the run did not make the call: " in done.stdout
    late = conform(*replay, "--max-time", "0.001s", folder=tmp_path)
    assert late.returncode == 2 and "--max-time was over when 0 of " in late.stderr
