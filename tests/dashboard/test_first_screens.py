"""The first screen of the overview and of the grid shows what fails, at every width, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lxml.html
import pytest

from conformance.contract import load
from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Failure, Kind
from reports.dashboard.build import Options, build
from reports.failures import causes_in
from reports.gate import gate
from reports.run import load_run
from reports.status_letters import KINDS
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import opened, visiting

#: Each width in both colour schemes; the fast tests take a phone and a laptop, one scheme each.
SCREENS = [
    pytest.param(
        *(width, height, scheme),
        marks=[] if (width, scheme) in {(390, "dark"), (1280, "light")} else [pytest.mark.slow],
    )
    for width, height in ((390, 844), (768, 1024), (1280, 800), (1920, 1080))
    for scheme in ("light", "dark")
]
OP_CLAUSES, CASE_CLAUSES = (
    [clause.id for clause in load().clauses.values() if clause.unit == unit]
    for unit in ("op", "case")
)
OPS = [f"op{number:03d}" for number in range(80)]
CASES = [(f"{number}_of_65", clause) for number, clause in enumerate(CASE_CLAUSES, 100)]
RED_CASE = CellKey(CASE_CLAUSES[-1], CASES[-1][0], "")
#: Regressions of ops that stand last by name, in clauses that stand last in the contract.
RED_OPS = [CellKey(OP_CLAUSES[-1], op, "float32") for op in OPS[-3:]]
#: More failures than any op with a regression has, but all of them expected.
EXPECTED = [CellKey(clause, OPS[40], "float32") for clause in OP_CLAUSES[:6]]

COLOURS = {colour: kind.name for kind in KINDS for colour in (kind.light, kind.dark)}
#: The squares that are on the screen: (name of the row, title of the column, colour that most of its pixels have).
IN_VIEW = """
() => {
  const grid = document.querySelector(".vgrid"), box = grid.getBoundingClientRect();
  const head = grid.querySelector(".vhead").getBoundingClientRect(), seen = [];
  const columns = [...grid.querySelectorAll(".vcol")];
  for (const row of grid.querySelectorAll(".vrow")) {
    const { top, bottom } = row.getBoundingClientRect(), canvas = row.querySelector("canvas");
    if (top < head.bottom - 1 || bottom > Math.min(box.bottom, innerHeight)) continue;
    const name = row.querySelector(".vname"), edge = name.getBoundingClientRect().right;
    columns.forEach((column, j) => {
      const place = column.getBoundingClientRect();
      if (place.left < edge - 1 || place.right > Math.min(box.right, innerWidth)) return;
      const wide = canvas.width / columns.length;
      const { data } = canvas.getContext("2d").getImageData(Math.round(j * wide), 0, Math.round(wide), canvas.height);
      const colours = new Map();
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 250) continue;
        const colour = "#" + [...data.slice(at, at + 3)].map((each) => each.toString(16).padStart(2, "0")).join("");
        colours.set(colour, (colours.get(colour) || 0) + 1);
      }
      seen.push([name.textContent, column.title, [...colours].sort((a, b) => b[1] - a[1])[0]?.[0] ?? null]);
    });
  }
  return seen;
}
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a device with many operators and cases, few of which fail."""
    folder = tmp_path_factory.mktemp("large")
    cells = [
        *fleet.grid(OP_CLAUSES, OPS, ("float32",)),
        *(CellKey(clause, name, "") for name, clause in CASES),
    ]
    told = [fleet.failing(cell, repro=None) for cell in (*RED_OPS, RED_CASE)]
    told += [fleet.failing(cell, repro=None, verdict=Verdict.EXPECTED) for cell in EXPECTED]
    run = fleet.write(folder / "run", "large", cells, *told)
    build([run], folder / "site", Options(now=NOW, jobs=1))
    return folder / "site"


@pytest.fixture(scope="module")
def friendly(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the fleet without the hostile run."""
    folder = tmp_path_factory.mktemp("friendly") / "site"
    build(runs[:3], folder, Options(now=NOW, jobs=1))
    return folder


def in_view(page: Any) -> list[tuple[str, str, str]]:
    """The squares that are on the screen: row, column, status."""
    seen = page.evaluate(IN_VIEW)
    return [(row, column, COLOURS[colour]) for row, column, colour in seen if colour is not None]


