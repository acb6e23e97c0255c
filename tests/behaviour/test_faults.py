"""Each planted fault fails its clauses of behaviour, and changes no cell outside its radius.

With the slow tests every fault is tried in all cells that it can reach; without, a fault of each family in a few cells of
every clause, but for those that compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from conformance import contract, suites
from conformance.checks.cases.script import script_of_case
from devices import registry
from devices.cell import CellKey, Outcome
from devices.descriptor import Descriptor
from devices.simulated.faults import Fault
from tests.behaviour import table
from tests.behaviour.server import Seen, Server, serving
from tests.plugin.running import environment
from tests.sampling import one_of_each_family

FAULTS = table.faults()
FAST = one_of_each_family(
    fault for fault in FAULTS.values() if not table.COMPILED.issuperset(fault.clauses)
)
SOME, ALL = "some cells", "all cells"
# Of module scope, so that pytest runs the tests of one fault one after another.
each_trial = pytest.mark.parametrize(
    ("cells", "fault"),
    [
        *(pytest.param(SOME, fault, id=f"{fault.name}-some") for fault in FAST),
        *(pytest.param(ALL, f, id=f.name, marks=pytest.mark.slow) for f in FAULTS.values()),
    ],
    scope="module",
)


@pytest.fixture(scope="module")
def server(cache: Path, shared: Path) -> Iterator[Server]:
    with serving(environment(cache)) as started:
        yield started


class Trials:
    """The clean runs and the trials of some or all cells, each made when it is first asked for."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._clean: dict[str, dict[CellKey, Seen]] = {}
        self._made: dict[tuple[str, str], table.Trial] = {}

    def clean(self, cells: str) -> dict[CellKey, Seen]:
        """The cells without a fault."""
        if cells not in self._clean:
            asked = table.some_cells() if cells == SOME else table.all_cells()
            found = self.server.run("", asked)
            assert [*found] == asked, "the process of the clean run ended early"
            self._clean[cells] = found
        return self._clean[cells]

    def of(self, cells: str, fault: Fault) -> table.Trial:
        if (cells, fault.name) not in self._made:
            given = {"enough": 2} if cells == SOME else {}
            made = table.trial(self.server, fault, self.clean(cells), **given)
            self._made[cells, fault.name] = made
        return self._made[cells, fault.name]


@pytest.fixture(scope="module")
def trials(server: Server) -> Trials:
    return Trials(server)


@pytest.fixture
def trial(cells: str, fault: Fault, trials: Trials) -> table.Trial:
    return trials.of(cells, fault)


@pytest.mark.parametrize("cells", [SOME, pytest.param(ALL, marks=pytest.mark.slow)])
def test_every_case_passes_without_a_fault(cells: str, trials: Trials) -> None:
    clean = trials.clean(cells)
    wrong = [f"{k}: {s.outcome}: {s.message}" for k, s in clean.items() if s.outcome != "pass"]
    assert wrong == []


def test_faults_of_the_fast_part_break_a_clause_of_every_family() -> None:
    broken, wanted = (
        {clause.partition(".")[0] for clause in clauses}
        for clauses in (
            (clause for fault in FAST for clause in fault.clauses),
            table.clauses_of_cases() - table.COMPILED,
        )
    )
    assert wanted - broken == set()


@pytest.mark.parametrize("clause", sorted(table.clauses_of_cases()))
def test_every_clause_has_a_fault(clause: str) -> None:
    assert [name for name, fault in FAULTS.items() if clause in fault.clauses] != []


def test_checked_clauses_of_cases_have_cases() -> None:
    wanted = {
        clause.id
        for clause in suites.checked(contract.load())
        if clause.unit == "case" and clause.family != "layout"
    }
    assert wanted - table.clauses_of_cases() == set()


@each_trial
def test_fault_fails_each_of_its_clauses(trial: table.Trial) -> None:
    assert trial.missed == []


@each_trial
def test_cells_outside_the_radius_stay_as_they_were(trial: table.Trial) -> None:
    assert trial.strays == []


@each_trial
def test_every_failure_has_a_repro(trial: table.Trial) -> None:
    without = [c for c, s in trial.seen.items() if s.outcome is Outcome.FAIL and not s.script]
    assert without == []


