"""What a reader looks for is found: by the search box of every page, by filters, and on the pages of causes and bugs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lxml.html
import pytest

from devices.cell import CellKey, Verdict
from reports.dashboard.build import Options, build
from reports.dashboard.ingest import name_of_issue
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import opened, visiting, wait_until

LU_BUG = "https://github.com/pytorch/pytorch/issues/84577"
SEEN_BUG = "https://github.com/pytorch/pytorch/issues/139006"

#: What is typed, and what the address of the page begins with after Enter.
FOUND = [
    ("linalg.lu", "op/linalg.lu.html"),
    ("conv2d", "op/nn.functional.conv2d.html"),
    ("nn.functional.relu", "op/nn.functional.relu.html"),
    ("where", "op/where.html"),
    ("only.beta", "op/only.beta.html"),
    ("false while busy", "op/false-while-busy~"),
    ("linalg.ul", "op/linalg.lu.html"),
    ("wher", "op/where.html"),
    ("relv", "op/nn.functional.relu.html"),
    ("layout.out_kept", "contract.html#layout.out_kept"),
    ("out_kept", "contract.html#layout.out_kept"),
    ("streams.query", "contract.html#streams.query"),
    ("layout.vaules", "contract.html#layout.values"),
    ("layout.bounds::linalg.lu[bool]", "cell.html#device=alpha-quick&clause=layout.bounds&op=linalg.lu&dtype=bool"),
    ("mul values int64", "cell.html#device=alpha-quick&clause=layout.values&op=mul&dtype=int64"),
    ("where layout.values bool", "cell.html#device=alpha-quick&clause=layout.values&op=where&dtype=bool"),
    ("pytorch#84577", f"bug.html#url={quote(LU_BUG, safe='')}"),
    ("139006", f"bug.html#url={quote(SEEN_BUG, safe='')}"),
    ("calls crash", "cause.html#id="),
    ("beta", "grid.html#device=beta-quick"),
]  # fmt: skip


@pytest.fixture(scope="module")
def friendly(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the fleet without the hostile run."""
    folder = tmp_path_factory.mktemp("friendly") / "site"
    build(runs[:3], folder, Options(now=NOW, jobs=1))
    return folder


def look_up(page: Any, text: str) -> None:
    """What a reader does: the key "/", the name, and Enter."""
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


@pytest.mark.slow
@pytest.mark.parametrize("start", ["index.html", "op/where.html", "grid.html"])
def test_a_name_and_one_key_lead_to_each_of_twenty_things(
    browser: Any, friendly: Path, start: str
) -> None:
    assert len(FOUND) == 20
    with visiting(browser, friendly) as (page, visit):
        for text, wanted in FOUND:
            visit(start)
            # Waiting for the address is not enough: what is looked up may be the page where the reader is.
            with page.expect_navigation(url=lambda url, wanted=wanted: f"/site/{wanted}" in url):
                look_up(page, text)


@pytest.mark.slow
def test_results_are_chosen_with_the_arrows_and_left_with_escape(
    browser: Any, friendly: Path
) -> None:
    with opened(browser, friendly, "trends.html") as page:
        page.keyboard.press("Control+k")
        page.keyboard.type("t")
        page.wait_for_selector("#search-option-1")
        names = page.locator("#search-options li span").all_inner_texts()
        assert names[0] in ("t", "T")
        page.keyboard.press("ArrowDown")
        active = page.get_attribute("#search-input", "aria-activedescendant")
        assert active == "search-option-1"
        page.keyboard.press("Escape")
        assert page.locator("#search-options").is_hidden()
        look_up(page, "nothing is called this")
        assert "Nothing is called" in page.inner_text("#search-options")
        assert page.url.endswith("trends.html")


@pytest.mark.slow
def test_a_slash_in_a_query_is_a_letter(browser: Any, friendly: Path) -> None:
    with opened(browser, friendly, "explore.html#q=") as page:
        page.click("#query")
        page.keyboard.type("op:a/b")
        assert page.input_value("#query") == "op:a/b"


