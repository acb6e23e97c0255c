"""No toy: in a whole run of plan quick every op and every clause that applies to it is really checked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from junitparser import JUnitXml

from conformance.contract import FAMILIES
from conformance.plan.usage import known_layouts
from conformance.suites.layout import SUITE
from devices import registry
from devices.cell import Outcome, Verdict
from devices.failure import Kind
from opinfo.database import DATABASE
from opinfo.layouts import covering_set
from opinfo.plan import plan_spec
from reports.model import by_declaration
from reports.run import load_run
from tests.conftest import WholeRun
from tests.strangers.bench import known_of

pytestmark = pytest.mark.slow

#: Clauses of the layout suite that float32 cannot show: none.
NOT_IN_FLOAT32: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def plan(whole_run: WholeRun) -> dict[str, Any]:
    """The plan in the run's record."""
    document: dict[str, Any] = msgspec.to_builtins(load_run(whole_run.folder).plan)
    return document


def test_every_planned_cell_has_an_outcome(whole_run: WholeRun, plan: dict[str, Any]) -> None:
    assert plan["partial"] is False
    assert set(whole_run.cells) == set(load_run(whole_run.folder).parsed.cells)
    assert Outcome.NOT_RUN not in {cell.outcome for cell in whole_run.cells.values()}


def test_every_op_and_clause_that_applies_has_an_executed_check(whole_run: WholeRun) -> None:
    """A process that died before its first check is a failure, and the only one without a check."""
    unchecked = [
        str(key)
        for key, cell in whole_run.cells.items()
        if cell.checks < 1 and not by_declaration(cell)
        if cell.failure is None or cell.failure.kind is not Kind.ENDED
    ]
    assert unchecked == []


def test_no_cell_is_an_error(whole_run: WholeRun) -> None:
    errors = [
        f"{key}: {cell.message}"
        for key, cell in whole_run.cells.items()
        if cell.outcome is Outcome.ERROR
    ]
    assert errors == []


def test_nothing_crashes_or_hangs(whole_run: WholeRun) -> None:
    bad = {Outcome.CRASH, Outcome.HANG}
    assert [str(key) for key, cell in whole_run.cells.items() if cell.outcome in bad] == []


def test_every_op_that_has_float32_is_planned_or_left_out_with_a_reason(
    whole_run: WholeRun, plan: dict[str, Any]
) -> None:
    planned = {key.unit for key in whole_run.cells if key.dtype == "float32"}
    left_out = {op for e in plan["exclusions"] if e["reason"].strip() for op in e["ops"]}
    ops = {op.id for op in DATABASE.subjects().values() if "float32" in op.dtypes}
    assert ops - planned - left_out == set()
    assert planned <= ops


def test_every_clause_of_the_suite_is_planned(whole_run: WholeRun) -> None:
    assert {check.clause for check in SUITE.op_checks} - {
        key.clause for key in whole_run.cells
    } == NOT_IN_FLOAT32


def test_layout_clauses_run_in_many_layouts(whole_run: WholeRun) -> None:
    # Pairs of shapes and factors fall together, so that not each op has all 36; most have.
    wanted = {case.id for case in covering_set().cases}
    ran = {
        key.unit: set(cell.ran_layouts) & wanted
        for key, cell in whole_run.cells.items()
        if key.clause == "layout.inputs_intact"
    }
    assert set().union(*ran.values()) == wanted
    assert sum(len(layouts) >= 10 for layouts in ran.values()) > 0.9 * len(ran)


def test_every_layout_that_a_report_names_may_stand_in_a_manifest(whole_run: WholeRun) -> None:
    named = {
        layout for cell in whole_run.cells.values() for layout in (*cell.layouts, *cell.ran_layouts)
    }
    assert named - known_layouts(registry.get("cpu")) == set()


def test_ops_with_many_samples_are_checked_on_several(whole_run: WholeRun) -> None:
    most = Counter(
        cell.samples
        for key, cell in whole_run.cells.items()
        if key.clause == "layout.inputs_intact"
    )
    assert max(most) > plan_spec("quick").samples  # upstream's, and those of the axes
    assert most[1] < 0.1 * sum(most.values())


def test_every_failing_cell_has_a_repro(whole_run: WholeRun) -> None:
    without = [
        str(key)
        for key, cell in whole_run.cells.items()
        if cell.outcome is Outcome.FAIL
        and not (cell.repro and (whole_run.folder / cell.repro).is_file())
    ]
    assert without == []


def test_without_expectations_every_cell_that_does_not_pass_is_a_regression(
    whole_run: WholeRun,
) -> None:
    bad = {Outcome.FAIL, Outcome.ERROR, Outcome.UNSUPPORTED}
    for cell in whole_run.cells.values():
        wrong = cell.outcome in bad and not cell.message.startswith(
            ("by declaration", "not on this machine")
        )
        assert cell.verdict is (Verdict.REGRESSION if wrong else Verdict.OK)


def test_the_known_faults_of_torch_s_cpu_are_found(whole_run: WholeRun) -> None:
    # Seen by hand, each with its repro: had one of them gone, its upstream issue would be closed.
    known = {
        ("layout.out_kept", "tril"),
        ("layout.bounds", "tril"),
        ("layout.expanded_read", "median"),
        ("layout.memory_format", "to"),
        ("layout.inplace", "addbmm"),
    }
    failing = {
        (key.clause, key.unit)
        for key, cell in whole_run.cells.items()
        if cell.outcome is Outcome.FAIL
    }
    assert known <= failing


def test_every_cell_that_fails_is_in_the_manifest(whole_run: WholeRun) -> None:
    # Of provisional clauses, too, which no gate looks at.
    known = known_of("cpu")
    red = (key for key, cell in whole_run.cells.items() if cell.outcome is Outcome.FAIL)
    assert [str(key) for key in red if known.expect(key) is None] == []


def test_an_unfiltered_run_exits_as_the_gate_does(whole_run: WholeRun) -> None:
    assert whole_run.ran.code == 1
    assert "red (exit 1)" in whole_run.ran.text


def test_the_junit_files_hold_every_cell_once(whole_run: WholeRun) -> None:
    suites = [JUnitXml.fromfile(str(path)) for path in whole_run.folder.glob("junit-*.xml")]
    cases = [(case.classname, case.name) for xml in suites for suite in xml for case in suite]
    wanted = [(key.clause, key.name) for key in whole_run.cells]
    assert sorted(cases) == sorted(wanted)


def test_nothing_that_the_run_needed_stays_behind(whole_run: WholeRun) -> None:
    left = {path.name for path in whole_run.folder.iterdir()}
    assert left <= {
        *(f"junit-{family}.xml" for family in FAMILIES),
        *("run.conform", "repro", "journal"),
        *("failures.json", "failures.md"),
    }
    assert not list(Path(whole_run.folder, "journal").glob("*"))
