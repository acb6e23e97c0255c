"""The gate against a baseline: a cell that failed there in the same way is reported and does not fail the gate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.gate import Against, ExitCode, NoBaseline, gate
from reports.model import CellResult, Run
from reports.summary import markdown
from tests.reports.builders import (
    ADD,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    failed,
    passed,
    plan_document,
    results,
)


def run(*made: CellResult, cells: tuple[CellKey, ...] = CELLS, **origin: object) -> Run:
    origins = replace(PROVENANCE, **origin)  # type: ignore[arg-type]
    return Run(Path("out"), plan_document(cells), origins, results(*made, cells=cells))


def test_a_regression_that_the_baseline_has_too_is_no_new_one() -> None:
    now, before = run(failed(CONV)), run(failed(CONV))
    assert gate(now).exit_code is ExitCode.REGRESSION
    found = gate(now, against=before)
    assert found.exit_code is ExitCode.GREEN and found.counts.regressions == 1
    assert "1 cell failed in that run in the same way and is not counted as new" in markdown(found)


def test_a_new_regression_stops_it_beside_an_old_one() -> None:
    found = gate(run(failed(CONV), failed(ADD)), against=run(failed(CONV)))
    assert found.exit_code is ExitCode.REGRESSION
    assert [result.key for result in found.new] == [ADD]


WORSE = {
    "another outcome": failed(CONV, outcome=Outcome.CRASH, layouts=(), message="killed by SIGSEGV"),
    "another layout": failed(CONV, layouts=("channels_last", "transposed")),
    "another exception": failed(CONV, raises="RuntimeError"),
}


@pytest.mark.parametrize("how", WORSE)
def test_what_fails_otherwise_than_before_is_new(how: str) -> None:
    assert gate(run(WORSE[how]), against=run(failed(CONV))).exit_code is ExitCode.REGRESSION


def test_what_fails_in_fewer_layouts_is_not() -> None:
    before = failed(CONV, layouts=("channels_last", "transposed"))
    assert gate(run(failed(CONV)), against=run(before)).exit_code is ExitCode.GREEN


def test_what_was_expected_to_fail_before_and_is_not_any_more_is_new() -> None:
    before = run(failed(CONV, Verdict.EXPECTED))
    assert gate(run(failed(CONV)), against=before).exit_code is ExitCode.REGRESSION


def test_a_run_that_lacks_outcomes_stays_incomplete() -> None:
    now = run(failed(CONV))
    now.results.pop(ADD)
    assert gate(now, against=run(failed(CONV))).exit_code is ExitCode.INCOMPLETE


def test_cells_that_are_planned_no_more_are_missing_where_torch_is_the_same() -> None:
    fewer = tuple(cell for cell in CELLS if cell != BOUNDS)
    found = gate(run(cells=fewer), against=run())
    assert found.exit_code is ExitCode.INCOMPLETE and f"the first is {BOUNDS}" in found.problems[0]
    later = gate(run(cells=fewer, torch="2.14.0"), against=run())
    assert later.exit_code is ExitCode.GREEN


def test_a_baseline_must_be_whole_and_of_the_same_device() -> None:
    part = Run(
        Path("base"),
        plan_document(selected=[ADD]),
        replace(PROVENANCE, partial=True),
        {ADD: passed(ADD)},
    )
    with pytest.raises(
        NoBaseline, match="--against base: the baseline is a partial run or a shard"
    ):
        Against.of(run(), part)
    with pytest.raises(NoBaseline, match="expected a whole run"):
        Against.of(run(), run(shard="1/2"))
    lacking = run()
    lacking.results.pop(ADD)
    with pytest.raises(NoBaseline, match="1 cell of the baseline has no outcome"):
        Against.of(run(), lacking)
    other = Run(
        Path("base"), plan_document(device="npu"), replace(PROVENANCE, device="npu"), results()
    )
    with pytest.raises(
        NoBaseline, match="the device of the baseline is 'npu', and that of RUN is 'cpu'"
    ):
        Against.of(run(), other)
