"""What the gate lets through, what it says, and how it says it to a CI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Kind
from reports.gate import ExitCode, GateResult, gate
from reports.model import CellResult, Provenance, Run, RunError
from reports.summary import markdown, publish, workflow_commands
from reports.summary import summarise as text_of
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CLAUSES,
    CONV,
    PROVENANCE,
    QUERY,
    changed_result,
    failed,
    failure,
    passed,
    plan_document,
    results,
)


def summarise(run: Run, *, styled: bool = False) -> str:
    return text_of(gate(run), styled=styled, verbosity=1)


def a_run(
    made: Mapping[CellKey, CellResult] | None = None,
    provenance: Provenance = PROVENANCE,
    **planned: Any,
) -> Run:
    made = results() if made is None else made
    return Run(Path("out"), plan_document(**planned), provenance, dict(made))


def without(*cells: CellKey) -> dict[CellKey, CellResult]:
    return {cell: result for cell, result in results().items() if cell not in cells}


def all_of(outcome: Outcome, verdict: Verdict) -> dict[CellKey, CellResult]:
    made = (passed(cell, outcome=outcome, verdict=verdict, message="no device") for cell in CELLS)
    return {result.key: result for result in made}


UNSUPPORTED = passed(ADD, outcome=Outcome.UNSUPPORTED, verdict=Verdict.OK, checks=0)
AMBIGUOUS = passed(ADD, outcome=Outcome.AMBIGUOUS)
NOT_RUN = passed(ADD, outcome=Outcome.NOT_RUN, verdict=Verdict.MISSING)
IMPROVED = passed(ADD, verdict=Verdict.IMPROVEMENT)
PARTIAL = replace(PROVENANCE, partial=True)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        pytest.param(results(), 0, id="all pass"),
        pytest.param(results(failed(ADD, Verdict.EXPECTED)), 0, id="expected failure"),
        pytest.param(results(failed(ADD, Verdict.FLAKY)), 0, id="flaky"),
        pytest.param(results(UNSUPPORTED), 0, id="declared refusal"),
        pytest.param(results(AMBIGUOUS), 0, id="ambiguous reference"),
        pytest.param(results(failed(QUERY)), 0, id="regression of a provisional clause"),
        pytest.param(results(failed(ADD)), 1, id="regression"),
        pytest.param(results(failed(ADD, outcome=Outcome.CRASH)), 1, id="crash"),
        pytest.param(results(failed(ADD, outcome=Outcome.HANG)), 1, id="hang"),
        pytest.param(results(failed(ADD, outcome=Outcome.ERROR)), 1, id="error"),
        pytest.param(
            results(changed_result(AMBIGUOUS, verdict=Verdict.REGRESSION)), 1, id="ambiguous"
        ),
        pytest.param(results(IMPROVED), 1, id="improvement"),
        pytest.param(results(failed(ADD, Verdict.IMPROVEMENT)), 1, id="a layout improved"),
        pytest.param(without(ADD), 2, id="missing"),
        pytest.param(without(QUERY), 2, id="missing of a provisional clause"),
        pytest.param(results(NOT_RUN), 2, id="not run"),
        pytest.param({}, 2, id="no results"),
        pytest.param(
            without(ADD) | results(failed(CONV), cells=[]), 2, id="missing and regression"
        ),
        pytest.param(results(passed(ADD, checks=0)), 2, id="a pass that checked nothing"),
        pytest.param(results(passed(ADD, verdict=Verdict.REGRESSION)), 2, id="inconsistent"),
        pytest.param(results(failed(ADD, Verdict.OK)), 2, id="a failure called ok"),
        pytest.param(
            results(changed_result(NOT_RUN, verdict=Verdict.OK)), 2, id="not run called ok"
        ),
        pytest.param(all_of(Outcome.ERROR, Verdict.REGRESSION), 3, id="all errors"),
        pytest.param(all_of(Outcome.NOT_RUN, Verdict.MISSING), 3, id="none run"),
    ],
)
def test_exit_codes(made: dict[CellKey, CellResult], code: int) -> None:
    result = gate(a_run(made))
    assert result.exit_code == code, result.problems
    assert bool(result.problems) == bool(code) == bool(workflow_commands(result))


def test_improvements_pass_where_they_are_allowed() -> None:
    assert gate(a_run(results(IMPROVED)), allow_improvements=True).exit_code == 0
    both = results(IMPROVED, failed(ADD_INT))
    assert gate(a_run(both), allow_improvements=True).exit_code == 1


def test_a_run_without_planned_cells_is_never_green() -> None:
    assert gate(a_run({}, cells=[])).exit_code is ExitCode.INCOMPLETE


def test_a_partial_run_is_refused_even_if_all_cells_pass() -> None:
    for made in (results(), {ADD: passed(ADD)}):
        result = gate(a_run(made, PARTIAL, selected=[ADD]))
        assert result.exit_code is ExitCode.INCOMPLETE
        assert "a partial run: 1 of 5 planned cells" in result.problems[0]


def test_pytest_exits_by_the_selected_cells_of_a_partial_run() -> None:
    run = a_run({ADD: passed(ADD)}, PARTIAL, selected=[ADD])
    result = gate(run, partial=True)
    assert result.exit_code is ExitCode.GREEN and result.counts.planned == 1
    assert gate(a_run({ADD: failed(ADD)}, PARTIAL, selected=[ADD]), partial=True).exit_code == 1
    assert gate(a_run({}, PARTIAL, selected=[ADD]), partial=True).exit_code == 2


def test_a_run_that_selected_nothing_says_so() -> None:
    result = gate(a_run({}, PARTIAL, selected=[]), partial=True)
    assert result.exit_code is ExitCode.NOTHING_SELECTED


def test_a_lone_shard_is_refused() -> None:
    result = gate(a_run(provenance=replace(PROVENANCE, shard="1/4")))
    assert result.exit_code is ExitCode.INCOMPLETE and "merge" in result.problems[0]


def test_the_denominator_leaves_out_ambiguous_and_undeclared_cells() -> None:
    made = results(AMBIGUOUS, UNSUPPORTED_INT, failed(CONV, Verdict.EXPECTED))
    del made[BOUNDS]
    counts = gate(a_run(made)).counts
    assert (counts.passed, counts.judged, counts.planned) == (1, 3, 5)
    assert (counts.ambiguous, counts.declared, counts.unsupported) == (1, 1, 0)


UNSUPPORTED_INT = changed_result(UNSUPPORTED, key=ADD_INT)


def test_the_summary_gives_numerator_and_denominator_by_clause() -> None:
    text = summarise(a_run(results(failed(ADD, Verdict.EXPECTED), AMBIGUOUS_CONV)))
    row = next(line for line in text.splitlines() if line.startswith("layout.values"))
    assert row.split()[:4] == ["layout.values", "1", "2", "1"]
    assert "3 of 4 cells pass" in text and "1 more has no agreed reference" in text
    assert "%" not in text


AMBIGUOUS_CONV = changed_result(AMBIGUOUS, key=CONV)


def test_clauses_without_cells_are_listed_and_not_counted() -> None:
    text = summarise(a_run())
    assert "not checked by the suite yet (1 clause): graphs: pool" in text
    assert "clauses that have no cells on this device or in this plan: events: record" in text
    assert not any(line.startswith(("graphs.pool", "events.record")) for line in text.splitlines())


@pytest.mark.parametrize(
    ("chosen", "ops", "told"),
    [
        (None, ["empty"], True),
        ([ADD], ["empty"], False),
        ([ADD], ["add", "empty"], True),
        ([BOUNDS], ["add"], False),
        ([ADD], [], True),
    ],
)
def test_of_a_partial_run_what_its_own_clauses_and_ops_lack_is_told(
    chosen: list[CellKey] | None, ops: list[str], told: bool
) -> None:
    excluded = [{"clause": "layout.val*", "ops": ops, "reason": "free answer"}]
    document = plan_document(selected=chosen, exclusions=excluded)
    origin = replace(PROVENANCE, partial=chosen is not None)
    text = summarise(Run(Path("run"), document, origin, results(cells=chosen or CELLS)))
    assert ("free answer" in text) is told


def test_many_clauses_are_shown_by_family() -> None:
    clauses = [
        {"id": f"layout.c{index}", "family": "layout", "status": "checked"} for index in range(30)
    ]
    cells = [CellKey(clause["id"], "add", "bool") for clause in clauses]
    made = {cell: passed(cell) for cell in cells}
    text = summarise(a_run(made, cells=cells, clauses=[*CLAUSES, *clauses]))
    assert re.search(r"^layout +30 +30 ", text, re.MULTILINE)
    assert "layout.c7" not in text


def many_failures(count: int) -> Run:
    cells = [CellKey("layout.values", f"op{index}", "bool") for index in range(count)]
    said = [failure("", kind=Kind.RAISED, raises="Bug", said="x" * index) for index in range(count)]
    made = {cell: failed(cell, failure=each) for cell, each in zip(cells, said)}
    return a_run(made, cells=cells)


def test_at_most_twenty_failures_are_shown_each_with_its_repro() -> None:
    text = summarise(many_failures(30))
    assert text.count("python out/repro/0001.py") == 20
    assert "and 10 more causes (10 cells) in out" in text
    assert "report: out" in text


def test_a_repro_command_is_quoted_for_the_shell() -> None:
    run = replace(a_run(results(failed(ADD))), folder=Path("my runs"))
    assert "python 'my runs/repro/0001.py'" in summarise(run)


def test_colours_only_where_asked_for() -> None:
    run = a_run(results(failed(ADD, message="\x1b[2J\x07 cleared")))
    assert "\x1b" not in summarise(run)
    styled = summarise(run, styled=True)
    assert "\x1b[31m" in styled and "\x1b[2J" not in styled


def test_a_dead_machine_is_one_problem() -> None:
    result = gate(a_run(all_of(Outcome.ERROR, Verdict.REGRESSION)))
    assert len(workflow_commands(result)) == len(result.problems) == 2
    assert "none of 5 cells could be checked" in result.problems[0]
    assert "no device" in result.problems[0]


HOSTILE = (
    "a|b `c` <script>x</script> [l](http://e.x) **b** ![i](u) &lt; \\ https://e.x\n# h\n::error::"
)


def test_markdown_shows_hostile_text_as_it_is() -> None:
    cell = CellKey("layout.values", "a|b <i>[x](http://e.x)", "bool")
    made = {cell: failed(cell, message=HOSTILE)}
    result = gate(a_run(made, cells=[cell]))
    parser = MarkdownIt("gfm-like", {"linkify": False})
    html = parser.render(markdown(result))
    for tag in ("<script", "<a ", "<img", "<strong>", "<i>"):
        assert tag not in html
    assert html.count("<h2>") == html.count("<h3>") == 1 and "<h1>" not in html
    assert f"<code>{escape(str(cell), quote=False)}</code>" in html
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    assert {row.count("<td") + row.count("<th") for row in rows} <= {6, 8}
    assert "&lt;script&gt;x&lt;/script&gt;" in html and "a|b" in html


def test_annotations_are_escaped_and_at_most_ten() -> None:
    made = failed(ADD, message="100% wrong\n::error::injected")
    title, _, data = (
        workflow_commands(gate(a_run(results(made))))[1].removeprefix("::").partition("::")
    )
    assert (
        title
        == "error title=regression%3A 1 cell%3A wrong values if an input is not contiguous (add)"
    )
    assert data == "layout.values::add[float32]: fail: AssertionError: 100%25 wrong"
    lines = workflow_commands(gate(many_failures(30)))
    assert len(lines) == 10 and all(line.startswith("::error title=") for line in lines)
    assert lines[-1].endswith("::and 22 more")


def test_github_is_told_only_where_it_listens(tmp_path: Path) -> None:
    result: GateResult = gate(a_run(results(failed(ADD))))
    assert publish(result, {}) == ()
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    environ = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    assert publish(result, environ) == workflow_commands(result)
    assert summary.read_text() == "before\n" + markdown(result) + "\n"
    with pytest.raises(RunError, match="GITHUB_STEP_SUMMARY"):
        publish(result, {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "where")})


def test_a_run_knows_its_plan() -> None:
    with pytest.raises(RunError, match="not planned"):
        a_run(results(passed(CellKey("layout.values", "sub", "bool"))))
    with pytest.raises(RunError, match="belong to different runs"):
        a_run(provenance=replace(PROVENANCE, device="npu"))
