"""Files that were cut short or edited are refused, or read as what they say: never wrongly green."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.cell import Outcome, Verdict
from reports.gate import gate
from reports.plan import RunError
from reports.run import load_run, write_run
from tests.reports.builders import (
    ADD,
    ADD_INT,
    CONV,
    PROVENANCE,
    edit,
    failed,
    plan_document,
    results,
    sign,
)

# One of everything that keeps a run from being green, so that no single edit can make it so.
RED = results(failed(ADD), failed(CONV, outcome=Outcome.CRASH), failed(ADD_INT, Verdict.EXPECTED))
LAYOUT = "junit-layout.xml"


@pytest.fixture(scope="session")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("red")
    write_run(folder, plan_document(), RED, PROVENANCE)
    return folder


@pytest.fixture
def copy(red: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(red, tmp_path / "copy"))


@pytest.fixture(scope="session")
def scratch(red: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(red, tmp_path_factory.mktemp("scratch") / "run"))


def restore(red: Path, scratch: Path) -> None:
    for path in red.iterdir():
        shutil.copyfile(path, scratch / path.name)


FILES = st.sampled_from([LAYOUT, "junit-streams.xml", "plan.json"])


@settings(max_examples=400, deadline=None)
@given(FILES, st.floats(0, 1, exclude_max=True), st.booleans())
def test_a_truncated_file_is_refused(
    red: Path, scratch: Path, name: str, share: float, signed: bool
) -> None:
    restore(red, scratch)
    whole = (red / name).read_bytes()
    (scratch / name).write_bytes(whole[: int(share * len(whole))])
    if signed and name != "plan.json":
        sign(scratch)
    try:
        run = load_run(scratch)
    except RunError as error:
        assert name in str(error)
    else:  # only the last line break was cut
        assert run.results == RED and gate(run).exit_code == 1


@settings(max_examples=400, deadline=None)
@given(FILES, st.floats(0, 1, exclude_max=True), st.binary(max_size=3), st.integers(0, 20))
def test_a_changed_byte_is_refused_or_stays_red(
    red: Path, scratch: Path, name: str, share: float, put: bytes, cut: int
) -> None:
    restore(red, scratch)
    whole = (red / name).read_bytes()
    at = int(share * len(whole))
    (scratch / name).write_bytes(whole[:at] + put + whole[at + cut :])
    if name != "plan.json":
        sign(scratch)
    try:
        run = load_run(scratch)
    except RunError:
        return
    assert gate(run).exit_code != 0


def test_an_edit_without_a_new_checksum_is_refused(copy: Path) -> None:
    edit(copy / LAYOUT, "0.5", "0.4")
    with pytest.raises(RunError, match=f"{LAYOUT}: changed since the run wrote it"):
        load_run(copy)


def flip_outcome(folder: Path) -> None:
    edit(folder / LAYOUT, '"outcome":"fail","verdict":"regression"', '"outcome":"pass"')


def flip_verdict(folder: Path) -> None:
    edit(folder / LAYOUT, '"verdict":"regression"', '"verdict":"expected"')


def flip_all_but_counts(folder: Path) -> None:
    path = folder / LAYOUT
    text = path.read_text()
    start = text.index("<failure")
    end = text.index("</failure>") + len("</failure>")
    text = text[:start] + text[end:]
    text = text.replace('"outcome":"fail","verdict":"regression",', "", 1)
    path.write_text(text.replace('"layouts":["transposed"],', "", 1))


def flip_element(folder: Path) -> None:
    edit(folder / LAYOUT, 'type="regression"', 'type="improvement"')


def unknown_outcome(folder: Path) -> None:
    edit(folder / LAYOUT, '"outcome":"fail"', '"outcome":"fine"')


def unknown_field(folder: Path) -> None:
    edit(folder / LAYOUT, '"outcome":"fail"', '"outcome":"fail","waived":true')


def no_checks(folder: Path) -> None:
    edit(folder / "junit-streams.xml", '"checks":12,', "")


def unknown_layouts(folder: Path) -> None:
    edit(folder / "junit-streams.xml", '"ran":0', '"ran":7')


def wrong_counts(folder: Path) -> None:
    edit(folder / LAYOUT, 'failures="1"', 'failures="0"', count=2)


def wrong_total(folder: Path) -> None:
    edit(folder / LAYOUT, 'tests="4"', 'tests="5"')


def a_cell_line(folder: Path) -> str:
    lines = (folder / LAYOUT).read_text().splitlines(keepends=True)
    return next(line for line in lines if "layout.bounds" in line)


def dropped_cell(folder: Path) -> None:
    edit(folder / LAYOUT, a_cell_line(folder), "")


def dropped_cell_and_counts(folder: Path) -> None:
    dropped_cell(folder)
    edit(folder / LAYOUT, 'tests="4"', 'tests="3"', count=2)


def duplicated_cell(folder: Path) -> None:
    line = a_cell_line(folder)
    edit(folder / LAYOUT, line, line * 2)


def unplanned_cell(folder: Path) -> None:
    edit(
        folder / LAYOUT,
        'classname="layout.bounds" name="add',
        'classname="layout.bounds" name="sub',
    )


def cell_of_another_family(folder: Path) -> None:
    lines = (folder / "junit-streams.xml").read_text().splitlines(keepends=True)
    case = next(line for line in lines if line.startswith("<testcase"))
    edit(folder / LAYOUT, "</testsuite>", case + "</testsuite>")


def missing_family(folder: Path) -> None:
    (folder / "junit-streams.xml").unlink()


def unlisted_family(folder: Path) -> None:
    change_plan(folder, lambda plan: plan["files"].pop("junit-streams.xml"))


def stray_file(folder: Path) -> None:
    change_plan(folder, lambda plan: plan["files"].update({"../junit-x.xml": "0"}))


def other_plan(folder: Path) -> None:
    change_plan(folder, lambda plan: plan.update(torch="2.14"))


def dropped_from_the_plan_too(folder: Path) -> None:
    missing_family(folder)
    change_plan(folder, lambda plan: plan["files"].pop("junit-streams.xml"))
    change_plan(folder, lambda plan: plan.update(cells=plan["cells"][:-1]))


def other_provenance(folder: Path) -> None:
    change_plan(folder, lambda plan: plan["provenance"].update(torch="2.14"))


def lost_property(folder: Path) -> None:
    edit(folder / LAYOUT, '<property name="driver" value=""/>\n', "")


def malformed_property(folder: Path) -> None:
    edit(
        folder / LAYOUT,
        '<property name="partial" value="false"/>',
        '<property name="partial" value="0"/>',
    )


def no_provenance(folder: Path) -> None:
    change_plan(folder, lambda plan: plan.pop("provenance"))


def repeated_key(folder: Path) -> None:
    edit(folder / "plan.json", '"format":1', '"format":1,"format":1')


def a_list(folder: Path) -> None:
    (folder / "plan.json").write_text("[]")


def deep_json(folder: Path) -> None:
    (folder / "plan.json").write_text("[" * 100_000)


def doctype(folder: Path) -> None:
    edit(folder / LAYOUT, "<testsuites", '<!DOCTYPE testsuites [<!ENTITY a "b">]><testsuites')


def deep(folder: Path) -> None:
    edit(folder / LAYOUT, "</testsuites>", "<a>" * 10_000 + "</a>" * 10_000 + "</testsuites>")


def second_suite(folder: Path) -> None:
    edit(folder / LAYOUT, "</testsuites>", '<testsuite name="layout"/></testsuites>')


def no_suite(folder: Path) -> None:
    (folder / LAYOUT).write_text('<testsuites tests="0" failures="0" errors="0"/>')


def renamed_suite(folder: Path) -> None:
    edit(folder / LAYOUT, 'name="layout"', 'name="streams"')


def two_details(folder: Path) -> None:
    edit(folder / LAYOUT, "</system-out>", "</system-out><system-out/>")


def two_elements(folder: Path) -> None:
    edit(folder / LAYOUT, "<failure", '<skipped type="expected"/><failure')


def no_details(folder: Path) -> None:
    line = a_cell_line(folder)
    edit(folder / LAYOUT, line, line[: line.index("<system-out>")] + "</testcase>\n")


def other_details(folder: Path) -> None:
    edit(folder / LAYOUT, "conform {", "{")


def unreadable_time(folder: Path) -> None:
    edit(folder / LAYOUT, 'time="0.250000"', 'time="soon"')


def doctype_in_utf_16(folder: Path) -> None:
    doctype(folder)
    path = folder / LAYOUT
    path.write_bytes(path.read_text().replace('"utf-8"', '"utf-16"').encode("utf-16"))


def change_plan(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "plan.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


# Each edit, and what the refusal says of it.
EDITS: dict[Callable[[Path], None], str] = {
    flip_outcome: "passed with failing layouts",
    flip_verdict: 'expected <skipped type="expected">, got <failure type="regression">',
    flip_all_but_counts: "header says failures='1', it holds 0",
    flip_element: 'got <failure type="improvement">',
    unknown_outcome: "details are malformed: Invalid enum value 'fine'",
    unknown_field: "unknown field `waived`",
    no_checks: "passed without a single executed check",
    unknown_layouts: "no set 7 of layouts",
    wrong_counts: "failures='0', it holds 1",
    wrong_total: "tests='5', it holds 4",
    dropped_cell: "tests='4', it holds 3",
    dropped_cell_and_counts: "lacks 1 cells of the plan, layout.bounds::add",
    duplicated_cell: "layout.bounds::add[float32] appears twice",
    unplanned_cell: "layout.bounds::sub[float32] is not in the plan",
    cell_of_another_family: "is not of the family layout",
    missing_family: "junit-streams.xml: missing",
    unlisted_family: "plan.json: lists no junit-streams.xml",
    stray_file: "lists '../junit-x.xml'",
    other_plan: "belongs to another plan",
    dropped_from_the_plan_too: "belongs to another plan",
    other_provenance: "its properties are not those of",
    lost_property: "has no property 'driver'",
    malformed_property: "'partial' is '0'",
    no_provenance: "has no 'provenance'",
    repeated_key: "the same key twice",
    a_list: "expected a JSON object, got list",
    deep_json: "nested too deeply",
    doctype: "document type declaration",
    deep: "unexpected element <a>",
    second_suite: "holds a second suite",
    no_suite: "holds no suite",
    renamed_suite: "holds 'streams', expected 'layout'",
    two_details: "has two <system-out>",
    two_elements: "told twice",
    no_details: "has no details",
    other_details: "details must begin with 'conform '",
    unreadable_time: "could not convert string to float: 'soon'",
    doctype_in_utf_16: "document type declaration",
}


@pytest.mark.parametrize("doctor", EDITS, ids=lambda doctor: doctor.__name__)
def test_a_doctored_run_is_refused_even_when_signed_again(
    copy: Path, doctor: Callable[[Path], None]
) -> None:
    doctor(copy)
    if doctor not in (repeated_key, a_list, deep_json):
        sign(copy)
    with pytest.raises(RunError) as refused:
        load_run(copy)
    assert EDITS[doctor] in str(refused.value)
    assert str(copy) in str(refused.value)
    assert refused.value.exit_code == 4


def test_files_of_two_runs_do_not_mix(copy: Path, tmp_path: Path) -> None:
    cells = [cell for cell in RED if cell != ADD]
    write_run(tmp_path / "b", plan_document(cells), results(cells=cells), PROVENANCE)
    shutil.copyfile(tmp_path / "b" / LAYOUT, copy / LAYOUT)
    sign(copy)
    with pytest.raises(RunError, match="lacks 1 cells|belongs to another plan"):
        load_run(copy)


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="plan.json: not found; expected the folder"):
        load_run(tmp_path)
    with pytest.raises(RunError, match="nowhere: not found"):
        load_run(tmp_path / "nowhere")
    write_run(tmp_path, plan_document(), results(), PROVENANCE)
    with pytest.raises(RunError, match=r"not JSON \(truncated\?\)"):
        load_run(tmp_path / LAYOUT)