def rows_in_view(page: Any) -> dict[str, set[str]]:
    """The rows that are on the screen, and the statuses in each."""
    found: dict[str, set[str]] = {}
    for row, _, kind in in_view(page):
        found.setdefault(row, set()).add(kind)
    return found


def overflows(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_the_grid_opens_on_what_fails(
    browser: Any, large: Path, width: int, height: int, scheme: str
) -> None:
    look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    with visiting(browser, large, **look) as (page, visit):
        visit("grid.html")
        assert not overflows(page)
        first = list(rows_in_view(page).items())[:4]
        assert [name for name, _ in first] == [OPS[40], *(cell.unit for cell in RED_OPS)]
        assert ["fail" in kinds or "expected" in kinds for _, kinds in first] == [True] * 4
        visit("grid.html#show=cases")
        assert in_view(page)[0] == (RED_CASE.unit, RED_CASE.clause, "fail")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080)])
def test_forty_rows_are_on_a_screen_and_its_width_is_used(
    browser: Any, large: Path, width: int, height: int
) -> None:
    with opened(browser, large, "grid.html", viewport={"width": width, "height": height}) as page:
        assert len(rows_in_view(page)) >= 40
        box = page.locator(".vgrid").bounding_box()
        assert box["width"] > width - 40
        titles = {column for _, column, _ in in_view(page)}
        assert len(titles) == len(OP_CLAUSES), "every column is in view"
        page.click(".vcol >> nth=0")  # not a square: the panel stays away
        assert page.locator(".panel").is_hidden()


@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_each_row_of_a_query_for_regressions_shows_one(
    browser: Any, large: Path, width: int, height: int, scheme: str
) -> None:
    look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    with visiting(browser, large, **look) as (page, visit):
        visit("grid.html#q=status:regression")
        assert rows_in_view(page) == {cell.unit: {"fail"} for cell in RED_OPS}
        page.click("button[data-view=cases]")
        assert rows_in_view(page) == {RED_CASE.unit: {"fail"}}


@pytest.mark.slow
def test_a_query_that_only_cases_match_opens_the_cases(browser: Any, large: Path) -> None:
    with opened(browser, large, f"grid.html#q=status:regression clause:{RED_CASE.clause}") as page:
        assert page.get_attribute("button[data-view=cases]", "aria-pressed") == "true"
        assert rows_in_view(page) == {RED_CASE.unit: {"fail"}}


@pytest.mark.slow
def test_a_view_without_a_match_says_so(browser: Any, large: Path) -> None:
    with opened(browser, large, "grid.html#show=cases&q=op:op001") as page:
        assert "No cell of a case matches." in page.inner_text(".panel")


@pytest.mark.slow
def test_operators_and_cases_are_never_in_one_grid(browser: Any, large: Path) -> None:
    with visiting(browser, large) as (page, visit):
        for show, clauses, corner in (
            ("ops", OP_CLAUSES, "Operator"), ("cases", CASE_CLAUSES, "Case"),
        ):  # fmt: skip
            visit(f"grid.html#show={show}")
            titles = page.eval_on_selector_all(".vcol", "all => all.map((each) => each.title)")
            assert page.inner_text(".vcorner") == corner
            assert sorted(titles) == sorted(clauses)
            names = page.locator(".vrow .vname").all_inner_texts()
            assert {name in OPS for name in names} == {show == "ops"}


