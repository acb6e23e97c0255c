"""Each planted fault fails its clauses on the wrapped device, and changes no cell outside its radius."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance import contract
from conformance.contract import Status
from conformance.suites import suite_of
from tests import table
from tests.sampling import trials_of
from tests.trials import Bench, Trial, Trials, not_passing, planted_items
from tests.wrapped.descriptor import DESCRIPTOR
from tests.wrapped.faults import (
    REGISTRY,
    Fault,
    FaultConflict,
    UnknownFault,
    plant_from_environment,
    planted,
)
from tests.wrapped.scripts import exit_status
from tests.wrapped.trial import ITEMS, RIG

CHECKED = [
    clause
    for clause in contract.load().clauses.values()
    if suite_of(clause.id) == "layout" and clause.status is Status.CHECKED
]

# Of module scope, so that pytest runs the tests of one fault one after another: on one worker of xdist.
each_fault = pytest.mark.parametrize("fault", REGISTRY.values(), ids=REGISTRY, scope="module")
#: What runs the suite with a fault on. The fast tests try every clause.
each_trial = pytest.mark.parametrize("fault", trials_of(REGISTRY), scope="module")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(RIG, tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Iterator[Trials]:
    """The trials so far; with ``-s`` their table is printed at the end."""
    made = Trials(bench, REGISTRY)
    yield made
    print("", *table.lines(made.values()), sep="\n")


@pytest.fixture
def trial(fault: Fault, trials: Trials) -> Trial:
    return trials[fault.name]


# The clean run


def test_every_cell_passes_without_a_fault(bench: Bench) -> None:
    assert not_passing(bench) == []


def test_every_checked_clause_has_a_cell(bench: Bench) -> None:
    there = {key.clause for run in bench.clean.values() for key in run.cells}
    assert there == {clause.id for clause in CHECKED}


def test_the_device_declares_what_the_clauses_require() -> None:
    required = {name for clause in CHECKED for name in clause.requires}
    assert required <= DESCRIPTOR.capabilities


# Each fault


@each_fault
def test_probe_sees_the_fault_while_it_is_on(fault: Fault) -> None:
    before = fault.probe()
    with planted(fault.name):
        during = fault.probe()
    assert (before, during, fault.probe()) == (False, True, False)


@each_trial
def test_fault_fails_each_of_its_clauses(trial: Trial) -> None:
    assert trial.missed == []


@each_trial
def test_fault_is_caught_wherever_it_is_planted(trial: Trial) -> None:
    assert trial.untouched == []


@each_trial
def test_cells_outside_the_radius_stay_as_they_were(trial: Trial) -> None:
    assert [str(change) for change in trial.strays] == []


@each_trial
def test_repro_exits_1_exactly_while_the_fault_is_on(trial: Trial) -> None:
    wrong = []
    for clause in trial.fault.clauses:
        for record in trial.caught(clause):
            assert record.smallest is not None
            assert record.smallest.repro is not None, record.key
            script = record.smallest.script()
            with planted(trial.fault.name):
                on = exit_status(script)
            off = exit_status(script)
            if (on[0], off[0]) != (1, 0):
                wrong.append((str(record.key), record.to_outcome().message, on, off))
    assert wrong == []


@pytest.mark.slow
def test_every_kind_of_check_is_failed_by_some_fault(bench: Bench, trials: Trials) -> None:
    """A layout that no fault can fail is a check that may be unable to fail."""
    ran = {name for run in bench.clean.values() for r in run.cells.values() for name in r.ran}
    failed = {
        name
        for fault in REGISTRY.values()
        for clause in fault.clauses
        for record in trials[fault.name].caught(clause)
        for name in record.failing
    }
    assert sorted(ran - failed) == []


# The registry


@pytest.mark.parametrize("clause", CHECKED, ids=lambda clause: clause.id)
def test_contract_names_the_faults_that_are_registered(clause: contract.Clause) -> None:
    registered = {fault.name for fault in REGISTRY.values() if clause.id in fault.clauses}
    assert registered - set(clause.faults) == set()
    assert set(clause.wrapped_faults) - registered == set()


@each_fault
def test_fault_breaks_clauses_that_are_checked(fault: Fault) -> None:
    assert set(fault.clauses) <= {clause.id for clause in CHECKED}


@each_fault
def test_fault_is_planted_in_ops_that_are_run(fault: Fault) -> None:
    assert {op for op, _ in planted_items(RIG, fault)} == set(fault.ops)


def test_no_item_is_run_twice() -> None:
    assert len(set(ITEMS)) == len(ITEMS)


# Switching


def test_unknown_fault_is_answered_with_near_names() -> None:
    message = r"no fault 'stride\.swap_last'; did you mean 'stride\.swap_last_two'"
    with pytest.raises(UnknownFault, match=message), planted("stride.swap_last"):
        pass


def test_a_fault_that_is_named_twice_is_switched_on_once() -> None:
    """pytest loads the descriptor's file in the controller and again for its checks."""
    with planted("special.max_drops_nan", "special.max_drops_nan"):
        assert REGISTRY["special.max_drops_nan"].probe()
    assert not REGISTRY["special.max_drops_nan"].probe()


def test_two_faults_of_one_kernel_cannot_be_on_together() -> None:
    message = r"'stride\.always_contiguous' replaces aten\.sub\.Tensor"
    with (
        pytest.raises(FaultConflict, match=message),
        planted("promotion.first_operand_decides", "stride.always_contiguous"),
    ):
        pass


def test_faults_of_different_kernels_can_be_on_together() -> None:
    names = ("values.ignore_strides", "values.ignore_storage_offset")
    with planted(*names):
        assert [REGISTRY[name].probe() for name in names] == [True, True]


def test_environment_switches_faults_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRAPPED_FAULTS", "values.ignore_strides, special.max_drops_nan")
    with planted():  # puts things back
        plant_from_environment()
        assert REGISTRY["values.ignore_strides"].probe()
    assert not REGISTRY["values.ignore_strides"].probe()
