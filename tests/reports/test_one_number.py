"""One run, one number: every output of a run counts the same cells and lists the same causes."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Kind
from reports.crcr import payload
from reports.dashboard.build import Options, build
from reports.failures import write_failures
from reports.gate import GateResult, gate
from reports.run import load_run, write_run
from reports.summary import markdown, summarise, workflow_commands
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    failure,
    passed,
    plan_document,
    results,
)

#: A case of a provisional clause that fails, too.
MORE = CellKey("streams.query", "query is true when done", "")
MUL = CellKey("layout.values", "mul", "float32")
PLANNED = (*CELLS, MORE, MUL)

#: What the run below has: cells by the way in which they count, and the causes of those that are unexpected.
GATING, IMPROVED, NOT_GATING, EXPECTED = 3, 1, 2, 1
CAUSES = {"regression": 2, "improvement": 1, "not gating": 1}


@pytest.fixture(name="judged")
def _judged(tmp_path: Path) -> GateResult:
    raised = failure("", kind=Kind.RAISED, raises="RuntimeError", said="out of luck")
    made = results(
        failed(ADD, failure=raised),
        failed(BOUNDS, failure=raised, outcome=Outcome.CRASH),
        failed(CONV),
        failed(ADD_INT, Verdict.EXPECTED),
        passed(MUL, verdict=Verdict.IMPROVEMENT),
        failed(QUERY, failure=raised, layouts=()),
        failed(MORE, failure=raised, layouts=(), outcome=Outcome.CRASH),
        cells=PLANNED,
    )
    origin = replace(PROVENANCE, expectations="/devices/cpu/expected.toml")
    write_run(tmp_path / "run", plan_document(PLANNED), made, origin)
    judged = gate(load_run(tmp_path / "run"))
    write_failures(judged)
    return judged


def test_the_verdict_line_begins_with_what_gates(judged: GateResult) -> None:
    assert summarise(judged).splitlines()[0] == (
        "red (exit 1): 3 regressions; 1 cell passes that expected.toml lists as failing; "
        "2 more in clauses that do not gate yet; 1 of 7 cells pass; 1 fails as expected"
    )


def test_the_terminal_lists_the_causes_that_gate_first(judged: GateResult) -> None:
    for verbosity in (0, 1):
        kinds = re.findall(
            r"^(regression|improvement|not gating)\b.*?: (\d+) cells?: ",
            summarise(judged, verbosity=verbosity),
            re.MULTILINE,
        )
        assert [kind for kind, _ in kinds] == [k for k, n in CAUSES.items() for _ in range(n)]
        assert [int(count) for _, count in kinds] == [2, 1, 1, 2]


def test_the_files_of_failures_have_the_same(judged: GateResult) -> None:
    folder = judged.run.folder
    found = json.loads((folder / "failures.json").read_text())
    numbers = [found[name] for name in ("regressions", "improvements", "not_gating", "cells")]
    assert numbers == [GATING, IMPROVED, NOT_GATING, GATING + IMPROVED + NOT_GATING]
    assert [cause["count"] for cause in found["causes"]] == [2, 1, 1, 2]
    assert [cause["gates"] for cause in found["causes"]] == [True, True, True, False]
    text = (folder / "failures.md").read_text()
    first, *sections = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    assert first.startswith("3 regressions; 1 cell passes") and first.endswith("; 4 causes")
    assert [re.search(r": (\d+) cell", each)[1] for each in sections] == ["2", "1", "1", "2"]  # type: ignore[index]


def test_the_summary_of_a_ci_job_has_the_same(judged: GateResult) -> None:
    text = markdown(judged)
    rows = re.findall(r"^\| (regression|improvement|not gating).*\| (\d+) \|$", text, re.MULTILINE)
    assert [(kind, int(count)) for kind, count in rows] == [
        *(("regression", 2), ("regression", 1), ("improvement", 1), ("not gating", 2)),
    ]
    assert re.search(r"^### 3 regressions; .*; 4 causes$", text, re.MULTILINE)
    header, last = (re.search(rf"^\| {row} .*$", text, re.MULTILINE) for row in ("clause", "all"))
    assert header is not None and last is not None
    counts = dict(zip(*(line[0].replace("\\_", "_").split(" | ") for line in (header, last))))
    assert (counts["regressions"], counts["improvements"]) == ("3", "1")
    assert (counts["not gating"], counts["expected"]) == ("2", "1")


def test_annotations_are_those_that_gate(judged: GateResult) -> None:
    titles = [line.partition("::")[2].partition("::")[0] for line in workflow_commands(judged)]
    shown = [int(found[1]) for each in titles if (found := re.search(r"%3A (\d+) cell", each))]
    assert shown == [2, 1, 1]


def test_junit_skips_what_does_not_gate_with_the_reason(judged: GateResult) -> None:
    kinds: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for path in judged.run.folder.glob("junit-*.xml"):
        for suite in ElementTree.parse(path).iter("testsuite"):
            totals.update({n: int(suite.get(n, 0)) for n in ("failures", "errors", "skipped")})
        for element in ElementTree.parse(path).iter("skipped"):
            kinds[element.get("type", "")] += 1
            if element.get("type") == "not-gating":
                assert element.get("message", "").startswith("does not gate yet (provisional")
    assert totals["failures"] + totals["errors"] == GATING + IMPROVED
    assert kinds == {"not-gating": NOT_GATING, "expected": EXPECTED}
    assert totals["skipped"] == NOT_GATING + EXPECTED


def test_the_relay_counts_what_gates(judged: GateResult) -> None:
    found = payload(judged)
    assert (found.failed, found.skipped) == (GATING + IMPROVED, NOT_GATING + EXPECTED)
    assert found.passed == len(PLANNED) - found.failed - found.skipped
    ours = found.conformance
    assert len(ours.new) == GATING + IMPROVED and ours.verdict == "red"
    assert sum(each.get("regressions", 0) for each in ours.clauses.values()) == GATING
    assert sum(each.get("not_gating", 0) for each in ours.clauses.values()) == NOT_GATING


def test_the_site_has_the_same(judged: GateResult, tmp_path: Path) -> None:
    build([judged.run.folder], tmp_path / "site", Options(jobs=1))
    (device,) = json.loads((tmp_path / "site/v1/index.json").read_text())["devices"]
    total = device["total"]
    assert [total[name] for name in ("regressions", "improvements", "not_gating", "expected")] == [
        *(GATING, IMPROVED, NOT_GATING, EXPECTED),
    ]
    (path,) = (tmp_path / "site/v1/runs").glob("*.json")
    causes = json.loads(path.read_text())["causes"]
    unexpected = [cause for cause in causes if cause["verdict"] != "expected"]
    assert [cause["cells"] for cause in unexpected] == [2, 1, 1, 2]
    said = json.loads((judged.run.folder / "failures.json").read_text())["causes"]
    assert [c["sentence"] for c in unexpected] == [c["sentence"] for c in said]
