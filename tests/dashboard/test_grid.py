"""The grid and the query in a real Chromium: filters, completion, errors, keyboard, addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reports.dashboard.build import Options, build
from reports.status_letters import KINDS
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.independent import cells
from tests.dashboard.looking import READY, counts, opened, wait_until

GRID = "grid.html#device=alpha-quick"


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> dict[str, dict[tuple[str, str], str]]:
    """The outcome of each cell, by device."""
    return {
        name: {each[:2]: each[2] for each in cells(runs[number])}
        for name, number in (("alpha", 1), ("beta", 2))
    }


def explore(page: Any, query: str) -> int:
    """Type a query, and read how many cells it found."""
    page.fill("#query", query)
    return int(page.get_attribute("[data-found]", "data-found"))


def test_queries_find_the_cells_that_they_name(
    browser: Any, site: Path, found: dict[str, dict[tuple[str, str], str]]
) -> None:
    alpha, beta = found["alpha"], found["beta"]
    with opened(browser, site, "explore.html#q=") as page:
        assert explore(page, "alpha:fail") == sum(each == "fail" for each in alpha.values())
        assert explore(page, "alpha:crash,hang") == 2
        assert explore(page, "alpha:any beta:absent") == len(alpha.keys() - beta.keys())
        assert explore(page, "beta:fail and not alpha:fail") == sum(
            beta[c] == "fail" and alpha.get(c) != "fail" for c in beta
        )
        assert explore(page, "alpha:any clause:layout.* dtype:bfloat16 op:nn.*") == 6
        assert explore(page, "alpha:any (op:add or op:mul) dtype:float32,bool") == 12
        assert explore(page, "alpha:any family:streams") == 1
        assert explore(page, 'op:"false while busy"') == 2
        assert explore(page, 'beta:any dtype:"@4 ranks"') == 1
        assert explore(page, "beta:fail dtype:*@compiled") == 1
        assert explore(page, "alpha:any CONV2D") == 12
        assert explore(page, "not status:bad alpha:any") < explore(page, "alpha:any")
        assert explore(page, "alpha:expected") == 3
        assert explore(page, "alpha:ambiguous") == 1
        assert explore(page, "alpha:bad") == sum(each != "pass" for each in alpha.values())


MISTAKES = [
    ("alhpa:fail", "“alhpa” is neither a field nor a device. Did you mean “alpha”?", 0),
    ("alpha:fial", "“fial” is not a status. Did you mean “fail”?", 6),
    ("op:", "Expected a value after this", 2),
    ("(op:add", "not closed", 0),
    ("op:add)", "no matching (", 6),
    ("op:add and", "ends here; expected a term", 10),
    ('op:"add', "quote is opened", 3),
    ("or op:add", "Expected a term, such as op:add, found", 0),
]


@pytest.mark.slow
def test_a_mistake_is_told_with_its_place(browser: Any, site: Path) -> None:
    with opened(browser, site, "explore.html#q=") as page:
        for query, said, at in MISTAKES:
            page.fill("#query", query)
            text = page.inner_text("#query-problem")
            assert said in text
            pointer = page.locator("#query-problem pre").text_content().split("\n")[1]
            assert (query, pointer.index("^")) == (query, at)
            assert page.get_attribute("#query", "aria-invalid") == "true"
        page.fill("#query", "op:add")
        assert page.inner_text("#query-problem") == ""


def test_completion_by_keyboard(browser: Any, site: Path) -> None:
    with opened(browser, site, "explore.html#q=") as page:
        page.click("#query")
        page.keyboard.type("alp")
        assert "alpha:" in page.locator("#query-options li span").all_inner_texts()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.keyboard.type("cra")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.input_value("#query") == "alpha:crash "
        page.keyboard.type("op:whe")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Tab")
        assert page.input_value("#query") == "alpha:crash op:where "
        assert page.get_attribute("[data-found]", "data-found") == "1"
        page.keyboard.press("Escape")
        assert page.locator("#query-options").is_hidden()


def test_the_address_holds_every_choice(browser: Any, site: Path) -> None:
    with opened(browser, site, GRID) as page:
        page.click("summary >> text=sorting")
        page.select_option("#choose-columns", "dtype")
        page.select_option("#choose-clause", "layout.*")
        page.select_option("#choose-sort", "name")
        page.select_option("#choose-rows", "namespace")
        page.fill("#query", "status:bad")
        shown = page.inner_text("main .status")
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector(READY, state="attached")
        assert page.inner_text("main .status") == shown
        assert page.input_value("#choose-columns") == "dtype"
        assert page.input_value("#query") == "status:bad"
        page.select_option("#choose-columns", "clause")
        page.go_back()
        wait_until(page, "document.querySelector('#choose-columns').value == 'dtype'")


@pytest.mark.slow
def test_the_grid_counts_what_the_junit_files_hold(
    browser: Any, site: Path, found: dict[str, dict[tuple[str, str], str]]
) -> None:
    alpha = found["alpha"]
    wanted = {
        name: [
            each for cell, each in alpha.items() if (cell[0] == fleet.QUERY) == (name == "cases")
        ]
        for name in ("ops", "cases")
    }
    with opened(browser, site, GRID) as page:
        shown = page.locator("[data-passed]")
        for view, outcomes in wanted.items():
            page.click(f"button[data-view={view}]")
            judged = sum(each != "ambiguous-reference" for each in outcomes)
            passed = sum(each == "pass" for each in outcomes)
            assert shown.get_attribute("data-passed") == str(passed)
            assert shown.get_attribute("data-judged") == str(judged)
            tab = page.inner_text(f"button[data-view={view}]")
            assert tab.endswith(f"{judged - passed} not passing")
        page.click("button[data-view=ops]")
        page.click("summary >> text=sorting")
        page.select_option("#choose-clause", "layout.out_kept")
        of_clause = [each for cell, each in alpha.items() if cell[0] == "layout.out_kept"]
        assert shown.get_attribute("data-judged") == str(len(of_clause))


def walk(page: Any, rows: int, columns: int) -> list[str]:
    """What a screen reader is told of each square, going there by arrow keys."""
    page.focus(".vgrid")
    page.keyboard.press("Control+Home")
    told = []
    for _ in range(rows):
        page.keyboard.press("Home")
        for _ in range(columns):
            assert page.get_attribute(".vgrid", "aria-activedescendant") == "active-square"
            told.append(page.get_attribute("#active-square", "aria-label"))
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    return told


COLOURS = {kind.name: (kind.light, kind.dark) for kind in KINDS}
#: The colour that most of a square's opaque pixels have, by row and column.
DRAWN = """
([row, column, width]) => {
  const canvas = document.querySelectorAll(".vrow canvas")[row];
  const { data } = canvas.getContext("2d").getImageData(column * width, 0, width, 26);
  const seen = new Map();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] < 250) continue;
    const colour = "#" + [...data.slice(at, at + 3)].map((each) => each.toString(16).padStart(2, "0")).join("");
    seen.set(colour, (seen.get(colour) || 0) + 1);
  }
  return [...seen].sort((a, b) => b[1] - a[1])[0]?.[0] ?? null;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_squares_are_drawn_in_the_colour_of_their_kind(
    browser: Any, site: Path, scheme: str
) -> None:
    with opened(browser, site, f"{GRID}&by=dtype&sort=name", color_scheme=scheme) as page:
        # Rows T, add, linalg.lu, mul; columns bool, int64, bfloat16, float32.
        for row, column, kind in (
            (1, 3, "fail"), (1, 1, "error"), (2, 0, "expected"), (3, 3, "hang"), (0, 3, "unsupported"),
            (0, 0, "pass"),
        ):  # fmt: skip
            drawn = page.evaluate(DRAWN, [row, column, 34])
            assert (kind, drawn) == (kind, COLOURS[kind][scheme == "dark"])
        page.click("#theme")
        wait_until(page, f"({DRAWN})([1, 3, 34]) == '{COLOURS['fail'][scheme == 'light']}'")
    with opened(browser, site, f"{GRID}&by=dtype&sort=name&q=status:crash") as page:
        assert page.evaluate(DRAWN, [0, 0, 34]) == COLOURS["crash"][0]


