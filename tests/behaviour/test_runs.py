"""Cases in a run of the suite: planned, selected, run, reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance import contract, suites
from conformance.plan.planner import make_plan
from conformance.plan.selection import NothingSelected, select
from devices import registry
from devices.cell import CellKey, Outcome, Verdict
from opinfo.plan import Plan, PlanSpec
from reports.model import by_declaration
from reports.run import load_run
from tests.plugin.running import ForkServer, cells_of
from tests.plugin.test_options import request_of

CASES = {c.cell for c in suites.planned_cases(contract.load(), more=False)}
ACCOUNTING = {cell for cell in CASES if cell.clause == "allocator.accounting"}


def document(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.to_builtins(load_run(folder).plan)
    return read


def test_cases_are_run_beside_ops_and_named_as_they_are(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *("--device=simulated", "--clauses=allocator.accounting"),
        *("-v", f"--results={tmp_path / 'run'}", "--expectations=none"),
    )
    assert ran.code == 0, ran.text
    assert (
        "test_conformance.py::test_conformance[allocator-allocator.accounting-one_byte]" in ran.text
    )
    assert set(cells_of(tmp_path / "run")) == ACCOUNTING
    assert {cell.outcome for cell in cells_of(tmp_path / "run").values()} == {Outcome.PASS}


def test_a_fault_fails_the_run_with_a_repro(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *("--device=simulated", "--clauses=allocator.peaks", "-k", "reset or running_maximum"),
        *(f"--results={tmp_path / 'run'}", "--expectations=none"),
        SIMULATED_FAULTS="allocator.reset_peak_to_zero",
    )
    assert ran.code == 1, ran.text
    cells = cells_of(tmp_path / "run")
    failed = {key.unit for key, cell in cells.items() if cell.outcome is Outcome.FAIL}
    assert failed == {"reset", "reset_of_each"} and {key.unit for key in cells} == {
        "reset",
        "reset_of_each",
        "running_maximum",
    }
    repro = cells[CellKey("allocator.peaks", "reset", "")].repro
    assert repro == "repro/allocator.peaks/reset.py"
    assert "def reset(context: CaseContext) -> None:" in (tmp_path / "run" / repro).read_text()


def test_ops_leave_cases_out_and_say_so(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        "--device=cpu", "--ops=neg", f"--results={tmp_path / 'run'}", "--expectations=none"
    )
    assert ran.code == 0, ran.text
    assert re.search(r"--ops leaves out [\d,]+ cells that are not about one operator", ran.text)
    assert {key.unit for key in cells_of(tmp_path / "run")} == {"neg"}
    assert {"neg"} & {cell.unit for cell in CASES}  # there are cases of that name
    assert all(key.dtype for key in cells_of(tmp_path / "run"))


def test_what_cpu_does_not_declare_is_told_and_not_passed(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *("--device=cpu", "--clauses=allocator.*", f"--results={tmp_path / 'run'}"),
        "--expectations=none",
    )
    assert ran.code == 0, ran.text
    cells = cells_of(tmp_path / "run")
    passed = {key.clause for key, cell in cells.items() if cell.outcome is Outcome.PASS}
    assert passed == {"allocator.disjoint", "allocator.contents", "allocator.steady"}
    for cell in cells.values():
        assert cell.verdict is Verdict.OK
        assert by_declaration(cell) or cell.checks > 0
    untried = document(tmp_path / "run")["untried"]["allocator.disjoint"]
    assert untried["nothing"].endswith("the descriptor does not declare allocator_statistics")


# Plans


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    device = registry.get("cpu")
    return {
        name: make_plan(PlanSpec(name, ("none",), 1, more), device, contract.load())
        for name, more in (("few", False), ("more", True))
    }


def test_a_plan_holds_every_case_of_checked_clauses(plans: dict[str, Plan]) -> None:
    assert {cell for cell in plans["few"].cells if not cell.dtype} == CASES


def test_a_larger_plan_draws_more_and_hashes_otherwise(plans: dict[str, Plan]) -> None:
    assert set(plans["more"].cells) > CASES
    assert plans["more"].hash != plans["few"].hash


def test_selecting_ops_where_there_are_none_says_what_is_wrong(plans: dict[str, Plan]) -> None:
    from _pytest.config.argparsing import Parser

    request = request_of(Parser(_ispytest=True), "--clauses", "allocator.reuse")
    chosen = select(plans["few"], request, frozenset({"allocator.reuse"}))
    assert {cell.clause for cell in chosen} == {"allocator.reuse"}
    with pytest.raises(NothingSelected):
        select(plans["few"], request, frozenset({"layout.values"}))
