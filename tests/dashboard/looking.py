"""Opening pages of a site in Chromium, and what must hold of every one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: A page whose scripts have done their first work.
READY = "html[data-ready]"


@contextmanager
def opened(browser: Any, site: Path, address: str, **context: Any) -> Iterator[Any]:
    """A page of the site, from its file. Fails on any error of a script, the console or loading."""
    with visiting(browser, site, **context) as (page, visit):
        visit(address)
        yield page


@contextmanager
def visiting(
    browser: Any, site: Path, **context: Any
) -> Iterator[tuple[Any, Callable[[str], None]]]:
    """One tab, and what brings it to a page of the site. Fails as ``opened`` does."""
    made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    page = made.new_page()
    page.set_default_timeout(20_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda said: problems.extend(_complaint(said)))
    page.on("requestfailed", lambda request: problems.extend(_not_loaded(request)))
    page.on("request", lambda request: problems.extend(_stranger(request.url)))

    def visit(address: str) -> None:
        page.goto("about:blank")  # so that an address that differs behind its # is loaded anew
        page.goto(f"file://{site}/{address}")
        if context.get("java_script_enabled", True) and page.query_selector("#app"):
            page.wait_for_selector(READY, state="attached")

    try:
        yield page, visit
        assert problems == []
    finally:
        made.close()


def wait_until(page: Any, expression: str) -> None:
    """Ask a page until an expression is true of it. Its security policy forbids ``wait_for_function``, which
    evaluates a string again and again on the page's side."""
    latest = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < latest, f"not true within 20 s: {expression}"
        page.wait_for_timeout(20)


def _complaint(said: Any) -> list[str]:
    # willReadFrequently: what Chromium says to a test that reads a canvas back.
    wanted = said.type in ("error", "warning") and "willReadFrequently" not in said.text
    return [said.text] if wanted else []


def _not_loaded(request: Any) -> list[str]:
    # Aborted: the tab went on to another page before this one was all there.
    return [] if request.failure == "net::ERR_ABORTED" else [f"not loaded: {request.url}"]


def _stranger(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:", "blob:", "about:")) else [f"leaves: {url}"]


def counts(page: Any, selector: str) -> list[int]:
    """The numbers that elements show, without their commas."""
    return [int(text.replace(",", "")) for text in page.locator(selector).all_inner_texts()]
