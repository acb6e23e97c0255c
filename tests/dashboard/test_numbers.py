"""Every number that the site shows is what the JUnit files say, counted apart."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import lxml.html
import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.dashboard.build import Options, build
from reports.model import CellResult
from tests.conftest import WholeRun
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.independent import cells, count

Shown = dict[str, tuple[int, int]]


def overview(site: Path) -> dict[str, Shown]:
    """Passed and judged of each family on the overview, by device."""
    page = lxml.html.parse(str(site / "index.html"))
    found: dict[str, Shown] = {}
    for cell in page.xpath("//td[@data-device]"):
        for figure in cell.xpath(".//span[@data-family]"):
            shown = numbers(figure.text_content())
            found.setdefault(cell.get("data-device"), {})[figure.get("data-family")] = shown
    return found


def numbers(text: str) -> tuple[int, int]:
    """``6,258 of 6,344``."""
    passed, _, judged = text.replace(",", "").partition(" of ")
    return int(passed), int(judged.split()[0])


def independent(folder: Path) -> Shown:
    return {name: (each.passed, each.judged) for name, each in count(folder).items()}


@pytest.fixture(scope="module")
def newest(runs: list[Path]) -> dict[str, Path]:
    """The newest run of each device of the fleet, by the slug's first word."""
    return {"alpha-quick": runs[1], "beta-quick": runs[2], "hostile": runs[3]}


def test_the_overview_counts_what_the_junit_files_hold(site: Path, newest: dict[str, Path]) -> None:
    shown = overview(site)
    hostile = next(slug for slug in shown if slug not in newest)
    assert {**shown, "hostile": shown[hostile]} == {
        hostile: independent(newest["hostile"]),
        **{slug: independent(folder) for slug, folder in newest.items()},
    }


@pytest.mark.slow
def test_a_real_run_is_counted_right(whole_run: WholeRun, tmp_path: Path) -> None:
    build([whole_run.folder], tmp_path / "site", Options(now=NOW, jobs=1))
    assert overview(tmp_path / "site") == {"cpu-quick": independent(whole_run.folder)}


def test_the_table_of_runs_counts_each_kind(site: Path, newest: dict[str, Path]) -> None:
    page = lxml.html.parse(str(site / "index.html"))
    row = page.xpath("//tr[th='alpha · quick'][td[@data-count]]")[0]
    shown = {each.get("data-count"): int(each.text) for each in row.xpath("./td[@data-count]")}
    counted = count(newest["alpha-quick"])["all"]
    assert shown == {
        "expected": counted.verdicts["expected"],
        "regressions": counted.verdicts["regression"],
        "improvements": counted.verdicts["improvement"],
        "unsupported": counted.outcomes["unsupported"] - counted.undeclared,
        "declared": counted.undeclared,
        "broken": sum(counted.outcomes[name] for name in ("crash", "hang", "error")),
        "ambiguous": counted.outcomes["ambiguous-reference"],
    }
    assert min(each for name, each in shown.items() if name != "declared") > 0, (
        "the fleet has one of each, or this compares nothing"
    )


def test_cells_that_were_not_tried_by_declaration_are_not_judged(
    site: Path, newest: dict[str, Path]
) -> None:
    counted = count(newest["beta-quick"])["all"]
    assert counted.undeclared == 1
    page = lxml.html.parse(str(site / "index.html"))
    row = page.xpath("//tr[th='beta · quick'][td[@data-count]]")[0]
    assert row.xpath("string(td[@data-count='declared'])") == "1"
    assert row.xpath("string(td[@data-count='unsupported'])") == "0"
    shown = page.xpath("string(//td[@data-device='beta-quick']//span[@data-family='all'])")
    assert numbers(shown) == (counted.passed, counted.planned - 1)


def test_every_operators_page_counts_its_cells(site: Path, newest: dict[str, Path]) -> None:
    wanted: dict[str, Counter[str]] = {}
    for _, name, outcome, _ in cells(newest["alpha-quick"]):
        wanted.setdefault(name.partition("[")[0], Counter())[outcome] += 1
    for op in ("add", "mul", "linalg.lu", "where"):
        page = lxml.html.parse(str(site / "op" / f"{op}.html"))
        line = page.xpath("//p[@data-device='alpha-quick']")[0].text_content()
        squares = page.xpath("//table")[0].xpath(".//td//i/text()")
        counted = wanted[op]
        assert numbers(line) == (counted["pass"], sum(counted.values()))
        assert len(squares) == sum(counted.values())