def test_a_cause_has_a_page_with_its_cells_on_each_device(browser: Any, tmp_path: Path) -> None:
    told = [fleet.failing(fleet.cell(fleet.VALUES, op)) for op in ("mul", "t", "T")]
    runs = [
        fleet.write(tmp_path / "0", "alpha", fleet.ALPHA, told[0], day=1,
                    plan={"families": dict.fromkeys(fleet.OPS, "pointwise")}),
        *(
            fleet.write(tmp_path / name, name, fleet.ALPHA, *told, day=2,
                        plan={"families": dict.fromkeys(fleet.OPS, "pointwise")})
            for name in ("alpha", "beta")
        ),
        fleet.write(tmp_path / "calm", "calm", fleet.ALPHA, day=2),
    ]  # fmt: skip
    build(runs, tmp_path / "site", Options(now=NOW, jobs=1))
    with opened(browser, tmp_path / "site", "causes.html") as page:
        page.click("section[data-device='alpha-quick'] li[data-cause] a >> nth=0")
        page.wait_for_selector("[data-verdict='regression']")
        said = page.inner_text("main")
        assert "wrong values if an input is not contiguous" in page.inner_text("h1")
        assert "Did not fail in the run before\n2" in said
        assert "Not on calm · quick." in said
        assert page.locator(".cells a").all_inner_texts() == [
            "T[float32]", "mul[float32]", "t[float32]",
        ]  # fmt: skip
        page.click(".devices >> text=beta · quick")
        wait_until(page, "document.querySelector('.cells a').href.includes('device=beta-quick')")
        page.click("text=mul[float32]")
        page.wait_for_selector("[data-status='fail']")
        page.click("section >> text=wrong values")
        page.wait_for_selector("[data-verdict='regression']")


@pytest.mark.slow
def test_a_cause_that_is_gone_says_so(browser: Any, friendly: Path) -> None:
    with opened(browser, friendly, "cause.html#id=0000000000") as page:
        assert "may be fixed" in page.inner_text("[role=alert]")


@pytest.mark.slow
def test_a_public_bug_has_a_page_with_blocks_and_cells(browser: Any, friendly: Path) -> None:
    with opened(browser, friendly, "bugs.html") as page:
        rows = page.locator("li[data-bug]")
        names = [each.get_attribute("data-bug") for each in rows.all()]
        assert names[0] == "pytorch#84577"
        assert "pytorch#139006" in names
        assert "kernel: steps by one stride" in rows.first.inner_text()
        assert rows.first.locator(".n").inner_text() == "3 cells"
        rows.first.locator("a").first.click()
        page.wait_for_selector("h1 >> text=pytorch#84577")
        section = page.locator("section[data-device='alpha-quick']")
        assert "3 cells fail as listed" in section.inner_text()
        assert section.locator(".cells a").all_inner_texts() == [
            f"linalg.lu[{dtype}]" for dtype in fleet.DTYPES[1:]
        ]
        assert page.get_attribute(".lede a", "href") == LU_BUG
        section.locator("a >> text=1").first.click()  # the line of the block
        page.wait_for_selector("#alpha-quick-1")
        assert page.locator("#alpha-quick-1").is_visible()


@pytest.mark.slow
def test_a_bug_of_another_device_lists_the_cells_that_would_find_it(
    browser: Any, friendly: Path
) -> None:
    with opened(browser, friendly, f"bug.html#url={quote(SEEN_BUG, safe='')}") as page:
        assert "Reported for MPS." in page.inner_text(".lede")
        assert (
            "3 failing cells would detect it"
            in page.locator("section[data-device='beta-quick']").inner_text()
        )


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (LU_BUG, "pytorch#84577"),
        ("https://github.com/google/torchax/pull/32", "google/torchax#32"),
        ("https://example.org/bugs/7", "example.org/bugs/7"),
    ],
)
def test_an_issue_has_a_short_name(url: str, name: str) -> None:
    assert name_of_issue(url) == name