@pytest.mark.slow
def test_a_cell_leads_to_its_square_in_the_grid(browser: Any, large: Path) -> None:
    for cell in (RED_OPS[1], RED_CASE):
        address = f"cell.html#clause={cell.clause}&op={cell.unit}&dtype={cell.dtype}"
        with opened(browser, large, address) as page:
            page.click("text=in the grid")
            page.wait_for_selector(
                f".vcell.on[aria-label='{cell.unit}, {cell.clause}: fail']", state="attached"
            )


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [each for each in SCREENS if each.values[0] in (390, 1280)]
)
def test_the_overview_opens_on_the_causes_of_regressions(
    browser: Any, friendly: Path, width: int, height: int, scheme: str
) -> None:
    look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    with opened(browser, friendly, "index.html", **look) as page:
        assert not overflows(page)
        links = page.locator("a[data-cause]")
        shown = {
            "&".join(
                (
                    links.nth(place).get_attribute("href").partition("&device=")[2],
                    links.nth(place).get_attribute("data-cause"),
                )
            )
            for place in range(links.count())
            if links.nth(place).bounding_box()["y"] + 20 < height
        }
        # By hand, from fleet.py: what alpha's second run and beta's run have, by clause and op.
        wanted = {
            ("alpha-quick", "layout.values", "add"), ("alpha-quick", "layout.bounds", "linalg.lu"),
            ("alpha-quick", "layout.values", "where"), ("alpha-quick", "layout.out_kept", "mul"),
            ("alpha-quick", "layout.values", "T"), ("alpha-quick", "layout.bounds", "add"),
            ("beta-quick", "layout.values", "mul"), ("beta-quick", "streams.query", "false while busy"),
        }  # fmt: skip
        assert shown == {f"{device}&{clause}::{op}" for device, clause, op in wanted}
        red = page.evaluate("getComputedStyle(document.querySelector('a[data-cause]')).color")
        fail = next(kind for kind in KINDS if kind.name == "fail")
        colour = fail.dark if scheme == "dark" else fail.light
        assert red == "rgb({}, {}, {})".format(*bytes.fromhex(colour.removeprefix("#")))


@pytest.mark.slow
def test_the_first_screen_of_six_devices_says_what_each_needs(browser: Any, tmp_path: Path) -> None:
    runs = []
    for number in range(6):
        device = f"device{number}"
        red = [fleet.failing(fleet.cell(fleet.OUT, op)) for op in fleet.OPS[: 2 * number]]
        runs += [
            fleet.write(tmp_path / f"{device}-1", device, fleet.ALPHA, day=1),
            fleet.write(tmp_path / f"{device}-2", device, fleet.ALPHA, *red, day=2, driver="26.2"),
        ]
    build(runs, tmp_path / "site", Options(now=NOW, jobs=1, labels={"branch": "main", "pr": "7"}))
    with opened(
        browser, tmp_path / "site", "index.html", viewport={"width": 1280, "height": 800}
    ) as page:
        devices = page.locator(".device")
        assert devices.count() == 6
        box = devices.last.bounding_box()
        assert box["y"] + box["height"] <= 800
        most = page.locator(".device[data-device='device5-quick']").inner_text()
        for wanted in ("device5", "8 regressions", "2026-10-02", "torch 2.13.0", "driver 26.2", "suite",
                       "main", "PR 7", "Since 2026-10-01", "8 newly failing"):  # fmt: skip
            assert wanted in most
        assert "no regression" in devices.last.inner_text()
        page.click(".device >> nth=0 >> text=Since 2026-10-01")
        page.wait_for_selector("dd[data-change='newly-failing']")


@pytest.mark.slow
def test_four_devices_are_on_the_first_screen_whatever_their_causes_are_called(
    browser: Any, tmp_path: Path
) -> None:
    runs = []
    for device, count in (("one", 8), ("two", 8), ("three", 0), ("four", 0)):
        red = [
            fleet.failing(
                fleet.cell(fleet.OUT, op), repro=None, raises="RuntimeError",
                layouts=("contiguous", "transposed+offset"),
                failure=Failure(kind=Kind.RAISED, raises="RuntimeError", said=f"{op} {'takes no such arguments ' * 5}"),
            )
            for op in fleet.OPS[:count]
        ]  # fmt: skip
        runs += [
            fleet.write(tmp_path / f"{device}-1", device, fleet.ALPHA[1:], day=1),
            fleet.write(tmp_path / f"{device}-2", device, fleet.ALPHA[:-1], *red, day=2),
        ]
    note = "What the reader of this site must know, in one line."
    build(runs, tmp_path / "site", Options(now=NOW, jobs=1, note=note))
    with opened(
        browser, tmp_path / "site", "index.html", viewport={"width": 1280, "height": 800}
    ) as page:
        assert page.locator("a[data-cause]").count() == 12
        assert note in page.inner_text("main")
        box = page.locator(".device").last.bounding_box()
        assert box["y"] + box["height"] <= 800 - 50, "with room for a notice"