@pytest.mark.slow
def test_a_square_shows_the_most_urgent_of_its_cells(browser: Any, site: Path) -> None:
    with opened(browser, site, f"{GRID}&by=dtype") as page:
        labels = walk(page, rows=8, columns=4)
        for wanted in (
            "where, bool: crash", "mul, float32: hang", "add, int64: error", "add, float32: fail",
            "linalg.lu, bool: expected failure", "t, float32: ambiguous reference",
            "T, float32: unsupported", "add, bool: pass",
        ):  # fmt: skip
            assert wanted in labels


@pytest.mark.slow
def test_families_are_rows_that_open(browser: Any, tmp_path: Path) -> None:
    families = {
        op: "linear" if op in ("linalg.lu", "where", "add") else "other" for op in fleet.OPS
    }
    told = [fleet.failing(fleet.cell(fleet.VALUES, op)) for op in ("add", "where")]
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, *told, plan={"families": families})
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "grid.html#group=family") as page:
        names = page.locator(".vrow .vname")
        assert names.all_inner_texts() == ["▸ linear 3", "▸ other 5"]
        label = walk(page, rows=1, columns=1)[0]
        assert label == "linear, layout.values: fail; 2 of 3 have cells that do not pass"
        names.first.click()
        assert names.all_inner_texts() == ["▾ linear 3", "add", "where", "linalg.lu", "▸ other 5"]
        page.reload()
        page.wait_for_selector(READY, state="attached")
        assert names.count() == 5, "what is open is in the address"
        page.focus(".vgrid")
        page.keyboard.press("Control+Home")
        page.keyboard.press("Enter")
        assert names.count() == 2
        page.go_back()
        wait_until(page, "document.querySelectorAll('.vrow').length == 5")


