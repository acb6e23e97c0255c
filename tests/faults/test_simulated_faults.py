"""Each planted fault of the simulated device fails its clauses, and changes no cell outside its radius."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import contract
from conformance.contract import Status
from devices.simulated.backend import library
from devices.simulated.backend.fault_switches import (
    UnknownFault,
    planted,
    switch_on_from_environment,
)
from devices.simulated.descriptor import DESCRIPTOR
from devices.simulated.faults import FAULTS, UNPLANTED, Fault, FaultsError, read_faults
from tests import table
from tests.plugin.running import CHECKOUT
from tests.sampling import one_of_each_clause, trials_of
from tests.simulated.rig import ITEMS, LAYOUT, RIG
from tests.trials import Bench, Trial, Trials, not_passing, planted_items

CLAUSES = contract.load().clauses
RUN = {check.clause for check in RIG.checks}  # layout.grad is another suite's
CHECKED = [
    clause
    for clause in CLAUSES.values()
    if clause.id in RUN and clause.family == "layout" and clause.status is Status.CHECKED
]

# Of module scope, so that pytest runs the tests of one fault one after another: on one worker of xdist.
each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS, scope="module")
each_layout_fault = pytest.mark.parametrize("fault", LAYOUT.values(), ids=LAYOUT, scope="module")
#: What runs the suite with a fault on. The fast tests try every clause.
each_trial = pytest.mark.parametrize("fault", trials_of(LAYOUT), scope="module")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(RIG, tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Iterator[Trials]:
    """The trials so far; with ``-s`` their table is printed at the end."""
    made = Trials(bench, FAULTS)
    yield made
    print("", *table.lines(made.values()), sep="\n")


@pytest.fixture
def trial(fault: Fault, trials: Trials) -> Trial:
    return trials[fault.name]


# The clean run


def test_every_cell_passes_without_a_fault(bench: Bench) -> None:
    assert not_passing(bench) == []


def test_every_checked_clause_has_a_fault() -> None:
    broken = {clause for fault in LAYOUT.values() for clause in fault.clauses}
    assert broken == {clause.id for clause in CHECKED}


def test_every_clause_has_a_fault_or_a_reason_why_it_has_none() -> None:
    broken = {clause for fault in FAULTS.values() for clause in fault.clauses}
    declared = {
        clause.id for clause in CLAUSES.values() if set(clause.requires) <= DESCRIPTOR.capabilities
    }
    assert declared - broken == set()
    assert broken & UNPLANTED.keys() == set() and UNPLANTED.keys() <= CLAUSES.keys()


# Each fault


#: Without a probe: these show only in compiled code, in a profile, or among several processes, which takes as much code as the
#: cases that notice them (tests/behaviour/test_faults.py tries each).
_SHOWN_BY_CASES = ("profiler.", "distributed.", "sharing.")
_ALSO_SHOWN_BY_CASES = frozenset(
    f"compile.{clause}"
    for clause in ("programs", "autograd", "stride_tags", "nested", "export", "device_interface")
)
PROBED = {
    name: fault
    for name, fault in FAULTS.items()
    if not name.startswith(_SHOWN_BY_CASES) and not _ALSO_SHOWN_BY_CASES & {*fault.clauses}
}


class Probes:
    """What every probe says with its fault off, on and off again: of the fast tests' faults and of the others."""

    def __init__(self) -> None:
        fast = {fault.name for fault in one_of_each_clause(PROBED.values())}
        self._groups = [sorted(fast), sorted(PROBED.keys() - fast)]
        self._said: dict[str, tuple[bool, bool, bool]] = {}

    def of(self, name: str) -> tuple[bool, bool, bool]:
        if name not in self._said:
            (group,) = (each for each in self._groups if name in each)
            self._said |= self._run(group)
        return self._said[name]

    def _run(self, names: list[str]) -> dict[str, tuple[bool, bool, bool]]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulated.probing", *names],
            cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        return {name: (before, during, after) for name, before, during, after in lines}


@pytest.fixture(scope="module")
def probes() -> Probes:
    return Probes()


@pytest.mark.parametrize("fault", trials_of(PROBED), scope="module")
def test_probe_sees_the_fault_while_it_is_on(fault: Fault, probes: Probes) -> None:
    assert probes.of(fault.name) == (False, True, False)


@each_trial
def test_fault_fails_each_of_its_clauses(trial: Trial) -> None:
    assert trial.missed == []


@each_trial
def test_fault_is_caught_wherever_it_is_planted(trial: Trial) -> None:
    assert trial.untouched == []


@each_trial
def test_cells_outside_the_radius_stay_as_they_were(trial: Trial) -> None:
    assert [str(change) for change in trial.strays] == []


# The registry


@each_layout_fault
def test_fault_is_planted_in_ops_that_are_run(fault: Fault) -> None:
    assert {op for op, _ in planted_items(RIG, fault)} == set(fault.ops)


@each_layout_fault
def test_fault_says_where_it_is_planted(fault: Fault) -> None:
    assert library.fault_places(fault.name)


def test_registry_and_library_know_the_same_faults() -> None:
    assert sorted(library.fault_names()) == sorted(FAULTS)


def test_no_item_is_run_twice() -> None:
    assert len(set(ITEMS)) == len(ITEMS)


GOOD = """
[radius]
order = ["streams.*"]
[unplanted]
[[fault]]
name = "out.restride"
clauses = ["layout.out_kept"]
statement = "out= becomes contiguous."
radius = ["order", "layout.bounds::add"]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[[fault]]", "[fault", "faults.toml: expected a file of valid TOML"),
        ("statement =", "#", r"\[\[fault\]\] 'out\.restride': .*required field `statement`"),
        ("name =", "#", r"\[\[fault\]\] 1: .*required field `name`"),
        ("radius =", "radii =", "'out.restride': .*unknown field `radii`"),
        ('["order"', '["ordre"', "'out.restride': .*got 'ordre'; did you mean 'order'"),
    ],
)
def test_a_malformed_table_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = tmp_path / "faults.toml"
    file.write_text(GOOD)
    faults, _ = read_faults(file)
    assert faults["out.restride"].radius == ("streams.*", "layout.bounds::add")
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(FaultsError, match=says):
        read_faults(file)


def test_a_name_that_is_used_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text(GOOD + GOOD[GOOD.index("[[fault]]") :])
    with pytest.raises(FaultsError, match=r"'out\.restride': the name is used twice"):
        read_faults(file)


# Switching


def test_unknown_fault_is_answered_with_near_names() -> None:
    message = r"no fault 'out\.restrid'; did you mean 'out\.restride'"
    with pytest.raises(UnknownFault, match=message), planted("out.restrid"):
        pass


def test_a_block_leaves_the_switches_as_they_were() -> None:
    with planted("out.restride"):
        with planted("out.restride", "out.reallocate"):
            assert set(library.faults_that_are_on()) == {"out.restride", "out.reallocate"}
        assert library.faults_that_are_on() == ["out.restride"]
    assert library.faults_that_are_on() == []


def test_environment_switches_faults_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_FAULTS", "out.restride, out.reallocate")
    with planted():  # puts things back
        switch_on_from_environment()
        assert set(library.faults_that_are_on()) == {"out.restride", "out.reallocate"}
    assert library.faults_that_are_on() == []
