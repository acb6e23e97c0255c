"""Minimised examples, the tensors of failing calls, and causes of failures are shown where a run has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devices.cell import Verdict
from devices.failure import Failure, Geometry, Kind
from reports.dashboard.build import Options, build
from reports.dashboard.geometry import placement
from reports.dashboard.ingest import smallest
from reports.model import Example, ExampleTensor
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import opened


def test_a_result_without_an_example_has_none() -> None:
    assert smallest(fleet.passed(fleet.cell("layout.values", "add")).example) is None


def test_an_example_says_where_its_tensors_lie() -> None:
    tensors = (ExampleTensor("float32", (2, 3), (1, 2), 17, "[1.0]"),)
    told = smallest(Example("add(t[0], 1)", "transposed", "2 is 3", tensors, 9))
    assert told is not None
    assert (told.call, told.tried, told.whole) == ("add(t[0], 1)", 9, True)
    assert told.tensors[0].extent == 17 + 1 * 1 + 2 * 2 + 1
    assert told.tensors[0].values == "[1.0]"


def test_an_empty_tensor_takes_no_place() -> None:
    assert placement(Geometry("float32", (0, 3), (3, 1), 5)).extent == 5


def test_the_page_of_a_cell_shows_its_cause(browser: Any, tmp_path: Path) -> None:
    ops = ("mul", "t")
    told = [fleet.failing(fleet.cell("layout.values", op)) for op in ops]
    families = {"families": dict.fromkeys(ops, "pointwise")}
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, *told, plan=families)
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    address = "cell.html#device=alpha-quick&clause=layout.values&op=mul&dtype=float32"
    with opened(browser, tmp_path / "site", address) as page:
        text = page.inner_text("main")
        assert (
            "wrong values if an input is not contiguous and has a storage offset (mul, t)." in text
        )
        assert "To do:" not in text and "2 cells with this cause:" in text
        page.click("text=layout.values · t · float32")
        page.wait_for_selector("text=t[float32]")


@pytest.mark.slow
def test_the_page_of_causes_leads_to_an_example(browser: Any, tmp_path: Path) -> None:
    told = [fleet.failing(fleet.cell("layout.values", op)) for op in ("mul", "t")]
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, *told)
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "causes.html") as page:
        rows = page.locator("li[data-cause]")
        assert rows.locator(".n").all_inner_texts() == ["1 cell", "1 cell"]
        assert "wrong values if an input is not contiguous" in rows.first.inner_text()
        rows.first.locator("text=example").click()
        page.wait_for_selector("h1 >> text=mul[float32]")


def test_expected_failures_have_no_new_cause(tmp_path: Path) -> None:
    told = [
        fleet.failing(fleet.cell("layout.values", op), verdict=Verdict.EXPECTED)
        for op in ("mul", "t")
    ]
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, *told)
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    details = (tmp_path / "site" / "data" / "details").rglob("*.js")
    assert not any(b'"cause"' in path.read_bytes() for path in details)


def test_the_page_of_a_cell_shows_the_tensors_of_the_failing_call(
    browser: Any, tmp_path: Path
) -> None:
    failure = Failure(
        kind=Kind.STRIDES,
        expected="(1, 2)",
        found="(2, 1)",
        layout="transposed+offset",
        call="add(t[0], t[1])",
        inputs=(Geometry("float32", (2, 3), (0, 2), 17), Geometry("bool", (4,), (1,))),
    )
    told = fleet.failing(fleet.cell("layout.values", "mul"), failure=failure)
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, told)
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    address = "cell.html#device=alpha-quick&clause=layout.values&op=mul&dtype=float32"
    with opened(browser, tmp_path / "site", address) as page:
        text = page.inner_text("main")
        assert "expected (1, 2), found (2, 1)" in text
        assert "Input 1" in text and "Input 2" in text