# Repro scripts


@pytest.fixture(scope="module")
def descriptor() -> Descriptor:
    return registry.get("simulated")


def first_of_each_suite() -> set[str]:
    """A clause of each suite."""
    by_suite = {
        suites.suite_of(clause): clause
        for clause in sorted(table.clauses_of_cases() - table.COMPILED)[::-1]
    }
    return {*by_suite.values()}


@pytest.mark.parametrize(
    ("cells", "clause"),
    [
        pytest.param(SOME, clause, id=clause)
        if clause in first_of_each_suite()
        else pytest.param(ALL, clause, id=clause, marks=pytest.mark.slow)
        for clause in sorted(table.clauses_of_cases())
    ],
)
def test_the_script_of_a_clause_exits_1_exactly_while_its_fault_is_on(
    cells: str,
    clause: str,
    trials: Trials,
    descriptor: Descriptor,
    tmp_path: Path,
) -> None:
    server = trials.server
    script, tried = tmp_path / "repro.py", []
    for fault, cell, text in islice(repros(cells, clause, trials, descriptor), 4):
        script.write_text(text, encoding="utf-8")
        on, off = server.run_script(fault.name, script), server.run_script("", script)
        assert off[0] == 0, f"{fault.name}, {cell}: {off[1]}"
        if on[0] == 1:
            assert on[1].startswith("FAIL: ")
            return
        # A race need not show every time, and a fault may keep the device from being opened at all.
        tried.append(f"{fault.name}, {cell}: {on}")
    raise AssertionError(tried)


def repros(
    cells: str, clause: str, trials: Trials, descriptor: Descriptor
) -> Iterator[tuple[Fault, CellKey, str]]:
    """Faults of a clause, cells that they fail, and the scripts; quick ones first."""
    for fault in FAULTS.values():
        if clause not in fault.clauses:
            continue
        made = trials.of(cells, fault)
        seen, caught = made.seen, made.caught(clause)
        for cell in sorted(caught, key=lambda c: (not seen[c].script, c.unit == "drawn", c.unit))[
            :2
        ]:
            text = seen[cell].script
            if not text:  # it died
                case = replace(suites.case_of(cell.clause, cell.unit, cell.variant), seconds=5.0)
                text = script_of_case(case, descriptor, dies=True)
            yield fault, cell, text


# Drawn programs


@pytest.mark.parametrize(
    ("name", "clause", "most"),
    [
        ("allocator.forget_free", "allocator.accounting", 3),
        ("allocator.reset_peak_to_zero", "allocator.peaks", 4),
        ("allocator.ignore_record_stream", "allocator.record_stream", 5),
    ],
)
def test_drawn_programs_catch_faults_and_are_shrunk(
    server: Server, name: str, clause: str, most: int
) -> None:
    cell = CellKey(clause, "drawn", "")
    seen = server.run(name, [cell])[cell]
    assert seen.outcome is Outcome.FAIL
    program, _, _ = seen.message.removeprefix("after ").partition(": ")
    assert 1 <= len(program.split("; ")) <= most, seen.message
    assert "    watch.judge([" in seen.script


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("allocator.reset_peak_to_zero", "allocator.peaks"),
        pytest.param(
            "allocator.ignore_record_stream", "allocator.record_stream", marks=pytest.mark.slow
        ),
        ("streams.ignore_wait", "streams.wait"),
        pytest.param(
            "streams.copy_ignores_peer_stream", "streams.cross_device", marks=pytest.mark.slow
        ),
        ("graphs.drop_node", "graphs.replay_equals_eager"),
        pytest.param("graphs.side_stream_not_captured", "graphs.fork_join", marks=pytest.mark.slow),
    ],
)
def test_the_script_of_a_drawn_program_exits_1_exactly_while_the_fault_is_on(
    name: str, clause: str, server: Server, tmp_path: Path
) -> None:
    [seen] = server.run(name, [CellKey(clause, "drawn", "")]).values()
    assert seen.outcome is Outcome.FAIL, seen.message
    script = tmp_path / "repro.py"
    script.write_text(seen.script, encoding="utf-8")
    on, off = server.run_script(name, script), server.run_script("", script)
    assert (on[0], off[0]) == (1, 0), f"{on[1]} {off[1]}"
