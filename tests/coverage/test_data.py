"""The data of the coverage: the map is fresh, each overload is judged or has a reason, and no entry is of no use."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from random import Random

import pytest
import torch

from conformance.contract import load
from conformance.coverage import measuring
from conformance.coverage.call_map import CALLS_FILE, call_map, decoded, encoded, judged_by
from conformance.coverage.kernels import overloads_of_aten, own_kernels
from conformance.coverage.measure import Measurement, measured, unit_of
from conformance.coverage.observer import observed_calls
from conformance.coverage.reasons import reason_for, reasons
from conformance.coverage.states import Coverage, State, rows_of
from opinfo.overload_calls import CALLS, OF_INTEGERS, WITH_TARGETS
from opinfo.overload_calls_nn import NETWORK_CALLS
from reports.weights import weights

pytestmark = pytest.mark.skipif(
    not str(torch.__version__).startswith(call_map().torch),
    reason=f"the map was measured with torch {call_map().torch}, and other versions have other overloads",
)

#: Units of which each calls something else: a composite, a backward overload, integers, an op that torch's database lacks, one
#: without values, and a case.
FRESH = (
    "nn.functional.linear",
    "nn.functional.relu",
    "gcd",
    "aten.bucketize.Scalar",
    "empty_like",
    "mlp_fused",
)


@pytest.fixture(scope="module")
def cpu() -> Coverage:
    own = own_kernels("cpu")
    return Coverage("cpu", "", "", 0, 0, rows_of(own, own, call_map(), weights()))


def test_each_overload_with_a_kernel_is_judged_or_has_a_reason(cpu: Coverage) -> None:
    without = [r.overload for r in cpu.overloads if r.state is not State.JUDGED and not r.reason]
    assert without == []


def test_no_judged_overload_has_a_reason_why_it_is_not(cpu: Coverage) -> None:
    judged = [r.overload for r in cpu.overloads if r.state is State.JUDGED]
    assert [name for name in judged if reason_for(name) is not None] == []


def test_each_reason_has_an_overload(cpu: Coverage) -> None:
    rest = [r.overload for r in cpu.overloads if r.state is not State.JUDGED]
    globs = [glob for reason in reasons() for glob in reason.overloads]
    assert [glob for glob in globs if not any(fnmatchcase(name, glob) for name in rest)] == []


def test_nearly_all_overloads_that_users_reach_are_judged(cpu: Coverage) -> None:
    judged, met = cpu.met
    assert judged >= 0.95 * met


def test_each_overload_that_a_public_model_calls_is_judged(cpu: Coverage) -> None:
    """Except those whose result has free values, of which other clauses judge what is not free."""
    rest = [r for r in cpu.overloads if r.models and r.state is not State.JUDGED]
    assert [
        r.overload for r in rest if not r.reason.startswith("the values of its result are free")
    ] == []


def test_the_map_names_overloads_and_clauses_that_exist() -> None:
    known, clauses = set(overloads_of_aten()), load().clauses
    calls = call_map()
    named = {name for overloads in calls.judged.values() for name in overloads} | {*calls.reached}
    assert named <= known
    assert {cell.partition("::")[0] for cell in calls.judged} <= {*clauses}


def test_the_file_of_the_map_is_as_it_would_be_written() -> None:
    calls = call_map()
    cases = {cell for cell in calls.judged if cell in calls.units}
    assert encoded(calls, cases) == CALLS_FILE.read_bytes()
    assert decoded(encoded(calls, cases)) == calls


def test_each_entry_of_what_judges_is_used() -> None:
    calls = [
        (cell.partition("::")[0], name) for cell, each in call_map().judged.items() for name in each
    ]
    judging = {clause for clause, _ in calls}
    assert {*judged_by().clauses} <= judging
    for entry in judged_by().cases:
        assert {*entry.clauses} <= judging
        for glob in entry.overloads:
            assert any(c in entry.clauses and fnmatchcase(name, glob) for c, name in calls), glob


@pytest.mark.slow
@pytest.mark.parametrize("glob", judged_by().values_free)
def test_an_overload_whose_values_are_free_would_be_judged_otherwise(
    glob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [each for each in judged_by().values_free if each != glob]
    monkeypatch.setattr(
        measuring, "sets_values", lambda name: not any(fnmatchcase(name, each) for each in others)
    )
    found = measured(["abs", "diff"]).result()
    assert any(fnmatchcase(name, glob) for each in found.judged.values() for name in each)


def test_each_overload_with_calls_of_its_own_is_judged_by_them() -> None:
    """Otherwise its calls would be of no use."""
    judging = call_map().judging()
    for name in (*CALLS, *NETWORK_CALLS, *WITH_TARGETS, *OF_INTEGERS):
        assert any(f"::aten.{name}" in cell for cell in judging.get(f"aten::{name}", ())), name


@pytest.mark.slow
def test_an_overload_with_free_values_would_be_judged_without_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called on the way to a result that is compared."""
    monkeypatch.setattr(measuring, "sets_values", lambda overload: True)
    found = measured(("cat", "diff", "mul")).result().judged
    judged = {name for overloads in found.values() for name in overloads}
    for glob in judged_by().values_free:
        assert any(fnmatchcase(name, glob) for name in judged), glob


@pytest.mark.slow
def test_the_map_has_each_op_and_case_that_would_be_measured() -> None:
    """If not, one was added or removed since: python -m conformance.coverage"""
    planned = {unit for item in Measurement().items() if (unit := unit_of(item)) is not None}
    measured_units = {*call_map().units}
    assert sorted(planned - measured_units) == [], "not in calls.json: measure the map again"
    assert sorted(measured_units - planned) == [], "only in calls.json: measure the map again"


def same_as_measured(units: Collection[str]) -> None:
    found = measured(units).result()
    names = {*found.units}
    assert names, "none of these ops and cases is in the plan"
    kept = {
        cell: overloads
        for cell, overloads in call_map().judged.items()
        if cell.partition("::")[2] in names or cell in names
    }
    assert found.judged == kept, "python -m conformance.coverage measures the map again"


@pytest.mark.slow
def test_the_map_of_some_ops_and_cases_is_fresh() -> None:
    same_as_measured(FRESH)


@pytest.mark.slow
def test_the_map_of_many_ops_is_fresh() -> None:
    """Drawn from the plan, so that an op that the map lacks is drawn too."""
    planned = sorted(item.unit for item in Measurement().items() if not item.is_case)
    same_as_measured(Random(7).sample(planned, 60))


@pytest.mark.slow
def test_torch_calls_what_is_said_to_be_called_inside_a_kernel_there() -> None:
    """The fast path of an encoder layer, of which the suite judges the result."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu").eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad(), torch.autograd.profiler.profile() as profile:
        layer(x)
    with torch.no_grad(), observed_calls() as above_the_kernels:
        layer(x)
    assert "aten::_addmm_activation" in {event.name for event in profile.function_events}
    assert "aten::_addmm_activation" not in above_the_kernels
    assert "aten::_transformer_encoder_layer_fwd" in above_the_kernels
    assert call_map().judging()["aten::_transformer_encoder_layer_fwd"]
    reason = reason_for("aten::_addmm_activation")
    assert reason is not None and "inside the kernel" in reason.why
