"""Building the site: what is seen is not read again, what is gone goes, names stay."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import lxml.html
import msgspec
import pytest

from conformance.contract import load
from devices.cell import CellKey
from devices.failure import Geometry
from opinfo.layouts import OFFSET as REAL_OFFSET
from opinfo.layouts import covering_set
from reports.dashboard import documents, geometry
from reports.dashboard.axes import count, keys, order, shard_of, slices
from reports.dashboard.build import Options, SiteError, build
from reports.dashboard.documents import beginnings
from reports.dashboard.ingest import ingest, read_publishable
from reports.dashboard.series import slug
from reports.dashboard.svg import badge
from reports.gate import Tally, gate
from reports.model import RunError, fold
from reports.run import load_run
from reports.status_letters import tally
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import opened
from tests.dashboard.test_reading import tree


def test_a_run_already_seen_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = fleet.alpha(tmp_path / "1", 1), fleet.alpha(tmp_path / "2", 2)
    assert build([one], tmp_path / "site", Options(now=NOW)).read == 1
    seen: list[Path] = []
    monkeypatch.setattr(
        "reports.dashboard.build.ingest",
        lambda run, *rest, **how: seen.append(run) or ingest(run, *rest, **how),
    )
    made = build([one, two], tmp_path / "site", Options(now=NOW, jobs=1))
    assert (made.runs, made.read, seen) == (2, 1, [two])


def test_an_incremental_build_is_the_same_site(tmp_path: Path) -> None:
    runs = fleet.fleet(tmp_path / "runs")
    build(runs, tmp_path / "whole", Options(now=NOW, jobs=1))
    for run in runs:
        build([run], tmp_path / "step", Options(now=NOW, jobs=1))
    assert tree(tmp_path / "step") == tree(tmp_path / "whole")


def test_processes_build_the_same_site(tmp_path: Path) -> None:
    runs = fleet.fleet(tmp_path / "runs")
    build(runs, tmp_path / "one", Options(now=NOW, jobs=1))
    build(runs, tmp_path / "two", Options(now=NOW, jobs=2))
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


def test_fresh_forgets_the_runs_before(tmp_path: Path) -> None:
    one, two = fleet.alpha(tmp_path / "1", 1), fleet.beta(tmp_path / "2")
    build([one], tmp_path / "site", Options(now=NOW))
    build([two], tmp_path / "site", Options(now=NOW, fresh=True))
    build([two], tmp_path / "other", Options(now=NOW))
    assert tree(tmp_path / "site") == tree(tmp_path / "other")


def test_details_are_kept_of_the_newest_runs_alone(tmp_path: Path) -> None:
    runs = [fleet.alpha(tmp_path / str(day), day) for day in (1, 2)]
    build(runs, tmp_path / "site", Options(now=NOW, details=1))
    kept = [path.name for path in (tmp_path / "site" / "data" / "details").iterdir()]
    assert len(kept) == 1
    assert kept[0].startswith("20261002t")


def test_a_folder_of_other_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(SiteError, match="contains files that do not belong to a dashboard"):
        build([fleet.beta(tmp_path / "run")], tmp_path / "mine")


def test_a_folder_without_runs_is_told_clearly(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        RunError, match="neither this folder nor its subfolders contain run.conform"
    ):
        build([tmp_path / "empty"], tmp_path / "site")


def test_a_folder_of_runs_may_be_given(tmp_path: Path) -> None:
    fleet.fleet(tmp_path / "runs")
    assert build([tmp_path / "runs"], tmp_path / "site", Options(now=NOW, jobs=1)).runs == 4


def test_the_same_run_given_twice_is_one_run(tmp_path: Path) -> None:
    run = fleet.beta(tmp_path / "run")
    assert build([run, run / "run.conform"], tmp_path / "site").runs == 1


def test_counts_are_the_gates_own(runs: list[Path]) -> None:
    for folder in runs:
        run = load_run(folder)
        axis = order(run.plan.cells).axis
        counted = count(axis, read_publishable(folder).codes)
        assert {clause: tally(letters) for clause, letters in counted.items()} == gate(run).tallies


def test_an_axis_holds_every_cell_once_by_operator() -> None:
    cells = [*fleet.ALPHA, CellKey("layout.values", "add", "float16")]
    axis = order(fold(cells)).axis
    assert sorted(keys(axis)) == sorted(cells)
    assert [op for op, *_ in slices(axis)] == sorted({cell.unit for cell in cells})


def test_positions_say_where_each_cell_stands_in_the_plan() -> None:
    cells = fleet.ALPHA
    ordered = order(fold(cells))
    assert [cells[position] for position in ordered.positions] == list(keys(ordered.axis))


def test_dtypes_go_from_the_narrow_to_the_wide() -> None:
    names = ("complex64", "float32", "bfloat16", "float16", "int64", "uint8", "int8", "bool", "")
    axis = order(fold(CellKey("c.x", "op", name) for name in names)).axis
    assert axis.dtypes == [
        "",
        "bool",
        "uint8",
        "int8",
        "int64",
        "bfloat16",
        "float16",
        "float32",
        "complex64",
    ]


def test_shards_are_fnv() -> None:
    # http://www.isthe.com/chongo/src/fnv/test_fnv.c: "a" is 0xe40c292c, "foobar" 0xbf9cf968.
    assert (shard_of("a"), shard_of("foobar")) == (0xE40C292C % 32, 0xBF9CF968 % 32)


@pytest.mark.parametrize(
    "name", ["T", "t", "con", "../x", "a/b", "", "x" * 300, "é", "a~b", "a.", "-a"]
)
def test_slugs_are_harmless_file_names(name: str) -> None:
    made = slug(name)
    assert re.fullmatch(r"[a-z0-9][a-z0-9._~-]{0,99}", made)
    assert not made.endswith(".")
    assert made not in ("con", "..")


def test_slugs_differ_where_names_differ() -> None:
    names = ["T", "t", "a b", "a-b", "A B", "a_b", "x" * 300, "x" * 301, "t~e632b709"]
    assert len({slug(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", documents.SCHEMAS)
def test_a_schema_is_published(site: Path, name: str) -> None:
    schema = json.loads((site / "v1" / "schema" / f"{name}.schema.json").read_text())
    assert schema == json.loads(json.dumps(documents.schema(name)))
    assert schema["$schema"].startswith("https://json-schema.org/draft/2020-12/")


def test_the_public_files_are_as_their_schemas_say(site: Path) -> None:
    for pattern, name in (
        ("index.json", "index"), ("runs/*.json", "run"), ("axes/*.json", "axis"),
        ("contracts/*.json", "contract"),
    ):  # fmt: skip
        found = list((site / "v1").glob(pattern))
        assert found
        for path in found:
            msgspec.json.decode(path.read_bytes(), type=documents.SCHEMAS[name], strict=True)


def test_a_field_of_a_public_file_is_not_lost_by_chance() -> None:
    """Names under v1/ stay: removing one is a new folder v2/, and this list."""
    assert set(documents.RunDocument.__struct_fields__) >= {
        "format", "id", "sha256", "provenance", "start", "axis", "contract", "codes", "counts",
        "checks", "layouts", "facts", "capabilities", "undeclared", "exclusions", "manifest",
        "causes",
    }  # fmt: skip
    assert set(documents.DeviceDocument.__struct_fields__) >= {
        "slug", "device", "device_name", "plan", "latest", "runs", "torch", "driver", "suite",
        "start", "total", "families", "levels",
    }  # fmt: skip


def test_csv_fields_are_no_formulas() -> None:
    axis = order(fold([CellKey("layout.values", fleet.FORMULA, 'a"b,c')])).axis
    assert beginnings(axis) == ["""layout.values,'=cmd|'/c calc'!A0,"a""b,c","""]


