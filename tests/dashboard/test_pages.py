"""Every page in a real Chromium: that it shows what it should, by mouse, by keyboard and without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from conformance.contract import load
from devices.cell import CellKey
from reports.dashboard.build import Options, build
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.independent import cells
from tests.dashboard.looking import counts, opened, visiting, wait_until

PAGES = ("index.html", "grid.html#device=alpha-quick", "grid.html#show=cases", "explore.html", "compare.html", "trends.html",
         "causes.html", "manifest.html", "contract.html", "methodology.html", "ops.html", "op/linalg.lu.html",
         "cell.html#device=alpha-quick&clause=layout.bounds&op=linalg.lu&dtype=bool", "bugs.html", "cause.html",
         "bug.html#url=https%3A%2F%2Fgithub.com%2Fpytorch%2Fpytorch%2Fissues%2F84577", "grid.html#group=family",
         "contract.html#layout.values", "compare.html#c=alpha-quick:latest")  # fmt: skip

AXE = Path(__file__).with_name("vendor") / "axe.min.js"

LU = "cell.html#device=alpha-quick&clause=layout.bounds&op=linalg.lu&dtype=bool"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_pages_have_no_serious_accessibility_finding(
    browser: Any, site: Path, scheme: str, width: int
) -> None:
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    with visiting(browser, site, bypass_csp=True, **look) as (page, visit):
        for address in PAGES:
            visit(address)
            page.add_script_tag(path=str(AXE))
            found = page.evaluate("axe.run({resultTypes: ['violations'], preload: false})")
            serious = [
                f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
                for each in found["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert (address, serious) == (address, [])


@pytest.mark.slow
def test_axe_finds_what_is_planted(browser: Any, site: Path) -> None:
    with opened(browser, site, "index.html", bypass_csp=True) as page:
        page.evaluate("document.querySelector('main').append(document.createElement('button'))")
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("axe.run({resultTypes: ['violations'], preload: false})")
        assert "button-name" in {each["id"] for each in found["violations"]}


@pytest.mark.slow
def test_no_page_is_wider_than_a_narrow_screen(browser: Any, site: Path) -> None:
    with visiting(browser, site, viewport={"width": 360, "height": 740}) as (page, visit):
        for address in PAGES:
            visit(address)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert (address, wide) == (address, 360)


@pytest.mark.slow
def test_dark_and_light_follow_the_system_and_the_button(browser: Any, site: Path) -> None:
    def background(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with opened(browser, site, "index.html", color_scheme="light") as page:
        light = background(page)
    with opened(browser, site, "index.html", color_scheme="dark") as page:
        dark = background(page)
        assert dark != light
        page.click("#theme")
        assert background(page) == light
        page.reload()
        assert background(page) == light, "the choice is remembered"


@pytest.mark.slow
def test_every_status_has_a_shape_of_its_own(browser: Any, site: Path) -> None:
    with opened(browser, site, "methodology.html") as page:
        shapes = page.evaluate(
            """[...document.querySelectorAll('td .sq')].map((each) =>
               getComputedStyle(each).backgroundImage)"""
        )
        paths = [shape.split(" d=")[1] for shape in shapes if shape != "none"]
        assert len(paths) == 13
        assert len(set(paths)) == 13, "told apart without colour"


@pytest.mark.slow
def test_without_scripts_the_overview_and_each_operator_are_complete(
    browser: Any, site: Path
) -> None:
    with opened(browser, site, "index.html", java_script_enabled=False) as page:
        figure = page.locator("td[data-device='alpha-quick'] .figure").first
        assert figure.inner_text() == "87 of 96"
        assert page.locator("#theme").is_hidden()
        page.click("text=Operators")
        page.locator("details:has-text('linalg.lu') > summary").first.click()
        page.click("text=linalg.lu")
        table = page.locator("table").first
        assert table.locator("tbody tr").count() == 3
        assert "expected failure" in table.inner_text()
    with visiting(browser, site, java_script_enabled=False) as (page, visit):
        for address in ("grid.html", "explore.html", "compare.html", "cell.html"):
            visit(address)
            assert "needs scripts" in page.locator("main").inner_text()


def test_the_cell_page_tells_everything(browser: Any, site: Path) -> None:
    with opened(browser, site, LU) as page:
        said = page.locator("main").inner_text()
        for wanted in (
            "linalg.lu[bool]", "fail (expected)", "[transposed+offset] linalg.lu: 3 of 12",
            "12 checks on 3 samples", "1 of 2 that ran fail", "kernel: steps by one stride",
            "upstream-bug", "expected.toml, line 1", "python repro/layout.bounds/x.py", "26.2",
            load().clauses["layout.bounds"].statement.partition("`")[0], "docs/source/tensor_view",
            "bounds.write_past_end", "Target of out=", "Seen before", "pytorch#139006 on MPS",
        ):  # fmt: skip
            assert wanted in said
        link = page.locator("text=https://github.com/pytorch/pytorch/issues/84577")
        assert link.get_attribute("href") == "https://github.com/pytorch/pytorch/issues/84577"
        seen = page.locator("text=pytorch#139006 on MPS")
        assert seen.get_attribute("href") == "https://github.com/pytorch/pytorch/issues/139006"
        assert page.locator("a[href^='javascript']").count() == 0
        past = [each.get_attribute("aria-label") for each in page.locator(".past a").all()]
        assert past == [
            "2026-10-01: fail (expected); torch 2.13.0, driver 26.1",
            "2026-10-02: fail (expected); torch 2.14.0, driver 26.2",
        ]


def test_the_picture_shows_elements_order_gaps_and_guard(browser: Any, site: Path) -> None:
    with opened(browser, site, LU) as page:
        given = page.locator("svg.picture").last  # shape (2, 3), strides (0, 2), offset 17
        kinds = [each.get_attribute("class") for each in given.locator("rect").all()]
        assert kinds[:17] == ["guard"] * 17
        assert kinds[17:22] == ["el", "gap", "el", "gap", "el"]
        assert set(kinds[22:]) == {"guard"}
        target = page.locator("svg.picture").nth(1)  # shape (2, 2), strides (4, 2)
        texts = target.locator("text:not(.small)").all_text_contents()
        assert texts == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_the_repro_is_copied(browser: Any, site: Path) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened(browser, site, LU, **allowed) as page:
        page.locator(".copyable button").first.click()
        page.wait_for_selector("text=Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "python repro/layout.bounds/x.py"
        page.click("text=The script: it needs only torch")
        page.locator("details .copyable button").click()
        wait_until(
            page, "document.querySelector('details .copyable button').textContent == 'Copied'"
        )
        assert page.evaluate("navigator.clipboard.readText()") == fleet.REPRO


@pytest.mark.slow
def test_an_older_run_of_a_cell_is_one_step_away(browser: Any, site: Path) -> None:
    address = "cell.html#device=alpha-quick&clause=layout.values&op=add&dtype=float32"
    with opened(browser, site, address) as page:
        assert page.locator(".tag").first.inner_text() == "fail"
        page.locator(".past a").first.click()
        page.wait_for_selector("[data-status='pass']")
        page.go_back()
        page.wait_for_selector("[data-status='fail']")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "view"), [(fleet.COMPILED, "ops"), (fleet.RANKS, "cases")], ids=lambda each: str(each)
)
def test_a_cell_with_a_variant_has_a_page_and_a_square(
    browser: Any, site: Path, cell: CellKey, view: str
) -> None:
    names = {"device": "beta-quick", "clause": cell.clause, "op": cell.unit, "dtype": cell.kind}
    with opened(browser, site, f"cell.html#{urlencode(names, quote_via=quote)}") as page:
        assert page.locator("h1").inner_text() == cell.name
        assert page.locator(".tag").first.inner_text() == "fail"
        page.click("text=in the grid")
        page.wait_for_selector(
            f".vcell.on[aria-label='{cell.unit}, {cell.clause}: fail']", state="attached"
        )
        assert f"show={view}" in page.url


def test_a_cell_that_does_not_exist_is_told_clearly(browser: Any, site: Path) -> None:
    with opened(browser, site, "cell.html#clause=layout.values&op=nosuch&dtype=x") as page:
        assert "No run on this site has the cell layout.values::nosuch[x]." in page.inner_text(
            "#app"
        )


@pytest.mark.slow
def test_compare_puts_the_environment_first(browser: Any, site: Path, runs: list[Path]) -> None:
    with opened(browser, site, "compare.html") as page:
        heads = page.locator("main h2").all_inner_texts()
        assert heads[:2] == ["Differences in the environment", "What changed"]
        assert page.locator("tbody th").all_inner_texts()[:2] == ["torch", "driver"]


@pytest.mark.slow
def test_compare_counts_as_the_junit_files_do(browser: Any, site: Path, runs: list[Path]) -> None:
    before = {each[:2]: each[2] for each in cells(runs[0])}
    after = {each[:2]: each[2] for each in cells(runs[2])}  # another device
    both = before.keys() & after.keys()
    wanted = {
        "left-out": len(before.keys() - after.keys()),  # the other device has another plan
        "added": len(after.keys() - before.keys()),
        "fixed": sum(before[c] != "pass" and after[c] == "pass" for c in both),
        "newly-failing": sum(before[c] == "pass" and after[c] == "fail" for c in both),
    }
    with opened(browser, site, "compare.html") as page:
        options = {
            option.inner_text(): option.get_attribute("value")
            for option in page.locator("#choose-before option").all()
        }
        first = next(
            value for text, value in options.items() if "alpha · quick · 2026-10-01" in text
        )
        other = next(value for text, value in options.items() if text.startswith("beta"))
        page.select_option("#choose-before", first)
        page.select_option("#choose-after", other)
        wait_until(page, f"location.hash.includes('b={other}')")
        page.wait_for_selector("main h2 >> text=Left out")
        shown = {name: counts(page, f"dd[data-change='{name}']")[0] for name in wanted}
        assert shown == wanted
        page.reload()  # all of it is in the address
        page.wait_for_selector("main h2 >> text=Left out")
        assert {name: counts(page, f"dd[data-change='{name}']")[0] for name in wanted} == wanted


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_trends_lead_to_comparisons(browser: Any, site: Path, width: int) -> None:
    look = {"viewport": {"width": width, "height": 800}}
    with opened(browser, site, "trends.html", **look) as page:
        points = page.locator("section[data-device='alpha-quick'] svg a:visible")
        assert points.count() == 2
        points.last.click()
        page.wait_for_selector("dd[data-change='newly-crashing']")
        assert counts(page, "dd[data-change='newly-crashing']") == [2]


def test_the_contract_shows_every_clause_with_its_faults(
    browser: Any, runs: list[Path], tmp_path: Path
) -> None:
    build(runs[:1], tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "contract.html") as page:
        shown = page.evaluate(
            """Object.fromEntries([...document.querySelectorAll('details.clause')].map((each) => [
               each.id, [...each.querySelectorAll('dl > div')].filter(
                 (row) => row.querySelector('dt').textContent == 'Planted faults'
               ).flatMap((row) => [...row.querySelectorAll('code')].map((code) => code.textContent))]))"""
        )
    assert shown == {clause.id: list(clause.faults) for clause in load().clauses.values()}
