"""A run that is written reads back as it was, and as JUnit that others read."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from junitparser import JUnitXml
from lxml import etree  # type: ignore[import-untyped]

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Difference, Failure, Geometry, Kind
from reports.gate import gate
from reports.model import (
    VERDICTS,
    CellResult,
    PlanDocument,
    RunError,
    checked_plan,
    fold,
    problem_with,
)
from reports.run import load_run, write_run
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CLAUSES,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    passed,
    plan_document,
    results,
)

SCHEMA = Path(__file__).with_name("data") / "junit-10.xsd"
EVERYTHING = results(
    failed(ADD, message="bytes \x00\x1b[31m \ud800 \uffff ]]> <b>&amp; 'é' \r\n \U0001f600"),
    failed(ADD_INT, Verdict.EXPECTED, worst_error=float("inf"), seconds=1 / 3),
    failed(CONV, outcome=Outcome.CRASH, repro=None, raises="SIGSEGV"),
    passed(BOUNDS, verdict=Verdict.IMPROVEMENT, why="passes, expected 'fail'"),
    passed(QUERY, outcome=Outcome.UNSUPPORTED, checks=0),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
layouts = st.lists(st.sampled_from(["contiguous", "t", "s+o", "c l"]), unique=True).map(
    lambda names: tuple(sorted(names))
)


failures = st.builds(
    Failure,
    kind=st.sampled_from(Kind),
    subject=texts,
    expected=texts,
    found=texts,
    detail=texts,
    where=st.none() | st.builds(Difference, count=st.integers(0, 9), total=st.integers(0, 9)),
    raises=st.none() | st.just("RuntimeError"),
    said=st.none() | texts,
    layout=st.sampled_from(["", "contiguous"]),
    call=texts,
    inputs=st.sampled_from([(), (Geometry("float32", (2, 3), (1, 2), 7),)]),
)


@st.composite
def a_result(draw: st.DrawFn, cell: CellKey) -> CellResult:
    outcome = draw(st.sampled_from(Outcome))
    verdict = draw(st.sampled_from(sorted(VERDICTS[outcome])))
    ran = draw(layouts)
    return CellResult(
        cell,
        outcome,
        verdict,
        why=draw(texts),
        checks=draw(st.integers(1, 10**6)),
        samples=draw(st.integers(0, 10**4)),
        layouts=() if outcome is Outcome.PASS else ran[: draw(st.integers(0, 4))],
        ran_layouts=ran,
        worst_error=draw(st.none() | st.floats(allow_nan=False)),
        raises=draw(st.none() | texts),
        failure=draw(st.none() | failures),
        failed=draw(st.integers(0, 9)),
        note=draw(texts),
        said=draw(st.none() | texts),
        repro=draw(st.none() | st.sampled_from(["repro/a.py", "b.py"])),
        seconds=draw(st.floats(0, 1e6, allow_nan=False)),
        worker=draw(st.sampled_from(["", "gw0", "gw1"])),
    )


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_is_written_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.sampled_from(CELLS), unique=True))
    made = {cell: data.draw(a_result(cell)) for cell in cells}
    folder = tmp_path_factory.mktemp("run")
    written = write_run(folder, plan_document(), made, PROVENANCE)
    read = load_run(folder)
    assert read.results == made
    assert read == written
    assert load_run(folder / "run.conform") == written


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_files_hold_to_the_jenkins_schema(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    made = {cell: data.draw(a_result(cell)) for cell in CELLS[1:]}
    write_run(folder, plan_document(), made, PROVENANCE, junitxml=folder / "all.xml")
    schema = etree.XMLSchema(etree.parse(SCHEMA))
    for path in folder.glob("*.xml"):
        schema.assertValid(etree.parse(path))


def test_what_unicode_cannot_hold_is_written_as_python_does(tmp_path: Path) -> None:
    made = results(failed(ADD, message="seen \ud800 there"), passed(CONV, note="\udcff"))
    written = write_run(tmp_path, plan_document(), made, PROVENANCE)
    assert load_run(tmp_path) == written
    assert written.results[ADD].message == "seen \\ud800 there"
    assert written.results[CONV].note == "\\udcff"


def test_a_nan_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(failed(ADD, worst_error=float("nan"))), PROVENANCE)
    worst = load_run(tmp_path).results[ADD].worst_error
    assert worst is not None and math.isnan(worst)


def test_there_is_one_file_a_family_and_one_merged(tmp_path: Path) -> None:
    merged = tmp_path / "elsewhere" / "junit.xml"
    write_run(tmp_path / "run", plan_document(), EVERYTHING, PROVENANCE, junitxml=merged)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["junit-layout.xml", "junit-streams.xml", "run.conform"]
    suites = [suite.get("name") for suite in ElementTree.parse(merged).getroot()]
    assert suites == ["layout", "streams"]


def test_junitparser_counts_what_the_headers_say(tmp_path: Path) -> None:
    path = tmp_path / "all.xml"
    short = {cell: result for cell, result in EVERYTHING.items() if cell != ADD_INT}
    write_run(tmp_path, plan_document(), short, PROVENANCE, junitxml=path)
    read = JUnitXml.fromfile(str(path))
    header = (read.tests, read.failures, read.errors)
    assert header == (5, 2, 2)
    for suite in read:
        declared = (suite.tests, suite.failures, suite.errors, suite.skipped)
        suite.update_statistics()  # type: ignore[no-untyped-call]
        assert (suite.tests, suite.failures, suite.errors, suite.skipped) == declared


def test_elements_tell_outcomes_apart(tmp_path: Path) -> None:
    every = [
        (Outcome.PASS, Verdict.OK, None),
        (Outcome.PASS, Verdict.FLAKY, ("skipped", "flaky")),
        (Outcome.PASS, Verdict.IMPROVEMENT, ("failure", "improvement")),
        (Outcome.FAIL, Verdict.REGRESSION, ("failure", "regression")),
        (Outcome.FAIL, Verdict.IMPROVEMENT, ("failure", "improvement")),
        (Outcome.FAIL, Verdict.EXPECTED, ("skipped", "expected")),
        (Outcome.CRASH, Verdict.REGRESSION, ("error", "crash")),
        (Outcome.CRASH, Verdict.EXPECTED, ("skipped", "expected")),
        (Outcome.HANG, Verdict.REGRESSION, ("error", "hang")),
        (Outcome.ERROR, Verdict.REGRESSION, ("error", "error")),
        (Outcome.NOT_RUN, Verdict.MISSING, ("error", "not-run")),
        (Outcome.UNSUPPORTED, Verdict.OK, ("skipped", "unsupported")),
        (Outcome.UNSUPPORTED, Verdict.REGRESSION, ("failure", "regression")),
        (Outcome.AMBIGUOUS, Verdict.OK, ("skipped", "ambiguous-reference")),
    ]
    cells = [CellKey("layout.values", f"op{index}", "bool") for index in range(len(every) + 1)]
    made = {
        cell: passed(cell, outcome=outcome, verdict=verdict)
        for cell, (outcome, verdict, _) in zip(cells, every, strict=False)
    }
    write_run(tmp_path, plan_document(cells), made, PROVENANCE)
    cases = list(ElementTree.parse(tmp_path / "junit-layout.xml").iter("testcase"))
    seen = [
        next(((e.tag, e.get("type")) for e in case if e.tag != "system-out"), None)
        for case in cases
    ]
    assert seen == [element for _, _, element in every] + [("error", "missing")]


def test_a_failure_names_layouts_error_and_repro(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), EVERYTHING, PROVENANCE)
    root = ElementTree.parse(tmp_path / "junit-layout.xml").getroot()
    case = next(case for case in root.iter("testcase") if case.get("name") == "add[float32]")
    body = case.findtext("failure") or ""
    assert "failing layouts (1 of 2): transposed" in body
    assert "worst absolute error: 0.5" in body
    assert "python repro/0001.py" in body
    assert case.findtext("system-out") == body


def test_a_plain_pass_is_its_names_and_its_time(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(passed(BOUNDS, note="noted: odd")), PROVENANCE)
    cases = list(ElementTree.parse(tmp_path / "junit-layout.xml").iter("testcase"))
    plain = [case.attrib for case in cases if not len(case)]
    assert plain[0] == {"classname": "layout.values", "name": "add[float32]", "time": "0.001500"}
    (noted,) = (case for case in cases if len(case))
    assert "noted: odd" in (noted.findtext("system-out") or "") and len(noted) == 1


def test_provenance_stands_in_the_properties(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), EVERYTHING, PROVENANCE)
    root = ElementTree.parse(tmp_path / "junit-streams.xml").getroot()
    properties = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert properties["torch"] == "2.13.0+cpu"
    assert properties["partial"] == "false"
    assert properties["host"] == "builder7"
    assert properties["record"] == "run.conform"
    assert len(properties["record_sha256"] or "") == 64


def test_redacting_leaves_no_trace_of_host_and_uuid(tmp_path: Path) -> None:
    made = results(failed(ADD, message="builder7: GPU-1234 failed", worker="gw0@builder7"))
    write_run(
        tmp_path, plan_document(), made, PROVENANCE, junitxml=tmp_path / "all.xml", redact=True
    )
    for path in tmp_path.iterdir():
        text = path.read_bytes()
        assert b"builder7" not in text and b"GPU-1234" not in text, path.name
    run = load_run(tmp_path)
    assert run.results[ADD].message == "[redacted]: [redacted] failed"
    assert run.provenance == replace(PROVENANCE, host="", device_uuid="")


def test_files_of_families_that_are_gone_are_removed(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), EVERYTHING, PROVENANCE)
    cells = [ADD]
    write_run(tmp_path, plan_document(cells), results(cells=cells), PROVENANCE)
    assert not (tmp_path / "junit-streams.xml").exists()
    assert load_run(tmp_path).results == results(cells=cells)


def test_a_run_without_cells_reads_back_and_is_not_green(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document([]), {}, PROVENANCE)
    run = load_run(tmp_path)
    assert run.results == {} and gate(run).exit_code == 2


def test_a_partial_run_holds_its_selected_cells(tmp_path: Path) -> None:
    provenance = replace(PROVENANCE, partial=True)
    write_run(tmp_path, plan_document(selected=[ADD]), {ADD: passed(ADD)}, provenance)
    run = load_run(tmp_path)
    assert run.results == {ADD: passed(ADD)}
    assert run.parsed.selected == (ADD,) and len(run.missing) == len(CELLS) - 1


def test_results_that_are_no_evidence_are_written_and_never_pass(tmp_path: Path) -> None:
    for wrong in (
        passed(ADD, checks=0),
        passed(ADD, verdict=Verdict.EXPECTED),
        passed(ADD, layouts=("transposed",)),
        failed(ADD, Verdict.OK),
        failed(ADD, repro="../../etc/passwd"),
        failed(ADD, repro="C:\\x.py"),
        failed(ADD, seconds=float("nan")),
    ):
        assert problem_with(wrong) is not None
        write_run(tmp_path, plan_document(), results(wrong), PROVENANCE)
        result = gate(load_run(tmp_path))
        assert result.exit_code == 2 and result.counts.no_evidence == 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hash": "other"}, "belong to different runs"),
        ({"cells": [["layout.nothing", {"add": ["bool"]}]]}, "not in 'clauses'"),
        ({"cells": [["graphs.pool", {"case": [""]}]]}, "not checked yet"),
        ({"cells": [["layout.values", {"add": ["bool", "bool"]}]]}, "add\\[bool\\] twice"),
        ({"cells": [["layout.values", {"a\nb": ["bool"]}]]}, "unprintable"),
        ({"clauses": [{"id": "x", "family": "../x", "status": "checked"}]}, "lower-case"),
        ({"clauses": CLAUSES * 2}, "listed twice"),
        ({"partial": True}, "list of its selected cells is missing"),
        ({"selected": [["layout.values", {"sub": ["bool"]}]]}, "are not planned"),
    ],
)
def test_plans_that_cannot_be_are_refused(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(RunError, match=says):
        plan = msgspec.convert({**msgspec.to_builtins(plan_document()), **changed}, PlanDocument)
        write_run(tmp_path, plan, {}, PROVENANCE)
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_was_not_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="layout.values::sub.*not planned"):
        stranger = CellKey("layout.values", "sub", "bool")
        write_run(tmp_path, plan_document(), results(passed(stranger)), PROVENANCE)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file.*cannot be written"):
        write_run(tmp_path / "file" / "run", plan_document(), results(), PROVENANCE)


def test_a_merged_file_must_not_replace_a_family_s(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="give another path"):
        write_run(
            tmp_path, plan_document(), results(), PROVENANCE, junitxml=tmp_path / "junit-layout.xml"
        )


def test_a_merged_file_named_like_an_unused_family_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "junit-events.xml"
    write_run(tmp_path, plan_document(), results(), PROVENANCE, junitxml=path)
    assert path.exists() and gate(load_run(tmp_path)).exit_code == 0


def test_no_temporary_files_stay(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), EVERYTHING, PROVENANCE)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


plans = st.lists(
    st.builds(
        CellKey,
        st.sampled_from(["layout.values", "layout.bounds", "streams.query"]),
        st.sampled_from(["add", "nn.functional.conv2d", "a case with [brackets]"]),
        st.sampled_from(["float32", "int64", ""]),
        st.sampled_from(["", "compiled", "4 ranks"]),
    ),
    unique=True,
)


@settings(deadline=None)
@given(plans)
def test_folded_cells_come_back_by_clause(cells: list[CellKey]) -> None:
    back = checked_plan(plan_document(cells)).cells
    assert sorted(back) == sorted(cells)
    clauses = [cell.clause for cell in back]
    assert list(dict.fromkeys(clauses)) == list(dict.fromkeys(c.clause for c in cells))
    assert fold(back) == fold(cells)


def test_a_case_that_is_called_like_an_op_s_cell_is_refused() -> None:
    cells = [CellKey("layout.values", "add", "bool"), CellKey("layout.values", "add[bool]", "")]
    with pytest.raises(RunError, match="twice"):
        checked_plan(plan_document(cells))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 300))
def test_all_cells_of_a_large_plan_are_kept(
    tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    cells = [
        CellKey("layout.values", f"op{index % 40}", f"d{index // 40}") for index in range(count)
    ]
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, plan_document(cells), results(cells=cells), PROVENANCE)
    run = load_run(folder)
    assert Counter(result.outcome for result in run.results.values()) == {Outcome.PASS: count}
    assert set(run.parsed.cells) == set(cells)


def test_importing_reports_leaves_torch_out() -> None:
    code = (
        "import sys, reports.run, reports.gate, reports.junit;"
        "bad = {'torch', 'opinfo', 'conformance'} & {name.partition('.')[0] for name in sys.modules};"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_manifest_that_a_run_was_judged_by_is_kept_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(), PROVENANCE, manifest=b"# the text")
    assert (tmp_path / "expected.toml").read_bytes() == b"# the text"
    write_run(tmp_path, plan_document(), results(), PROVENANCE)
    assert not (tmp_path / "expected.toml").exists()
