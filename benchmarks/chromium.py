"""Starts an installed Chromium under Playwright, for pictures, measurements and tests of the dashboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reports.model import RunError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    """The path of an installed Chromium. Raises RunError if there is none."""
    named = os.environ.get("CONFORM_CHROMIUM")
    found = named or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise RunError(
            "Chromium was not found: install it (Debian: chromium), or set CONFORM_CHROMIUM"
        )
    return found


@contextmanager
def running_chromium() -> Iterator[Any]:
    """A running Chromium, as Playwright's ``Browser``. Raises RunError if none is installed, and ModuleNotFoundError without
    Playwright."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_OPTIONS))
        yield browser
        browser.close()
