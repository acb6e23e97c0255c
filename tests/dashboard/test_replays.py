"""The page of a replayed program: its calls by outcome, and what to fix first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lxml.html
import msgspec
import pytest

from reports.dashboard.build import Options, build
from reports.dashboard.documents import RunDocument
from reports.folder import CALLS_FILE
from reports.model import RunError
from reports.replayed_calls import CallOutcome, read_calls, write_calls
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import visiting
from tests.dashboard.test_hostile import harmless

AXE = Path(__file__).with_name("vendor") / "axe.min.js"


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of one replay."""
    folder = tmp_path_factory.mktemp("replays")
    build([fleet.replay(folder / "run")], folder / "site", Options(now=NOW, jobs=1))
    return folder / "site"


def page_of(site: Path) -> str:
    (path,) = (site / "replay").iterdir()
    return path.relative_to(site).as_posix()


def read(site: Path, address: str) -> Any:
    return lxml.html.fromstring((site / address).read_text(encoding="utf-8"))


def texts(tree: Any, path: str) -> list[str]:
    return [" ".join(" ".join(each.itertext()).split()) for each in tree.xpath(path)]


def test_the_page_counts_distinct_calls_and_the_calls_of_the_program(replays: Path) -> None:
    tree = read(replays, page_of(replays))
    assert texts(tree, "//dd[@data-count]") == [
        "2 of 7 28.6%",
        "101 of 159 63.5%",
        "2.5 relu.default~000002",
    ]
    counts = {
        row.get("data-outcome"): texts(row, ".//span[@data-calls or @data-times]")
        for row in tree.xpath("//tr[@data-outcome]")
    }
    assert counts == {
        "right": ["2", "101"],
        "crashed": ["1", "5"],
        "wrong": ["3", "51"],
        "missing": ["1", "2"],
    }


def test_the_cause_that_affects_most_calls_comes_first(replays: Path) -> None:
    tree = read(replays, page_of(replays))
    rows = [texts(row, "./td") for row in tree.xpath("//tr[@data-cause]")]
    assert [row[:2] for row in rows] == [
        ["3", "51"],
        ["1", "5"],
        ["1", "2"],
        ["1 none new", "40"],  # after those of calls that no cause before it affects
    ]
    assert rows[0][3] == "net.py:7 Net.first"
    assert rows[2][3] == "unknown"


def test_each_call_that_is_not_right_has_its_place_and_its_cell(replays: Path) -> None:
    tree = read(replays, page_of(replays))
    rows = {row.get("data-call"): row for row in tree.xpath("//tr[@data-call]")}
    assert [*rows] == [f"{n}.default~00000{i}" for n, i in (("cos", 5), ("mm", 1), ("relu", 2), ("flip", 6), ("sort", 4))]  # fmt: skip
    cells = texts(rows["cos.default~000005"], "./td")
    assert cells == ["crashed", "cos.default~000005", "float32", "5", "net.py:11 Net.last", "died: SIGSEGV"]  # fmt: skip
    (link,) = rows["mm.default~000001"].xpath(".//a/@href")
    assert link == (
        "../cell.html#device=gamma-replay&clause=layout.values&op=mm.default~000001&dtype=float32"
    )


def test_the_overview_leads_to_the_page(replays: Path) -> None:
    (row,) = read(replays, "index.html").xpath("//tr[@data-replay]")
    assert texts(row, "./td")[2:4] == ["2 of 7", "101 of 159"]
    (href,) = row.xpath("./th/a/@href")
    assert href.replace("%7E", "~") == page_of(replays)


def test_a_site_without_replays_has_no_list_of_them(tmp_path: Path) -> None:
    build([fleet.beta(tmp_path / "run")], tmp_path / "site", Options(now=NOW, jobs=1))
    assert not read(tmp_path / "site", "index.html").xpath("//h2[@id='replays']")
    assert not (tmp_path / "site" / "replay").exists()


def test_each_program_has_a_page_of_its_newest_replay(tmp_path: Path) -> None:
    """Only the newest run of a device and plan has pages of cells."""
    programs = (("a.py", 1), ("b.py", 2), ("b.py", 3))
    runs = [fleet.replay(tmp_path / str(day), name, day) for name, day in programs]
    build(runs[:2], tmp_path / "site", Options(now=NOW, jobs=1))
    build(runs[2:], tmp_path / "site", Options(now=NOW, jobs=1))  # the others come from the site
    site = tmp_path / "site"
    pages = {
        tree.xpath("string(//h1)"): tree
        for path in (site / "replay").iterdir()
        for tree in [read(site, f"replay/{path.name}")]
    }
    assert {*pages} == {"a.py", "b.py"}
    assert pages["b.py"].xpath("//time/@datetime")[0].startswith("2026-10-03")
    assert not pages["a.py"].xpath("//a[contains(@href, 'cell.html')]")
    assert pages["b.py"].xpath("//a[contains(@href, 'cell.html')]")


def test_the_calls_of_a_run_are_in_its_public_document(replays: Path) -> None:
    (path,) = (replays / "v1" / "runs").iterdir()
    replay = msgspec.json.decode(path.read_bytes(), type=RunDocument).replay
    assert replay is not None
    assert replay.calls[0].outcome is CallOutcome.CRASHED
    assert (replay.program, replay.worst and replay.worst.error) == ("python train.py", "2.5")


def test_calls_that_contradict_the_record_are_refused(tmp_path: Path) -> None:
    run = fleet.replay(tmp_path / "run")
    listed = read_calls(run)
    assert listed is not None
    better = [
        msgspec.structs.replace(each, outcome=CallOutcome.RIGHT)
        if each.outcome is CallOutcome.WRONG
        else each
        for each in listed.calls
    ]
    write_calls(run, better, listed.program)
    with pytest.raises(RunError, match="by the record of the run it is wrong"):
        build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    write_calls(run, listed.calls[1:], listed.program)
    with pytest.raises(RunError, match=r"lacks cos\.default~000005"):
        build([run], tmp_path / "site", Options(now=NOW, jobs=1))


def test_a_damaged_list_of_calls_is_refused(tmp_path: Path) -> None:
    run = fleet.replay(tmp_path / "run")
    (run / CALLS_FILE).write_text("[1")
    with pytest.raises(RunError, match=r"calls\.json: expected the calls of a replay"):
        build([run], tmp_path / "site", Options(now=NOW, jobs=1))


@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_the_screen_is_accessible_and_harmless(
    browser: Any, replays: Path, width: int
) -> None:
    look = {"viewport": {"width": width, "height": 800}}
    with visiting(browser, replays, bypass_csp=True, **look) as (page, visit):
        visit(page_of(replays))
        page.click("summary")
        harmless(page)
        assert fleet.IMAGE in page.inner_text("main")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("axe.run({resultTypes: ['violations'], preload: false})")
        assert [v["id"] for v in found["violations"] if v["impact"] in ("serious", "critical")] == []  # fmt: skip


def test_the_page_links_to_cells_that_exist(browser: Any, replays: Path) -> None:
    with visiting(browser, replays) as (page, visit):
        visit(page_of(replays))
        page.click("tr[data-call='cos.default~000005'] a")
        page.wait_for_selector("html[data-ready]", state="attached")
        assert "died: SIGSEGV" in page.inner_text("main")