@pytest.mark.slow
def test_what_is_not_declared_is_shown_as_such(browser: Any, site: Path) -> None:
    with opened(browser, site, "grid.html#device=beta-quick") as page:
        heads = [each.get_attribute("title") for each in page.locator(".vcol").all()]
        assert any("unsupported by declaration, requires strides" in (head or "") for head in heads)
        labels = walk(page, rows=1, columns=len(heads))
        assert any(label.endswith(": unsupported by declaration") for label in labels)


@pytest.mark.slow
def test_the_grid_by_keyboard_alone(browser: Any, site: Path) -> None:
    with opened(browser, site, f"{GRID}&by=dtype&sort=name") as page:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.getAttribute('role')") == "grid":
                break
        else:
            pytest.fail("the grid is not reached by the Tab key")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(".vcell.on[aria-label='add, float32: fail']", state="attached")
        page.wait_for_selector(".panel >> text=layout.values")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-status='fail']")
        assert "add[float32]" in page.inner_text("h1")


@pytest.mark.slow
def test_rows_are_made_for_what_is_in_view_alone(browser: Any, tmp_path: Path) -> None:
    ops = [f"op{number:03d}" for number in range(700)]
    run = fleet.write(tmp_path / "run", "wide", fleet.grid(("layout.values",), ops, fleet.DTYPES))
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "grid.html#by=dtype") as page:
        assert page.locator(".vrow").count() < 60
        page.focus(".vgrid")
        page.keyboard.press("Control+End")
        page.wait_for_selector("text=op699")
        assert page.locator(".vcell.on").get_attribute("aria-label") == "op699, float32: pass"
        assert page.locator(".vrow").count() < 60
        page.evaluate(
            "(grid => { grid.scrollTop = 350 * grid.dataset.row; })(document.querySelector('.vgrid'))"
        )
        page.wait_for_selector("text=op351")


@pytest.mark.slow
def test_the_cells_found_can_be_saved(browser: Any, site: Path, tmp_path: Path) -> None:
    with opened(browser, site, "explore.html#q=alpha:crash") as page:
        with page.expect_download() as started:
            page.click("text=Download these cells")
        started.value.save_as(tmp_path / "cells.csv")
    lines = (tmp_path / "cells.csv").read_text().splitlines()
    assert lines[0].startswith("clause,op,dtype,alpha-quick,beta-quick,")
    assert lines[1:] == ["layout.values,where,bool,crash,pass,not planned"] or lines[1].startswith(
        "layout.values,where,bool,crash,"
    )


@pytest.mark.slow
def test_a_missing_file_is_told_in_the_page(browser: Any, runs: list[Path], tmp_path: Path) -> None:
    build([runs[0]], tmp_path / "site", Options(now=NOW, jobs=1))
    for path in (tmp_path / "site" / "data" / "axes").iterdir():
        path.unlink()
    page = browser.new_page()
    page.goto(f"file://{tmp_path}/site/grid.html")
    page.wait_for_selector("[role=alert]")
    assert "could not be loaded" in page.inner_text("[role=alert]")
    page.close()


@pytest.mark.slow
def test_counts_helper_reads_numbers(browser: Any, site: Path) -> None:
    with opened(browser, site, "manifest.html") as page:
        section = "section[data-device='alpha-quick'] dd[data-count='blocks']"
        assert counts(page, section) == [3]
