"""The site of the small fleet, built once, and a real Chromium to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chromium import find_chromium, running_chromium
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
    pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    try:
        find_chromium()
    except RunError as absent:
        pytest.skip(str(absent))
    with running_chromium() as chromium:
        yield chromium
