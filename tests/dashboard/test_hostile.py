"""Texts of a run that carry markup, scripts and addresses are shown as they are, and do nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lxml.html
import pytest

from reports.dashboard.markup import prose, web
from reports.dashboard.series import slug
from tests.dashboard import fleet
from tests.dashboard.looking import opened, visiting

DEVICE = slug(f"{fleet.MARKUP}-quick")
PAGES = ["index.html", "trends.html", "causes.html", "manifest.html", "contract.html", "methodology.html", "ops.html",
         f"grid.html#device={quote(DEVICE)}", f"grid.html#device={quote(DEVICE)}&by=clause",
         "explore.html#q=op:*", "compare.html", "bugs.html", "bug.html#url=javascript:harmed()"]  # fmt: skip


def harmless(page: Any) -> None:
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img[src='x'], main svg[onload], main script").count() == 0


@pytest.mark.parametrize(
    "csp",
    [
        pytest.param(True, id="with CSP"),
        pytest.param(False, id="escaping alone", marks=pytest.mark.slow),
    ],
)
def test_no_page_runs_what_a_run_says(browser: Any, site: Path, csp: bool) -> None:
    with visiting(browser, site, bypass_csp=not csp) as (page, visit):
        for address in PAGES[:1] if csp else PAGES:
            visit(address)
            harmless(page)
            if address == "index.html":
                assert fleet.MARKUP in page.inner_text("main")


def test_each_hostile_cell_is_shown_and_inert(browser: Any, site: Path) -> None:
    with visiting(browser, site, bypass_csp=True) as (page, visit):
        for op in (fleet.IMAGE, fleet.BREAK_OUT, "__proto__", fleet.FORMULA):
            values = {"device": DEVICE, "clause": fleet.VALUES, "op": op, "dtype": fleet.MARKUP}
            address = "cell.html#" + "&".join(f"{k}={quote(v, safe='')}" for k, v in values.items())
            visit(address)
            harmless(page)
            said = page.inner_text("main")
            assert f"{op}[{fleet.MARKUP}]" in said
            assert fleet.IMAGE in said
            page.click("text=every clause and dtype")
            page.wait_for_selector("h1 code")
            assert page.inner_text("h1") == op
            harmless(page)


@pytest.mark.slow
def test_what_the_search_box_and_the_pages_of_causes_show_is_inert(
    browser: Any, site: Path
) -> None:
    with visiting(browser, site, bypass_csp=True) as (page, visit):
        visit("causes.html")
        page.keyboard.press("/")
        page.keyboard.type("wrong values (<script>")
        page.wait_for_selector("#search-option-0")
        assert fleet.MARKUP in page.inner_text("#search-options")
        harmless(page)
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-verdict='regression']")
        harmless(page)
        assert fleet.MARKUP in page.inner_text("h1")
        visit("bug.html#url=javascript:harmed()")
        page.wait_for_selector("section[data-device]")
        assert page.locator("main a[href^='javascript']").count() == 0


@pytest.mark.slow
def test_a_hostile_address_is_inert(browser: Any, site: Path) -> None:
    text = quote(fleet.IMAGE + fleet.MARKUP, safe="")
    for page_name in ("cell", "grid", "explore", "compare", "cause", "bug"):
        address = f"{page_name}.html#" + "&".join(
            f"{name}={text}"
            for name in (
                "device",
                "run",
                "clause",
                "op",
                "dtype",
                "q",
                "a",
                "b",
                "c",
                "at",
                "col",
                "by",
                "id",
                "url",
                "group",
                "open",
            )
        )
        with opened(browser, site, address, bypass_csp=True) as page:
            harmless(page)


def test_no_static_page_holds_an_element_of_a_run(site: Path) -> None:
    """Independently of a browser: the parser finds none of the elements that the run's texts carry."""
    pages = [*site.glob("*.html"), *(site / "op").glob("*.html")]
    assert len(pages) > 20
    for path in pages:
        page = lxml.html.parse(str(path))
        assert page.xpath("//img[@src='x'] | //*[@onload or @onerror]") == []
        assert all(script.get("src") for script in page.xpath("//script"))
        assert [
            href
            for href in page.xpath("//@href | //@src")
            if ":" in href and not href.startswith("https://")
        ] == []


def test_data_files_are_one_call_with_json(site: Path) -> None:
    for path in (site / "data").rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith('conform.give("')
        key, _, rest = text.removeprefix('conform.give("').partition("\",'")
        assert key == str(path.relative_to(site / "data").with_suffix("")).replace("\\", "/")
        json.loads(re.sub(r"\\([\\'])", r"\1", rest.removesuffix("');\n")))
        assert re.search(r"(?<!\\)(\\\\)*'", rest.removesuffix("');\n")) is None


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "data:text/html,x", "https://a b", 'https://x"onx', "//x", ""],
)
def test_addresses_that_could_run_code_are_no_links(address: str) -> None:
    assert web(address) is None


def test_addresses_of_the_web_are_links() -> None:
    assert web("https://github.com/pytorch/pytorch/issues/1") is not None


def test_prose_escapes_all_but_its_own_markup() -> None:
    made = prose(f"{fleet.MARKUP} `{fleet.IMAGE}` pytorch/pytorch#1234, #56")
    assert made.count("<code>") == 1
    assert "<script" not in made
    assert "<img" not in made
    assert 'href="https://github.com/pytorch/pytorch/issues/56"' in made
