"""The other checks of a cell that ended its process, in the record and in reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devices.cell import OtherChecks, Outcome, Verdict
from devices.failure import Kind
from reports.causes import causes
from reports.gate import ExitCode, gate
from reports.junit import explain
from reports.merge import CannotMerge, merge
from reports.model import CellResult, Run, problem_with, seen_of
from reports.run import load_run, write_run
from tests.reports.builders import (
    ADD,
    CELLS,
    PROVENANCE,
    changed_result,
    failed,
    failure,
    passed,
    plan_document,
    results,
)

ENDED = failure("the worker was killed by SIGSEGV", kind=Kind.ENDED, said="SIGSEGV on builder7")
WRONG = failure("expected 1, found 2 on builder7", layout="transposed")


def crashed(verdict: Verdict = Verdict.REGRESSION, **rest: Any) -> CellResult:
    """A crash of which 3 of 12 other checks fail, in one layout."""
    given: dict[str, Any] = {
        "outcome": Outcome.FAIL,
        "left_out": 1,
        "layouts": ("transposed",),
        "failure": WRONG,
        "failed": 3,
        "repro": "repro/x-other-checks.py",
        "ended": Verdict.EXPECTED,
        "verdict": verdict,
    }
    return changed_result(
        passed(ADD),
        outcome=Outcome.CRASH,
        verdict=verdict,
        failure=ENDED,
        rest=OtherChecks(**{**given, **rest}),
    )


def run(*made: CellResult, shard: str = "") -> Run:
    origin = replace(PROVENANCE, shard=shard)
    return Run(Path("out"), plan_document(), origin, results(*made))


def test_the_record_keeps_them(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(crashed()), PROVENANCE)
    found = load_run(tmp_path).results[ADD]
    assert found == crashed() and found.failing_layouts == ("transposed",)


def test_redacting_hides_the_host_in_them(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(crashed()), PROVENANCE, redact=True)
    assert all(b"builder7" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ({}, "3 of 12 other checks fail: [transposed] expected 1, found 2 on builder7"),
        ({"outcome": Outcome.PASS, "failure": None}, "12 other checks pass"),
        (
            {"outcome": Outcome.BLOCKED, "failure": None, "note": "blocked by x"},
            "the other checks end with the outcome 'blocked': blocked by x",
        ),
        (
            {"outcome": Outcome.PASS, "failure": None, "skipped": 2},
            "12 other checks pass (2 more calls were not made, because too many calls like them "
            "end the process)",
        ),
    ],
)
def test_a_message_tells_how_they_end(rest: dict[str, Any], text: str) -> None:
    assert crashed(**rest).message == f"the worker was killed by SIGSEGV; and {text}"


def test_all_details_name_their_layouts_and_their_script() -> None:
    lines = explain(crashed()).splitlines()
    assert "failing layouts (1 of 2): transposed" in lines
    assert (
        lines[-1] == "to reproduce the failure of the other checks: python repro/x-other-checks.py"
    )


def test_the_cause_is_theirs_where_the_crash_is_expected() -> None:
    (found,) = causes([crashed()], {})
    assert (found.key.rule, found.checks) == ("layout", 3)
    assert found.example.repro == "repro/x-other-checks.py"
    (found,) = causes([crashed(ended=Verdict.REGRESSION)], {})
    assert found.key.rule == "ended" and found.partly == {ADD}


def test_a_baseline_in_which_they_passed_does_not_excuse_them() -> None:
    before = crashed(outcome=Outcome.PASS, failure=None, failed=0, layouts=())
    found = gate(run(crashed()), against=run(before))
    assert found.exit_code is ExitCode.REGRESSION
    assert gate(run(crashed()), against=run(crashed())).exit_code is ExitCode.GREEN


def test_shards_that_disagree_about_them_are_not_merged() -> None:
    passes = crashed(outcome=Outcome.PASS, failure=None, failed=0, layouts=())
    with pytest.raises(CannotMerge, match="disagree on"):
        merge([run(crashed(), shard="1/2"), run(passes, shard="2/2")])
    assert merge([run(crashed(), shard="1/2"), run(crashed(), shard="2/2")]).results[ADD].rest


def test_a_manifest_compares_them() -> None:
    observed = seen_of(crashed()).observed
    assert observed.rest is not None
    assert (observed.rest.outcome, observed.rest.layouts) == (Outcome.FAIL, {"transposed"})


def test_a_cell_that_did_not_end_its_process_has_none() -> None:
    assert problem_with(crashed()) is None
    assert problem_with(changed_result(failed(ADD), rest=crashed().rest)) is not None
    outside = crashed(repro="../x.py")
    assert "outside the results folder" in (problem_with(outside) or "")


def test_every_cell_of_the_plan_is_still_counted_once() -> None:
    found = gate(run(crashed(Verdict.EXPECTED)))
    assert (found.counts.planned, found.counts.crashes, found.counts.expected) == (len(CELLS), 1, 1)