def test_badges_are_well_formed_whatever_the_name(site: Path) -> None:
    for path in (site / "v1" / "badges").glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")
    made = ET.fromstring(badge(fleet.BREAK_OUT, fleet.MARKUP + "\x00", "#123456"))
    assert {each.tag.partition("}")[2] for each in made.iter()} == {
        "svg", "title", "clipPath", "rect", "g", "text",
    }  # fmt: skip


def test_badges_say_numerator_and_denominator(site: Path) -> None:
    assert "87 of 96 cells" in (site / "v1" / "badges" / "alpha-quick.svg").read_text()
    level = (site / "v1" / "badges" / "alpha-quick-level1.svg").read_text()
    first = [clause for clause in load().clauses.values() if clause.level == 1]
    still = sum(c.status.value == "planned" and c.id not in fleet.CHECKED for c in first)
    assert "level 1 tensors (0.1)" in level
    unchecked = f"; not checked yet: {still} of {len(first)} clauses" if still else ""
    assert f"87 of 100{unchecked}" in level


@pytest.mark.parametrize("name", [case.id for case in covering_set().cases if ":" not in case.id])
def test_pictures_lie_as_the_layouts_do(name: str) -> None:
    case = next(case for case in covering_set().cases if case.id == name)
    drawn = geometry.laid_out(name)
    layouts = [case.layout(place) for place in range(name.count("/") + 1)]
    real = [layout.geometry(each.shape) for layout, each in zip(layouts, drawn, strict=True)]
    assert [(g.stride, g.offset, g.extent) for g in drawn] == [
        (each.stride, each.offset, each.extent) for each in real
    ]


