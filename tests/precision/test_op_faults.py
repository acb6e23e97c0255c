"""Each planted fault of the precision suite fails its clause, and changes no cell outside its radius."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.cell import Outcome
from devices.simulated.backend.fault_switches import planted
from devices.simulated.faults import Fault
from tests.dispatch.test_op_faults import exit_status
from tests.precision.rig import FAULTS_OF_PRECISION, RIG
from tests.trials import Bench, Trials, not_passing

each_fault = pytest.mark.parametrize(
    "fault", FAULTS_OF_PRECISION.values(), ids=FAULTS_OF_PRECISION, scope="module"
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(RIG, tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench, FAULTS_OF_PRECISION)


def test_every_cell_passes_without_a_fault(bench: Bench) -> None:
    assert not_passing(bench) == []


@each_fault
def test_fault_fails_its_clause_wherever_it_is_planted(fault: Fault, trials: Trials) -> None:
    assert (trials[fault.name].missed, trials[fault.name].untouched) == ([], [])


@each_fault
def test_cells_outside_the_radius_stay_as_they_were(fault: Fault, trials: Trials) -> None:
    assert [str(change) for change in trials[fault.name].strays] == []


@each_fault
def test_script_of_a_failure_fails_with_the_fault_and_passes_without(
    fault: Fault, trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (record, *_) = trials[fault.name].caught(fault.clauses[0])
    assert record.outcome() is Outcome.FAIL
    assert record.smallest is not None and record.smallest.repro is not None
    script = record.smallest.script()
    with planted(fault.name):
        assert exit_status(script) == 1
    assert exit_status(script) == 0
