"""``conform diff --errors``: the ratio of the errors of two runs, by op."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.cli import conform
from devices.cell import MOST_ULPS, CellKey
from reports.error_ratios import ErrorRatio, Measure, error_ratios, errors_as_data, errors_as_text
from reports.model import CellResult, Run
from reports.run import write_run
from tests.reports.builders import (
    ADD,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    passed,
    plan_document,
    results,
)


def a_run(*made: CellResult, **origin: Any) -> Run:
    return Run(Path("out"), plan_document(), replace(PROVENANCE, **origin), results(*made))


def ratios(before: list[CellResult], after: list[CellResult]) -> dict[str, ErrorRatio]:
    found = error_ratios(a_run(*before), a_run(*after)).ratios
    return {f"{each.op}[{each.dtype}] {each.measure}": each for each in found}


def error(cell: CellKey, value: float | None, ulps: float | None = None) -> CellResult:
    return passed(cell, worst_error=value, ulps=ulps)


def test_the_largest_errors_of_an_op_are_compared_over_all_its_cells() -> None:
    found = ratios([error(ADD, 2.0), error(BOUNDS, 1.0)], [error(ADD, 1.0), error(BOUNDS, 6.0)])
    (one,) = found.values()
    assert (one.cells, one.before, one.after, one.ratio) == (2, 2.0, 6.0, 3.0)
    assert one.cell == BOUNDS


def test_absolute_errors_and_ulps_are_never_compared() -> None:
    found = ratios([error(ADD, 2.0, 4.0)], [error(ADD, 1.0, 8.0)])
    assert found["add[float32] absolute"].ratio == 0.5
    assert found["add[float32] ulps"].ratio == 2.0
    assert ratios([error(ADD, 2.0)], [error(ADD, None, 8.0)]) == {}


def test_a_cell_counts_only_if_both_runs_measured_it() -> None:
    assert ratios([error(ADD, None)], [error(ADD, 1.0)]) == {}
    assert ratios([error(ADD, 1.0)], [error(ADD, math.nan)]) == {}


@pytest.mark.parametrize(
    ("before", "after", "ratio"), [(0.0, 0.0, 1.0), (0.0, 2.0, math.inf), (2.0, 0.0, 0.0)]
)
def test_exact_results_have_a_ratio_too(before: float, after: float, ratio: float) -> None:
    (one,) = ratios([error(ADD, before)], [error(ADD, after)]).values()
    assert one.ratio == ratio


def test_the_ratios_furthest_from_one_come_first_in_either_direction() -> None:
    names = ["add[float32] absolute", "nn.functional.conv2d[float32] absolute"]
    found = ratios([error(ADD, 1.0), error(CONV, 10.0)], [error(ADD, 2.0), error(CONV, 1.0)])
    assert list(found) == names[::-1]


def test_the_text_says_where_the_devices_differ() -> None:
    before = a_run(error(ADD, 1.0), error(CONV, 1.0), device="cpu")
    after = a_run(error(ADD, 4.0), error(CONV, 1.0))
    text = errors_as_text(error_ratios(before, after))
    assert (
        "largest errors, absolute: 2 ops and dtypes; AFTER has larger errors in 1, smaller ones in 0; "
        "median ratio 2.5"
    ) in text
    assert "add[float32]" in text and "conv2d" not in text


def test_a_result_that_is_nan_is_shown_as_that() -> None:
    found = error_ratios(a_run(error(ADD, 1.0, 1.0)), a_run(error(ADD, 1.0, MOST_ULPS)))
    assert "NaN" in errors_as_text(found)


def test_without_measured_errors_the_text_says_so() -> None:
    assert "no cell has a measured error in both runs" in errors_as_text(
        error_ratios(a_run(), a_run())
    )


def test_the_document_has_no_infinity() -> None:
    found = error_ratios(a_run(error(ADD, 0.0)), a_run(error(ADD, 1.0)))
    (row,) = errors_as_data(found).errors
    assert row.ratio is None and row.measure is Measure.ABSOLUTE


def test_the_command_prints_text_or_json_and_exits_0(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 3.0)):
        write_run(tmp_path / name, plan_document(), results(error(ADD, value)), PROVENANCE)
    pair = [str(tmp_path / "a"), str(tmp_path / "b")]
    ran = CliRunner().invoke(conform, ["diff", "--errors", *pair])
    assert ran.exit_code == 0 and "add[float32]" in ran.stdout
    ran = CliRunner().invoke(conform, ["diff", "--errors", "--json", *pair])
    (row,) = json.loads(ran.stdout)["errors"]
    assert row["ratio"] == 3.0 and row["cell"] == str(ADD)


def test_cases_have_no_op(tmp_path: Path) -> None:
    assert ratios([error(CELLS[-1], 1.0)], [error(CELLS[-1], 2.0)]) == {}