def test_the_guard_is_that_of_the_suite() -> None:
    from opinfo.guarded import GUARD_BYTES, storage_bytes
    from opinfo.layouts import Layout

    real = Layout.parse("channels_last+step_inner+offset").geometry((2, 3, 2, 2))
    drawn = geometry.placement(Geometry("float32", real.shape, real.stride, real.offset))
    assert drawn.extent == real.extent
    assert (geometry.OFFSET, geometry.GUARD_BYTES) == (REAL_OFFSET, GUARD_BYTES)
    assert drawn.guard == storage_bytes(real, 4) // 4 - real.extent


def test_tally_of_no_letters_is_zero() -> None:
    assert tally({}) == Tally()


def test_what_does_not_pass_on_the_page_of_an_operator_leads_to_its_cell(site: Path) -> None:
    page = lxml.html.parse(str(site / "op" / "linalg.lu.html"))
    links = page.xpath("//table[@class='squares']//td/a/@href")
    assert {link.partition("#")[2] for link in links if "device=alpha-quick" in link} == {
        f"device=alpha-quick&clause=layout.bounds&op=linalg.lu&dtype={dtype}"
        for dtype in fleet.DTYPES
    }
    assert not page.xpath("//td[@class='k-pass']/a")


@pytest.fixture(scope="module")
def one_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a device with two runs of one day, and one of the day before."""
    folder = tmp_path_factory.mktemp("one-day")
    starts = ("2026-09-30T08:00:00+00:00", "2026-10-01T07:00:00+00:00", "2026-10-01T09:30:00+00:00")
    runs = [
        fleet.write(folder / str(number), "alpha", fleet.ALPHA[:number], start=start)
        for number, start in enumerate(starts, 1)
    ]
    build(runs, folder / "site", Options(now=NOW, jobs=1))
    return folder / "site"


def test_a_run_of_a_day_with_two_runs_is_called_by_its_time(one_day: Path) -> None:
    index = lxml.html.parse(str(one_day / "index.html"))
    since = index.xpath("//p[@class='since']/a")[0].text
    (compared,) = index.xpath("//section[h2[@id='changes']]//article/p/a")
    assert (since, compared.text) == ("Since 2026-10-01 07:00", "Compared with 2026-10-01 07:00")
    points = lxml.html.parse(str(one_day / "trends.html")).xpath(
        "//svg[@class='chart']/a/@aria-label"
    )
    said = [each.partition(": ")[0] for each in points]
    assert said == ["2026-09-30", "2026-10-01 07:00", "2026-10-01 09:30"]


@pytest.mark.slow
def test_the_history_of_a_cell_has_times_where_dates_are_equal(browser: Any, one_day: Path) -> None:
    with opened(browser, one_day, "cell.html#clause=layout.values&op=add&dtype=float32") as page:
        told = [each.get_attribute("aria-label") for each in page.locator(".past a").all()]
        starts = [each.partition(": ")[0] for each in told]
        assert starts == ["2026-09-30", "2026-10-01 07:00", "2026-10-01 09:30"]
