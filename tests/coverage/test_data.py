"""The data of the coverage: the map is fresh, each overload is judged or has a reason, and no entry is of no use."""

from __future__ import annotations

from fnmatch import fnmatchcase
from random import Random

import pytest
import torch

from conformance.contract import load
from conformance.coverage.calls import CALLS_FILE, call_map, decoded, encoded, judged_by
from conformance.coverage.kernels import overloads_of_aten, own_kernels
from conformance.coverage.measure import measured
from conformance.coverage.reasons import reason_for, reasons
from conformance.coverage.states import Coverage, State, rows_of
from conformance.coverage.weights import weights
from opinfo.overload_calls import CALLS, OF_INTEGERS, WITH_TARGETS
from opinfo.overload_calls_nn import NETWORK_CALLS

pytestmark = pytest.mark.skipif(
    not str(torch.__version__).startswith(call_map().torch),
    reason=f"the map was measured with torch {call_map().torch}, and other versions have other overloads",
)

#: Ops of which each calls something else: one overload, a composite, a backward overload, out=, integers, a random one.
FRESH = (
    "add",
    "nn.functional.linear",
    "nn.functional.relu",
    "cumsum",
    "gcd",
    "aten.bucketize.Scalar",
    "randn_like",
)


@pytest.fixture(scope="module")
def cpu() -> Coverage:
    own = own_kernels("cpu")
    return Coverage("cpu", "", "", 0, rows_of(own, own, call_map(), weights()))


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
    rest = [r.overload for r in cpu.overloads if r.models and r.state is not State.JUDGED]
    assert rest == []


def test_the_map_names_overloads_and_clauses_that_exist() -> None:
    known, clauses = set(overloads_of_aten()), load().clauses
    calls = call_map()
    named = {name for overloads in calls.judged.values() for name in overloads} | {*calls.reached}
    assert named <= known
    assert {cell.partition("::")[0] for cell in calls.judged} <= {*clauses}


def test_the_file_of_the_map_is_as_it_would_be_written() -> None:
    calls = call_map()
    cases = {cell for cell in calls.judged if cell.partition("::")[0] not in judged_by().clauses}
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


def test_each_overload_with_calls_of_its_own_is_judged_by_them() -> None:
    """Otherwise its calls would be of no use."""
    judging = call_map().judging()
    for name in (*CALLS, *NETWORK_CALLS, *WITH_TARGETS, *OF_INTEGERS):
        assert any(f"::aten.{name}" in cell for cell in judging.get(f"aten::{name}", ())), name


def same_as_measured(units: tuple[str, ...]) -> None:
    found = measured(units).result().judged
    kept = {c: each for c, each in call_map().judged.items() if c.partition("::")[2] in units}
    assert found == kept


@pytest.mark.slow
def test_the_map_is_fresh() -> None:
    """If not: python -m conformance.coverage"""
    ops = sorted({cell.partition("::")[2] for cell in call_map().judged})
    same_as_measured((*FRESH, *Random(7).sample(ops, 60)))
