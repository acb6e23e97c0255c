"""Opening pages of a site in Chromium, and what must hold of every one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened(browser: Any, site: Path, address: str, **context: Any) -> Iterator[Any]:
    """A page of the site, from its file. Fails on any error of a script, the console or loading."""
    made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    page = made.new_page()
    page.set_default_timeout(10_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on(
        "console",
        lambda said: (
            problems.append(said.text)
            if said.type in ("error", "warning") and "willReadFrequently" not in said.text
            else None  # what Chromium says to a test that reads a canvas back
        ),
    )
    page.on("requestfailed", lambda request: problems.append(f"not loaded: {request.url}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("file:", "data:", "blob:"))
            else problems.append(f"leaves the site: {request.url}")
        ),
    )
    try:
        page.goto(f"file://{site}/{address}")
        if context.get("java_script_enabled", True) and page.query_selector("#app"):
            page.wait_for_function("document.documentElement.dataset.ready")
        yield page
        assert problems == []
    finally:
        made.close()


def counts(page: Any, selector: str) -> list[int]:
    """The numbers that elements show, without their commas."""
    return [int(text.replace(",", "")) for text in page.locator(selector).all_inner_texts()]
