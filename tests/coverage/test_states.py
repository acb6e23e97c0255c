"""The state of each overload: judged, reached, never called or missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.coverage import states
from conformance.coverage.call_map import CallMap, JudgedBy, JudgedByCases, decoded, encoded
from conformance.coverage.reasons import Reason
from conformance.coverage.states import Coverage, Row, State, cells_of, chosen, rows_of
from devices.cell import CellKey, Outcome, Use
from reports.run import write_run
from reports.weights import Package, Weight, Weights, use_of
from tests.reports.builders import ADD, BOUNDS, CONV, PROVENANCE, failed, passed, plan_document

CALLS = CallMap(
    "2.13.0",
    "quick",
    ("add", "optim.foreach::add", "optim.foreach::judges_nothing", "zeros"),
    {
        "layout.values::add": ("aten::add.Tensor",),
        "layout.variants::add": ("aten::add.Tensor", "aten::add.out"),
        "optim.foreach::add": ("aten::_foreach_add.List",),
    },
    {"aten::zero_": ("layout.values::add",)},
)
WEIGHTS = Weights(
    "made up",
    "2.13.0",
    {"zoo": Package("1.0", "MIT")},
    ("a", "b", "c"),
    ("d",),
    {"aten::add.Tensor": Weight(3, 40), "aten::lost": Weight(2, 2)},
    {"add": Weight(3, 50), "nn.functional.pad": Weight(1, 1), "softmax": Weight(2, 7)},
)


@pytest.fixture(autouse=True)
def _reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    internal = Reason("nobody calls it", False, ("aten::*.grad_input",))
    monkeypatch.setattr(
        states, "reason_for", lambda name: internal if internal.covers(name) else None
    )
    monkeypatch.setattr(states, "is_shared", lambda name: name == "aten::shared")


def found(*own: str, cells: set[str] | None = None) -> dict[str, Row]:
    return {row.overload: row for row in rows_of(own, (), CALLS, WEIGHTS, cells)}


def test_an_overload_is_judged_by_the_cells_whose_judged_calls_dispatch_to_it() -> None:
    row = found("aten::add.Tensor")["aten::add.Tensor"]
    assert (row.state, row.judged_by) == (
        State.JUDGED,
        ("layout.values::add", "layout.variants::add"),
    )
    assert (row.models, row.calls) == (3, 40)


def test_an_overload_that_is_only_called_is_reached() -> None:
    row = found("aten::zero_")["aten::zero_"]
    assert (row.state, row.reached_by) == (State.REACHED, ("layout.values::add",))


def test_an_overload_that_nothing_calls_has_its_reason() -> None:
    row = found("aten::elu.grad_input")["aten::elu.grad_input"]
    assert (row.state, row.reason, row.users) == (State.NEVER_CALLED, "nobody calls it", False)


def test_an_overload_is_missing_if_only_the_cpu_has_a_kernel() -> None:
    rows = rows_of(
        ("aten::add.Tensor",), ("aten::add.Tensor", "aten::shared", "aten::lost"), CALLS, WEIGHTS
    )
    by_name = {row.overload: row for row in rows}
    assert by_name["aten::add.Tensor"].state is State.JUDGED
    assert by_name["aten::lost"].state is by_name["aten::shared"].state is State.MISSING
    assert by_name["aten::lost"].reason != by_name["aten::shared"].reason


def test_in_a_run_only_cells_with_a_verdict_count() -> None:
    rows = found("aten::add.Tensor", "aten::add.out", cells={"layout.values::add"})
    assert rows["aten::add.Tensor"].judged_by == ("layout.values::add",)
    assert rows["aten::add.out"].state is State.NEVER_CALLED
    assert rows["aten::add.out"].reached_by == ("layout.variants::add",)


def test_a_crash_or_an_untried_cell_judges_nothing(tmp_path: Path) -> None:
    results = [
        passed(ADD),
        failed(CONV),
        failed(BOUNDS, outcome=Outcome.CRASH, failure=None, failed=0),
    ]
    run = write_run(
        tmp_path, plan_document([r.key for r in results]), {r.key: r for r in results}, PROVENANCE
    )
    assert cells_of(run) == {"layout.values::add", "layout.values::nn.functional.conv2d"}


def test_the_overloads_that_most_models_call_come_first() -> None:
    rows = rows_of(("aten::zero_", "aten::lost", "aten::add.Tensor"), (), CALLS, WEIGHTS)
    assert [row.overload for row in rows] == ["aten::add.Tensor", "aten::lost", "aten::zero_"]


def test_rows_are_chosen_by_state_and_by_name() -> None:
    rows = found("aten::add.Tensor", "aten::add.out", "aten::zero_").values()
    assert {r.overload for r in chosen(rows, (State.REACHED,), ())} == {"aten::zero_"}
    for glob in ("add", "add.*", "aten::add*"):
        assert {r.overload for r in chosen(rows, (), (glob,))} == {
            "aten::add.Tensor",
            "aten::add.out",
        }
    assert chosen(rows, (State.REACHED,), ("add",)) == []


def test_the_share_counts_what_users_reach_and_the_device_has() -> None:
    rows = (
        Row("a", State.JUDGED),
        Row("b", State.REACHED),
        Row("c", State.NEVER_CALLED, users=False),
        Row("d", State.MISSING),
    )
    assert Coverage("cpu", "2.13.0", "2.13.0", 3, 0, rows).met == (1, 2)


def test_a_map_is_read_as_it_was_written() -> None:
    assert decoded(encoded(CALLS, {"optim.foreach::add"})) == CALLS


def test_a_case_judges_only_the_overloads_that_are_listed_for_its_clause() -> None:
    judged = JudgedBy((), (), (JudgedByCases(("optim.foreach",), ("aten::_foreach_*",)),))
    assert judged.takes("optim.foreach", "aten::_foreach_add.List")
    assert not judged.takes("optim.foreach", "aten::zeros")
    assert not judged.takes("streams.wait", "aten::_foreach_add.List")


@pytest.mark.parametrize(
    ("op", "models"),
    [("add", 3), ("__add__", 3), ("nn.functional.pad.reflect", 1), ("softmax.with_dtype", 2),
     ("nn.functional.softmax", 2), ("aten.add.Tensor", 3), ("add.Tensor~3fa2c1", 3), ("sinc", 0)],
)  # fmt: skip
def test_the_weight_of_an_op_is_that_of_its_function_or_overload(op: str, models: int) -> None:
    assert WEIGHTS.of_op(op).models == models


def test_only_cells_of_ops_that_a_model_calls_have_a_use() -> None:
    use = use_of(CellKey("layout.values", "add", "float32"))
    assert isinstance(use, Use)
    assert 0 < use.models <= use.of
    assert use_of(CellKey("layout.values", "polygamma.polygamma_n_0", "float32")) is None
    assert use_of(CellKey("streams.wait", "add", "")) is None
