"""Cells that are declared flaky are run again, and held to their pass rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.flaky import runs_for, together
from devices.cell import CellKey, Verdict
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


def document(outcome: str, message: str = "") -> dict[str, object]:
    return {"cell": list(CELL), "outcome": outcome, "message": message}


def test_a_report_never_shows_a_pass_where_one_run_failed() -> None:
    shown = together([document("pass"), document("fail", "x"), document("pass")], [False] * 3)
    assert (shown["outcome"], shown["message"], len(shown["seen"])) == ("fail", "x", 2)


def test_a_run_that_is_bad_by_itself_is_shown() -> None:
    runs = [document("fail", "x"), document("crash", "y")]
    assert together(runs, [False, True])["outcome"] == "crash"


@pytest.mark.parametrize(
    ("rate", "code", "verdict"), [(0.5, 0, Verdict.FLAKY), (0.9, 1, Verdict.REGRESSION)]
)
def test_a_flaky_cell_is_held_to_its_rate(
    fork: ForkServer, tmp_path: Path, rate: float, code: int, verdict: Verdict
) -> None:
    manifest = tmp_path / "expected.toml"
    manifest.write_text(MANIFEST.format(rate=rate))
    ran = fork.pytest(
        *("-p", "tests.isolation.unsteady", "--device", "cpu", "--ops", "neg"),
        *(f"--expectations={manifest}", f"--results={tmp_path / 'run'}"),
    )
    assert ran.code == code, ran.text
    result = cells_of(tmp_path / "run")[CellKey("layout.determinism", "neg", "float32")]
    assert result.verdict is verdict
    times = runs_for(rate)
    assert f"passes in {times - times // 3} of {times} runs" in result.why
