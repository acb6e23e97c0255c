"""Cells that are unsupported by declaration: ok, counted apart, never a pass, and not to be forged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.checks.cells import Recorder
from devices.cell import Observed, Outcome, Verdict
from devices.manifest import Manifest
from devices.verdicts import Matcher, judge_cell
from reports.gate import ExitCode, gate
from reports.model import Run, RunError
from reports.run import load_run, write_run
from reports.summary import summarise
from tests.reports.builders import (
    ADD,
    BOUNDS,
    CELLS,
    CLAUSES,
    PROVENANCE,
    forge,
    passed,
    plan_document,
    results,
)
from tests.reports.independent import Parts

DECLARED = Observed(Outcome.UNSUPPORTED, declared=True)
RAISED = Observed(Outcome.UNSUPPORTED, raises="NotImplementedError", message="no kernel")
REFUSED = passed(BOUNDS, outcome=Outcome.UNSUPPORTED, checks=0)

BLOCK = """
[[expect]]
clause = "layout.*"
outcome = "{outcome}"
kind = "device-bug"
reason = "not there yet"
"""


def judged(observed: Observed, block: str | None = None) -> Verdict:
    expectation = None if block is None else Matcher(Manifest.parse(block)).expect(BOUNDS)
    return judge_cell(expectation, observed).verdict


def test_a_refusal_is_ok_by_declaration_alone() -> None:
    assert judged(DECLARED) is Verdict.OK
    assert judged(RAISED) is Verdict.REGRESSION


@pytest.mark.parametrize("outcome", ["fail", "crash", "unsupported"])
def test_a_block_over_what_is_not_declared_is_to_be_removed(outcome: str) -> None:
    assert judged(DECLARED, BLOCK.format(outcome=outcome)) is Verdict.IMPROVEMENT


def a_run(*refused: Any, **changed: Any) -> Run:
    return Run(Path(), plan_document(**changed), PROVENANCE, results(*refused))


def test_it_is_counted_apart_and_never_passes() -> None:
    run = a_run(REFUSED)
    result = gate(run)
    counts = result.counts
    assert result.exit_code is ExitCode.GREEN
    assert (counts.planned, counts.judged, counts.passed) == (5, 4, 4)
    assert (counts.declared, counts.unsupported) == (1, 0)
    assert "4 of 4 cells pass; 1 more is unsupported by declaration" in summarise(result)


def test_a_run_that_tried_nothing_is_not_green() -> None:
    refused = [msgspec.structs.replace(REFUSED, key=cell) for cell in CELLS]
    result = gate(a_run(*refused))
    assert result.exit_code is ExitCode.INFRASTRUCTURE
    assert "all are unsupported by declaration" in result.problems[0]


def test_what_is_declared_cannot_be_refused_by_declaration() -> None:
    with pytest.raises(RunError, match=r"layout\.bounds::add.* the plan declares everything"):
        a_run(REFUSED, capabilities={"storage": {"declared": True}})


def test_what_is_judged_after_something_was_passed_over_counts() -> None:
    record = Recorder("add", "float32", ["layout.values"], {}).cells["layout.values"]
    record.pass_over("a dtype that is not declared")
    told = record.to_outcome()
    assert (told.outcome, told.declared) == (Outcome.UNSUPPORTED, True)
    record.check(0, "contiguous")
    told = record.to_outcome()
    assert (told.outcome, told.declared) == (Outcome.PASS, False)


def test_a_forged_refusal_is_refused(tmp_path: Path) -> None:
    plan = plan_document(clauses=[{**c, "requires": []} for c in CLAUSES])
    failing = passed(ADD, outcome=Outcome.UNSUPPORTED, verdict=Verdict.REGRESSION, checks=1)
    write_run(tmp_path, plan, results(failing), PROVENANCE)
    parts = Parts.of(tmp_path)
    values = parts.fields["verdict"][0]
    values[values.index("regression")] = "ok"
    forge(tmp_path, parts.encoded())
    with pytest.raises(RunError, match="is recorded as unsupported by declaration"):
        load_run(tmp_path)


def test_no_check_is_given_the_record_of_an_undeclared_clause() -> None:
    clauses = ["layout.values", "layout.bounds"]
    recorder = Recorder("add", "float32", clauses, {"layout.bounds": "storage"})
    assert recorder.get("layout.values") and recorder.get("layout.bounds") is None
    document = recorder.cells["layout.bounds"].to_outcome()
    told = (document.outcome, document.declared, document.checks)
    assert told == (Outcome.UNSUPPORTED, True, 0)
    assert document.raises is None and "does not declare storage" in document.message
    none = Recorder("add", "float32", clauses, dict.fromkeys(clauses, "storage"))
    assert not any(map(none.get, clauses))


def test_a_cell_in_which_nothing_was_checked_stays_an_error() -> None:
    recorder = Recorder("add", "float32", ["layout.values"], {"layout.bounds": "storage"})
    assert recorder.cells["layout.values"].to_outcome().outcome == "error"
