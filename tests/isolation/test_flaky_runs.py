"""Cells that are declared flaky are run again, and held to their pass rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.run.item_report import runs_for, together
from devices.cell import CellKey, CellOutcome, Outcome, Verdict
from tests.plugin.running import ForkServer, cells_of

CELL = CellKey("layout.type_promotion", "add", "float32")

MANIFEST = """
[[expect]]
clause = "layout.determinism"
op = "neg"
outcome = "flaky"
kind = "device-bug"
reason = "every third run fails"
expires = 2099-01-01
min_pass_rate = {rate}
"""


@pytest.mark.parametrize(
    ("rate", "runs"), [(None, 5), (0.0, 5), (0.5, 5), (0.8, 5), (0.9, 10), (0.99, 20), (1.0, 5)]
)
def test_a_rate_takes_a_bounded_number_of_runs(rate: float | None, runs: int) -> None:
    assert runs_for(rate) == runs


def run(outcome: Outcome, message: str = "") -> CellOutcome:
    return CellOutcome(cell=CELL, outcome=outcome, note=message)


def test_a_report_never_shows_a_pass_where_one_run_failed() -> None:
    runs = [run(Outcome.PASS), run(Outcome.FAIL, "x"), run(Outcome.PASS)]
    shown = together(runs, [False] * 3)
    assert (shown.outcome, shown.message) == (Outcome.FAIL, "x")
    assert [other.outcome for other in shown.others] == [Outcome.PASS] * 2


def test_a_run_that_is_bad_by_itself_is_shown() -> None:
    runs = [run(Outcome.FAIL, "x"), run(Outcome.CRASH, "y")]
    assert together(runs, [False, True]).outcome is Outcome.CRASH


@pytest.mark.parametrize(
    ("rate", "code", "verdict"), [(0.5, 0, Verdict.FLAKY), (0.9, 1, Verdict.REGRESSION)]
)
def test_a_flaky_cell_is_held_to_its_rate(
    fork: ForkServer, tmp_path: Path, rate: float, code: int, verdict: Verdict
) -> None:
    manifest = tmp_path / "expected.toml"
    manifest.write_text(MANIFEST.format(rate=rate))
    ran = fork.pytest(
        *(
            "-p",
            "tests.isolation.unsteady",
            "--device",
            "cpu",
            "--ops",
            "neg",
            "--clauses",
            "layout.*",
        ),
        *(f"--expectations={manifest}", f"--results={tmp_path / 'run'}"),
    )
    assert ran.code == code, ran.text
    result = cells_of(tmp_path / "run")[CellKey("layout.determinism", "neg", "float32")]
    assert result.verdict is verdict
    times = runs_for(rate)
    assert f"passes in {times - times // 3} of {times} runs" in result.why