@pytest.mark.slow
def test_a_filter_opens_the_groups_of_what_it_leaves(browser: Any, friendly: Path) -> None:
    with opened(browser, friendly, "ops.html") as page:
        assert page.locator("tr[data-row]:visible").count() == 0
        page.fill("#filter", "linalg")
        assert page.locator("tr[data-row]:visible th").all_inner_texts() == ["linalg.lu"]
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        assert page.locator("tr[data-row]:visible").count() == 1
        page.fill("#filter", "")
        assert page.locator("tr[data-row]:visible").count() == 0


@pytest.mark.slow
def test_an_address_of_a_folded_clause_opens_it(browser: Any, friendly: Path) -> None:
    with opened(browser, friendly, "contract.html#layout.out_kept") as page:
        assert page.locator("#layout\\.out_kept dl").is_visible()
        assert page.locator("#layout\\.values dl").is_hidden()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of three devices: two cells fail on one of them, one on two, one on all."""
    folder = tmp_path_factory.mktemp("three")
    red = {"one": ("add", "mul", "where", "t"), "two": ("where", "t"), "three": ("t",)}
    for day in (1, 2):
        runs = [
            fleet.write(folder / f"{name}{day}", name, fleet.ALPHA,
                        *(fleet.failing(fleet.cell(fleet.VALUES, op)) for op in ops[: 2 * day]), day=day)
            for name, ops in red.items()
        ]  # fmt: skip
        labels = {"branch": "main" if day == 1 else "feature", "pr": str(day)}
        build(runs, folder / "site", Options(now=NOW, jobs=1, labels=labels))
    return folder / "site"


THREE = "compare.html#a=one-quick:latest&b=two-quick:latest&c=three-quick:latest"


@pytest.mark.slow
def test_three_devices_are_compared_by_where_cells_fail(browser: Any, three: Path) -> None:
    with opened(browser, three, THREE) as page:
        groups = page.locator("details[data-group] summary")
        assert groups.all_inner_texts() == [
            "Does not pass on one · quick; passes on two · quick and three · quick 2 cells",
            "Does not pass on one · quick and two · quick; passes on three · quick 1 cell",
        ]
        assert page.locator("details[open] .compared li").count() == 2
        page.fill("#query", "op:where")
        assert page.get_attribute("[data-differ]", "data-differ") == "1"
        page.fill("#query", "two:fail")
        assert page.get_attribute("[data-differ]", "data-differ") == "1"
        page.locator("details[open] .compared a").first.click()
        page.wait_for_selector("h1 >> text=where[float32]")


@pytest.mark.slow
def test_two_runs_are_compared_with_a_query(browser: Any, three: Path) -> None:
    address = "compare.html#a=one-quick:main&b=one-quick:latest"
    with opened(browser, three, address) as page:
        assert page.locator("dd[data-change='newly-failing']").inner_text() == "2"
        page.fill("#query", "op:t")
        assert page.locator("dd[data-change='newly-failing']").inner_text() == "1"
        assert "q=op%3At" in page.url
        page.select_option("#choose-third", index=1)
        page.wait_for_selector("h2 >> text=What differs")


@pytest.mark.slow
def test_an_address_names_the_latest_run_or_a_label(browser: Any, three: Path) -> None:
    cell = "device=one-quick&clause=layout.values&op=where&dtype=float32"
    with visiting(browser, three) as (page, visit):
        for run, status in (
            ("latest", "fail"),
            ("previous", "pass"),
            ("main", "pass"),
            ("feature", "fail"),
        ):
            visit(f"cell.html#{cell}&run={run}")
            assert page.get_attribute(".tag", "data-status") == status
        visit("grid.html#device=one-quick&run=main")
        assert "2026-10-01" in page.locator("#choose-run option:checked").text_content()
        assert "main · PR 1" in page.locator("#choose-run option:checked").text_content()


@pytest.mark.slow
def test_the_document_of_the_newest_run_has_a_permanent_address(three: Path) -> None:
    latest = json.loads((three / "v1" / "devices" / "one-quick" / "latest.json").read_text())
    assert latest["start"].startswith("2026-10-02")
    assert latest["labels"] == {"branch": "feature", "pr": "2"}


@pytest.mark.slow
def test_the_axis_of_a_trend_has_dates(three: Path) -> None:
    page = lxml.html.parse(str(three / "trends.html"))
    chart = page.xpath("//section[@data-device='one-quick']//*[contains(@class, 'chart')]")[0]
    texts = [each.text for each in chart.iter() if each.tag == "text"]
    assert {"2026-10-01", "2026-10-02"} <= set(texts)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of six devices on which much fails for many reasons, with long manifests."""
    folder = tmp_path_factory.mktemp("long")
    ops = [f"family{number % 30}.a_long_name_of_an_operator_{number}" for number in range(600)]
    families = {op: op.partition(".")[0] for op in ops}
    cells = fleet.grid((fleet.VALUES, fleet.BOUNDS), ops, ("float32",))
    manifest = "".join(
        f'[[expect]]\nclause = "layout.bounds"\nop = "{op}"\noutcome = "fail"\n'
        f'reason = "kernel: {op} steps by one stride, whatever the strides of its input are"\n'
        f'issue = "https://github.com/pytorch/pytorch/issues/{number + 1}"\n\n'
        for number, op in enumerate(ops[:300])
    )
    told = [
        fleet.failing(cell, repro=None, verdict=verdict, raises="RuntimeError",
                      failure=None, message=f"raised in {cell.unit}")
        for clause, verdict in ((fleet.VALUES, Verdict.REGRESSION), (fleet.BOUNDS, Verdict.EXPECTED))
        for cell in (CellKey(clause, op, "float32") for op in ops[:300])
    ]  # fmt: skip
    runs = [
        fleet.write(folder / f"{name}{day}", name, cells, *told[: 600 // day], day=day,
                    manifest=manifest.encode(), plan={"families": families})
        for name in ("one", "two", "three", "four", "five", "six") for day in (1, 2)
    ]  # fmt: skip
    build(runs, folder / "site", Options(now=NOW, jobs=1))
    return folder / "site"


LONG = ("index.html", "causes.html", "bugs.html", "manifest.html", "ops.html", "contract.html", "trends.html", "compare.html",
        "methodology.html", "grid.html", "explore.html", f"bug.html#url={quote(SEEN_BUG, safe='')}",
        "op/family0.a_long_name_of_an_operator_0.html", "cause.html",
        "cell.html#clause=layout.values&op=family0.a_long_name_of_an_operator_0&dtype=float32")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_no_page_overflows_and_none_is_long_on_a_phone(
    browser: Any, long: Path, width: int, scheme: str
) -> None:
    look = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with visiting(browser, long, **look) as (page, visit):
        for address in LONG:
            if address == "cause.html":
                visit("causes.html")
                address = page.locator("li[data-cause] a").first.get_attribute("href")
            visit(address)
            wide, high = page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
            )
            assert (address, wide) == (address, width)
            assert width > 390 or (address, high) < (address, 8000)


@pytest.mark.slow
def test_no_word_is_broken_one_letter_a_line(browser: Any, long: Path) -> None:
    """A text block that is narrower than a word of ten letters is one whose column was squeezed."""
    with visiting(browser, long, viewport={"width": 390, "height": 800}) as (page, visit):
        for address in LONG:
            visit(address)
            squeezed = page.evaluate(
                """[...document.querySelectorAll("main td, main th, main li, main dd, main p")].filter((each) => {
                  const box = each.getBoundingClientRect();
                  return box.height > 0 && each.innerText.length > 12 && box.width < 60;
                }).map((each) => each.innerText.slice(0, 60))"""
            )
            assert (address, squeezed) == (address, [])
