"""A cell that fails on every device of a site is marked, on each page that shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devices.cell import CellKey, Outcome, Use
from reports.dashboard.build import Options, build, open_site
from reports.dashboard.series import series_of
from reports.dashboard.suspects import suspect_causes, suspect_cells
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import opened
from tests.reports.builders import changed_result

EVERYWHERE, ONCE, PASSES, UNTRIED = (
    fleet.cell(fleet.VALUES, op) for op in ("mul", "where", "t", "T")
)


def _runs(folder: Path, second: str = "beta") -> list[Path]:
    """Two devices. Of the cells that fail on the first one, the second fails one in another way, passes one, and does not
    support one; a fourth fails only on the second."""
    used = changed_result(fleet.failing(EVERYWHERE), "", called_by=Use(41, 150))
    first = [used, fleet.failing(PASSES), fleet.failing(UNTRIED)]
    other = [
        fleet.failing(EVERYWHERE, Outcome.CRASH),
        fleet.failing(ONCE),
        fleet.failing(UNTRIED, Outcome.UNSUPPORTED),
    ]
    plans = ("quick", "quick" if second == "beta" else "core")
    return [
        fleet.write(folder / f"{name}-{plan}", name, fleet.ALPHA, *told, plan={"plan": plan})
        for name, plan, told in zip(("alpha", second), plans, (first, other))
    ]


def _suspects(folder: Path) -> frozenset[CellKey]:
    site = open_site(folder, fresh=False)
    return suspect_cells(series_of(site.runs.values()), site.axes)


def test_a_cell_that_fails_everywhere_is_suspect(tmp_path: Path) -> None:
    build(_runs(tmp_path), tmp_path / "site", Options(now=NOW, jobs=1))
    assert _suspects(tmp_path / "site") == {EVERYWHERE}


def test_two_plans_of_one_device_are_not_two_devices(tmp_path: Path) -> None:
    build(_runs(tmp_path, second="alpha"), tmp_path / "site", Options(now=NOW, jobs=1))
    assert _suspects(tmp_path / "site") == frozenset()


def test_a_cell_of_another_plan_that_passes_there_is_not_suspect(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    fewer = [EVERYWHERE, fleet.UNTRIED]
    runs.append(fleet.write(tmp_path / "gamma", "gamma", fewer))
    build(runs, tmp_path / "site", Options(now=NOW, jobs=1))
    assert _suspects(tmp_path / "site") == frozenset()


def test_a_cause_is_suspect_if_all_of_its_cells_are(tmp_path: Path) -> None:
    told = {
        "alpha": [fleet.failing(EVERYWHERE)],
        "beta": [fleet.failing(EVERYWHERE), fleet.failing(ONCE)],
    }
    runs = [
        fleet.write(tmp_path / name, name, fleet.ALPHA, *cells,
                    plan={"families": dict.fromkeys(fleet.OPS, "pointwise")})
        for name, cells in told.items()
    ]  # fmt: skip
    build(runs, tmp_path / "site", Options(now=NOW, jobs=1))
    site = open_site(tmp_path / "site", fresh=False)
    found = suspect_causes(series_of(site.runs.values()), site.axes)
    assert found == {("alpha-quick", EVERYWHERE)}


@pytest.mark.slow
def test_pages_say_it(browser: Any, tmp_path: Path) -> None:
    build(_runs(tmp_path), tmp_path / "site", Options(now=NOW, jobs=1))
    address = f"cell.html#device=alpha-quick&clause={fleet.VALUES}&dtype=float32&op="
    with opened(browser, tmp_path / "site", address + EVERYWHERE.unit) as page:
        assert "Suspect the test" in page.inner_text("[data-suspect]")
    with opened(browser, tmp_path / "site", address + PASSES.unit) as page:
        assert page.locator("[data-suspect]").count() == 0
    with opened(browser, tmp_path / "site", "causes.html") as page:
        assert page.locator("#beta-quick .suspect").count() == 1
    with opened(browser, tmp_path / "site", "index.html") as page:
        first = page.locator("#alarm-alpha-quick")
        assert first.locator("[data-models]").all_inner_texts() == ["41 of 150 models"]
