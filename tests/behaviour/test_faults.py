"""Each planted fault fails its clauses of behaviour, and changes no cell outside its radius."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import contract, suites
from devices.cell import CellKey, Outcome
from devices.simulated.faults import Fault
from tests.behaviour import table
from tests.behaviour.server import Seen, Server, serving
from tests.plugin.running import environment

FAULTS = table.faults()
each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS, scope="module")


@pytest.fixture(scope="module")
def server(cache: Path, shared: Path) -> Iterator[Server]:
    with serving(environment(cache)) as started:
        yield started


@pytest.fixture(scope="module")
def clean(server: Server) -> dict[CellKey, Seen]:
    """Every case without a fault."""
    return server.run("", table.all_cells())


@pytest.fixture(scope="module")
def trials(server: Server, clean: dict[CellKey, Seen]) -> dict[str, table.Trial]:
    return {}


@pytest.fixture
def trial(
    fault: Fault, server: Server, clean: dict[CellKey, Seen], trials: dict[str, table.Trial]
) -> table.Trial:
    if fault.name not in trials:
        trials[fault.name] = table.trial(server, fault, clean)
    return trials[fault.name]


def test_every_case_passes_without_a_fault(clean: dict[CellKey, Seen]) -> None:
    wrong = [f"{k}: {s.outcome}: {s.message}" for k, s in clean.items() if s.outcome != "pass"]
    assert wrong == []
    assert set(clean) == set(table.all_cells())


@pytest.mark.parametrize("clause", sorted(table.clauses_of_cases()))
def test_every_clause_has_a_fault(clause: str) -> None:
    assert [name for name, fault in FAULTS.items() if clause in fault.clauses] != []


def test_checked_clauses_of_cases_have_cases() -> None:
    wanted = {
        clause.id
        for clause in suites.checked(contract.load())
        if clause.unit == "case" and clause.family != suites.LAYOUT
    }
    assert wanted - table.clauses_of_cases() == set()


@each_fault
def test_fault_fails_each_of_its_clauses(trial: table.Trial) -> None:
    assert trial.missed == []


@each_fault
def test_cells_outside_the_radius_stay_as_they_were(trial: table.Trial) -> None:
    assert trial.strays == []


@each_fault
def test_every_failure_has_a_repro(trial: table.Trial) -> None:
    without = [c for c, s in trial.seen.items() if s.outcome is Outcome.FAIL and not s.script]
    assert without == []


# Drawn programs


@pytest.mark.parametrize(
    ("name", "clause", "most"),
    [
        ("allocator.forget_free", "allocator.accounting", 3),
        ("allocator.reset_peak_to_zero", "allocator.peaks", 4),
        ("allocator.ignore_record_stream", "allocator.record_stream", 4),
    ],
)
def test_drawn_programs_catch_faults_and_are_shrunk(
    server: Server, name: str, clause: str, most: int
) -> None:
    cell = CellKey(clause, "drawn", "")
    seen = server.run(name, [cell])[cell]
    assert seen.outcome is Outcome.FAIL
    program, _, _ = seen.message.partition(": ")
    assert 1 <= len(program.removeprefix("after ").split("; ")) <= most, seen.message
    assert f'"function": "{"replay"}"' in seen.script
