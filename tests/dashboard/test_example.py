"""What makes, inspects and questions the example site."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from reports.dashboard.build import Options, build
from reports.model import fold
from reports.weights import weights
from tests.dashboard import fleet, inspect_site, real_site
from tests.dashboard.conftest import NOW


def test_the_ops_of_torchax_are_those_that_most_models_call() -> None:
    known = {each.name for each in op_db}
    functions = weights().functions
    called = sorted(known & functions.keys(), key=lambda name: (-functions[name].models, name))
    assert (*called[: len(real_site.OPS) - 1], "topk") == real_site.OPS


def test_the_module_of_torchax_is_that_of_the_page() -> None:
    text = real_site.enabled(real_site.PAGE.read_text(encoding="utf-8"))
    compile(text, "torchax_enabled.py", "exec")
    assert "torchax.enable_globally()" in text


def test_parts_planted_faults_and_what_is_absent_are_said(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    part = {"partial": True, "selection": {"--ops": "add"}, "selected": fold(fleet.ALPHA[:1])}
    fleet.write(runs / "simulated-2026-10-01", "simulated", fleet.ALPHA, day=1)
    fleet.write(
        runs / "simulated-2026-10-02-planted", "simulated", fleet.ALPHA,
        fleet.failing(fleet.cell(fleet.VALUES, "add")), day=2,
    )  # fmt: skip
    fleet.write(runs / "torchax-2026-10-02", "torchax", fleet.ALPHA, day=2, plan=part, partial=True)
    made = real_site.build_site(runs, tmp_path / "site")
    assert (made.devices, made.runs) == (2, 3)
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "2 complete runs and 1 incomplete" in page
    assert "torchax · quick: a partial run" in page
    assert page.count('<span class="tag">planted faults</span>') == 1
    assert real_site.NO_CUDA in page


def test_a_run_that_was_a_part_is_replaced_by_the_whole(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    part = {"partial": True, "selection": {"--ops": "add"}, "selected": fold(fleet.ALPHA[:1])}
    fleet.write(runs / "torchax-2026-10-01", "torchax", fleet.ALPHA, plan=part, partial=True)
    assert real_site.build_site(runs, tmp_path / "site").runs == 1
    shutil.rmtree(runs / "torchax-2026-10-01")
    fleet.write(runs / "torchax-2026-10-01", "torchax", fleet.ALPHA)
    assert real_site.build_site(runs, tmp_path / "site").runs == 1


def test_a_second_run_of_a_day_has_a_folder_of_its_own(tmp_path: Path) -> None:
    now = datetime(2026, 10, 2, 9, 5, tzinfo=timezone.utc)

    def folder(device: str, *, again: bool = False) -> str:
        return real_site.folder_of(device, tmp_path, now, again=again).name

    fleet.write(tmp_path / "lazy-2026-10-02", "lazy", fleet.ALPHA)
    assert folder("lazy") == "lazy-2026-10-02"
    assert folder("lazy", again=True) == "lazy-2026-10-02T0905"
    (tmp_path / "lazy-2026-10-02T0901").mkdir()
    assert folder("lazy", again=True) == "lazy-2026-10-02T0901", "an interrupted run is continued"


def test_the_simulated_device_has_planted_faults_from_its_second_run_on(tmp_path: Path) -> None:
    now = datetime(2026, 10, 2, 9, 5, tzinfo=timezone.utc)
    first = real_site.folder_of("simulated", tmp_path, now, again=False)
    assert first.name == "simulated-2026-10-02T0905"
    (tmp_path / "simulated-2026-10-01").mkdir()
    second = real_site.folder_of("simulated", tmp_path, now, again=False)
    assert second.name == f"simulated-2026-10-02T0905{real_site.PLANTED}"
    second.mkdir()
    assert real_site.folder_of("simulated", tmp_path, now, again=False) == second


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    """A site with names of every kind."""
    build([fleet.alpha(tmp_path / "1", 1), fleet.alpha(tmp_path / "2", 2)], tmp_path / "site", Options(now=NOW, jobs=1))  # fmt: skip
    return tmp_path / "site"


@pytest.mark.slow
def test_nothing_is_wrong_with_the_site_of_a_fleet(browser: Any, calm: Path) -> None:
    assert list(inspect_site.problems(browser, calm)) == []


@pytest.mark.slow
def test_what_is_wrong_with_a_site_is_found(
    browser: Any, calm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_site, "SIZES", inspect_site.SIZES[:1])
    with (calm / "assets" / "site.css").open("a", encoding="utf-8") as styles:
        styles.write(".device { min-height: 900px; }\n")
        styles.write(".device.red { margin-bottom: 8000px; } main { min-width: 500px; }\n")
    index = calm / "index.html"
    index.write_text(
        index.read_text(encoding="utf-8").replace("</main>", "<button></button></main>")
    )
    found = "\n".join(inspect_site.problems(browser, calm))
    for wanted in ("below the first screen", "px long", "px wide", "button-name"):
        assert wanted in found