def test_regressions_come_before_everything_else(browser: Any, friendly: Path) -> None:
    with opened(browser, friendly, "index.html") as page:
        assert page.locator(".verdict").all_inner_texts() == [
            "✕ 6 regressions; 1 improvement", "✕ 3 regressions",
        ]  # fmt: skip
        device = page.locator(".device[data-device='alpha-quick']")
        since = {
            each.get_attribute("data-since"): each.inner_text()
            for each in device.locator("[data-since]").all()
        }
        assert since == {"newly-crashing": "2", "newly-failing": "1", "fixed": "1",
                         "changed-outcome": "2", "changed-expectation": "2"}  # fmt: skip
        new = ["new" in text for text in device.locator("li small").all_inner_texts()]
        assert new == [True] * 4 + [False] * 2
        device.locator("a[data-cause]").first.click()
        page.wait_for_selector("[data-verdict='regression']")
        page.click("text=layout.values::add[float32]")
        page.wait_for_selector("[data-status='fail']")


def test_the_overview_counts_what_the_gate_counts(runs: list[Path], friendly: Path) -> None:
    page = lxml.html.parse(str(friendly / "index.html"))
    for device, folder in (("alpha-quick", runs[1]), ("beta-quick", runs[2])):
        judged = gate(load_run(folder))
        red = [each for each in causes_in(judged) if each.verdict is Verdict.REGRESSION]
        card = page.xpath(f"//article[@id='alarm-{device}']")[0]
        assert len(card.xpath(".//a[@data-cause]")) == len(red)
        assert f": {judged.counts.regressions} regression" in card.get("aria-label")
        cells = [int(text.split()[0]) for text in card.xpath(".//li/small/text()")]
        assert sorted(cells) == sorted(len(each.results) for each in red)


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 390])
def test_large_counts_fit_a_phone(browser: Any, tmp_path: Path, width: int) -> None:
    ops = [fleet.cell(fleet.VALUES, f"op{number}") for number in range(1200)]
    cases = [CellKey(fleet.QUERY, f"case {number}", "") for number in range(300)]
    told = [fleet.failing(each, repro=None) for each in (*ops, *cases)]
    run = fleet.write(tmp_path / "run", "alpha", [*ops, *cases], *told)
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    look = {"viewport": {"width": width, "height": 844}}
    with opened(browser, tmp_path / "site", "grid.html", **look) as page:
        assert "1,200 not passing" in page.inner_text(".tabs")
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.slow
def test_the_pages_of_one_device_open_on_the_most_urgent_one(browser: Any, tmp_path: Path) -> None:
    red = fleet.failing(fleet.cell(fleet.VALUES, "add"))
    runs = [fleet.write(tmp_path / f"{name}{day}", name, fleet.ALPHA, *told, day=day)
            for name, told in (("calm", ()), ("red", (red,)), ("sound", ())) for day in (1, 2)]  # fmt: skip
    build(runs, tmp_path / "site", Options(now=NOW, jobs=1))
    with visiting(browser, tmp_path / "site") as (page, visit):
        visit("grid.html")
        assert page.locator("select").first.input_value() == "red-quick"
        visit("compare.html")
        chosen = page.locator("select option:checked").all_inner_texts()
        assert [text.partition(" · ")[0] for text in chosen] == ["red", "red", "no third run"]


@pytest.mark.slow
def test_a_run_without_regressions_says_so(browser: Any, tmp_path: Path) -> None:
    run = fleet.write(tmp_path / "run", "calm", fleet.ALPHA)
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "index.html") as page:
        assert page.inner_text(".device .verdict") == "✓ no regression"
        assert "Nothing fails." in page.inner_text(".device")
        assert page.locator(".device.red, .device.amber").count() == 0


@pytest.mark.slow
def test_causes_that_do_not_gate_come_last_and_are_counted_apart(
    browser: Any, tmp_path: Path
) -> None:
    plan = fleet.plan_of(fleet.ALPHA, "alpha")
    clauses = [
        {"id": each.id, "family": each.family, "status": each.status, "unit": each.unit,
         "provisional": each.id == fleet.VALUES}
        for each in plan.clauses
    ]  # fmt: skip
    told = [
        *(fleet.failing(fleet.cell(fleet.VALUES, op)) for op in ("add", "mul")),
        fleet.failing(fleet.cell(fleet.OUT, "where"), Outcome.HANG),
    ]
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, *told, plan={"clauses": clauses})
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "index.html") as page:
        said = "1 regression; 2 more in clauses that do not gate yet"
        assert page.inner_text(".verdict") == f"✕ {said}"
        causes = page.locator(".device li").all_inner_texts()
        assert ["does not gate yet" in text for text in causes] == [False, True, True]