def test_the_index_of_operators_counts_them(site: Path, newest: dict[str, Path]) -> None:
    page = lxml.html.parse(str(site / "ops.html"))
    shown = {
        row.xpath("string(th)"): row.xpath("string(td[1])")
        for row in page.xpath("//tbody/tr")
        if row.xpath("string(td[1])") != "none"
    }
    total: Counter[str] = Counter()
    for text in shown.values():
        passed, judged = numbers(text)
        total += Counter({"passed": passed, "judged": judged})
    counted = count(newest["alpha-quick"])["all"]
    assert total == Counter({"passed": counted.passed, "judged": counted.judged})


def test_the_downloads_hold_every_cell(site: Path, newest: dict[str, Path]) -> None:
    with (site / "v1" / "devices" / "alpha-quick" / "cells.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    shown = sorted(
        (row["clause"], f"{row['op']}[{row['dtype']}]" if row["dtype"] else row["op"],
         row["outcome"], row["verdict"])
        for row in rows
    )  # fmt: skip
    assert shown == sorted(cells(newest["alpha-quick"]))


def test_the_letters_of_a_run_are_its_cells(site: Path, newest: dict[str, Path]) -> None:
    index = json.loads((site / "v1" / "index.json").read_text())
    device = next(each for each in index["devices"] if each["slug"] == "alpha-quick")
    run = json.loads((site / "v1" / "runs" / f"{device['latest']}.json").read_text())
    axis = json.loads((site / "v1" / "axes" / f"{run['axis']}.json").read_text())
    meaning = {row["code"]: (row["outcome"], row["verdict"]) for row in index["statuses"]}
    shown = [
        (key[0], f"{key[1]}[{key[2]}]" if key[2] else key[1], *meaning[letter])
        for key, letter in zip(unfolded(axis), run["codes"], strict=True)
    ]
    assert sorted(shown) == sorted(cells(newest["alpha-quick"]))


def unfolded(axis: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The cells of an axis as docs/dashboard.md says they are read."""
    return [
        (axis["clauses"][clause], op, axis["dtypes"][dtype])
        for op, pattern in axis["ops"]
        for clause, dtypes in axis["patterns"][pattern]
        for dtype in dtypes
    ]


def test_the_changes_shown_are_those_of_the_junit_files(site: Path, runs: list[Path]) -> None:
    before = {each[:2]: each[2:] for each in cells(runs[0])}
    after = {each[:2]: each[2:] for each in cells(runs[1])}
    assert before.keys() == after.keys()
    wanted = {
        "newly-crashing": sum(
            after[c][0] in ("crash", "hang") and before[c][0] not in ("crash", "hang")
            for c in after
        ),
        "newly-failing": sum(
            before[c][0] == "pass" and after[c][0] in ("fail", "error", "unsupported")
            for c in after
        ),
        "fixed": sum(before[c][0] != "pass" and after[c][0] == "pass" for c in after),
        "changed-expectation": sum(
            before[c][0] == after[c][0] and before[c][1] != after[c][1] for c in after
        ),
    }
    page = lxml.html.parse(str(site / "index.html"))
    card = page.xpath("//section[h2[@id='changes']]//article[h3='alpha · quick']")[0]
    shown = {each.get("data-change"): int(each.text) for each in card.xpath(".//b[@data-change]")}
    assert {name: shown[name] for name in wanted} == wanted
    assert min(wanted.values()) > 0


def test_the_manifest_page_counts_blocks(site: Path) -> None:
    page = lxml.html.parse(str(site / "manifest.html"))
    section = page.xpath("//section[@data-device='alpha-quick']")[0]
    shown = {each.get("data-count"): int(each.text) for each in section.xpath(".//dd[@data-count]")}
    # By hand, from the text of the manifest in fleet.py: three blocks, all within their cells but
    # nosuchop; one past its day; two without an issue.
    assert shown == {"blocks": 3, "expired": 1, "stale": 1, "without-issue": 2}


def test_trends_show_each_run(site: Path, runs: list[Path]) -> None:
    page = lxml.html.parse(str(site / "trends.html"))
    section = page.xpath("//section[@data-device='alpha-quick']")[0]
    shown = [numbers(row.xpath("string(td[4])")) for row in section.xpath(".//tbody/tr")]
    wanted = [independent(folder)["all"] for folder in (runs[1], runs[0])]
    assert shown == wanted


def test_a_family_without_a_judged_cell_does_not_pass(tmp_path: Path) -> None:
    told = CellResult(
        CellKey(fleet.QUERY, "false while busy", ""), Outcome.UNSUPPORTED, Verdict.OK, "undeclared"
    )
    cells = [*fleet.ALPHA[:2], told.key, CellKey("autograd.first", "add", "float32")]
    run = fleet.write(tmp_path / "run", "alpha", cells, told, fleet.failing(cells[0]))
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    section = lxml.html.parse(str(tmp_path / "site" / "trends.html")).xpath("//section")[0]
    assert [each.text for each in section.xpath("./p")[1:]] == [
        "Every judged cell passes in every run: autograd.",
        "No cell is judged in any run: streams.",
    ]
