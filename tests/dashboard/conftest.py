"""The site of the small fleet, built once, and a real Chromium to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from benchmarks.screenshots import find_chromium
from reports.dashboard.build import Options, build
from reports.model import RunError
from tests.dashboard.fleet import fleet

NOW = datetime(2026, 10, 5, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The results folders of the fleet."""
    return fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="session")
def site(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of all of them."""
    folder = tmp_path_factory.mktemp("site") / "out"
    build(runs, folder, Options(now=NOW, jobs=1))
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium under Playwright; the test is skipped, with the reason, where one of them is absent."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    try:
        found = find_chromium()
    except RunError as absent:
        pytest.skip(str(absent))
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=found,
            args=["--no-sandbox", "--disable-background-networking", "--disable-component-update",
                  "--disable-sync", "--disable-gpu"],
        )  # fmt: skip
        yield chromium
        chromium.close()
