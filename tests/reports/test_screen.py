"""The end of a run on the screen, for each state that a run can be in, and the file that has all of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from conformance.contract.levels import Level, stated
from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Kind
from reports.failures import causes_in, markdown_of
from reports.gate import gate
from reports.junit import headline
from reports.model import CellResult, Run
from reports.plain import without_boilerplate
from reports.summary import summarise, verdict_line
from tests.reports.builders import (
    ADD,
    ADD_INT,
    CELLS,
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

LISTED = {"expectations": "/somewhere/expected.toml"}
IMPROVED = passed(ADD, verdict=Verdict.IMPROVEMENT)
FEWER = failed(ADD_INT, Verdict.IMPROVEMENT)
DEAD = {
    cell: passed(cell, outcome=Outcome.ERROR, verdict=Verdict.REGRESSION, message="no device")
    for cell in CELLS
}


def a_run(*made: CellResult, **origin: object) -> Run:
    return Run(Path("out"), plan_document(), replace(PROVENANCE, **origin), results(*made))  # type: ignore[arg-type]


def of(made: dict[CellKey, CellResult], selected: list[CellKey] | None = None) -> Run:
    origin = replace(PROVENANCE, partial=selected is not None)
    chosen = {"selection": {"--ops": "add"}} if selected is not None else {}
    return Run(Path("out"), plan_document(selected=selected, **chosen), origin, made)


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (a_run(), "green (exit 0): 5 of 5 cells pass"),
        (
            a_run(failed(ADD, Verdict.EXPECTED), failed(QUERY)),
            "green (exit 0): 3 of 5 cells pass; 1 fails as expected; "
            "1 unexpected result in clauses that do not gate yet",
        ),
        (a_run(failed(ADD)), "red (exit 1): 1 regression; 4 of 5 cells pass"),
        (
            a_run(failed(ADD), failed(QUERY)),
            "red (exit 1): 1 regression; 1 more in clauses that do not gate yet; 3 of 5 cells pass",
        ),
        (
            a_run(IMPROVED, **LISTED),
            "red (exit 1): 1 cell passes that expected.toml lists as failing; 5 of 5 cells pass",
        ),
        (
            a_run(FEWER, **LISTED),
            "red (exit 1): 1 cell does better than expected.toml says; 4 of 5 cells pass",
        ),
        (
            a_run(IMPROVED, failed(CONV), **LISTED),
            "red (exit 1): 1 regression; 1 cell passes that expected.toml lists as failing; "
            "4 of 5 cells pass",
        ),
        (
            of({cell: result for cell, result in results().items() if cell != ADD}),
            "incomplete (exit 2): 1 of 5 planned cells has no outcome; the first is "
            "layout.values::add[float32]; 4 of 5 cells pass",
        ),
        (
            of({ADD: passed(ADD)}, [ADD]),
            "incomplete (exit 2): a partial run (--ops): 1 of 5 planned cells were selected; only a run of all cells "
            "(without --ops, --dtypes, --clauses, --max-time, -k, --lf, -x or paths) can pass the gate or be "
            "published; 1 of 5 cells pass",
        ),
        (
            of(DEAD),
            "infrastructure (exit 3): none of 5 cells could be checked, so the machine or the installation is at "
            "fault, not the device's operators; the first message is: no device",
        ),
    ],
)
def test_the_verdict_of_each_state(run: Run, line: str) -> None:
    assert verdict_line(gate(run)) == line
    assert summarise(gate(run)).splitlines()[0] == line


def test_a_partial_run_that_is_green_says_what_the_gate_makes_of_it() -> None:
    text = summarise(gate(of({ADD: passed(ADD)}, [ADD]), partial=True))
    assert text.splitlines()[0] == "green (exit 0): 1 of 1 cell passes"
    assert "\na partial run (--ops): 1 of 5 planned cells were selected; `conform gate`" in text


def test_a_run_that_selected_nothing_has_no_numbers() -> None:
    line = verdict_line(gate(of({}, []), partial=True))
    assert line == "nothing selected (exit 5): no cell is selected, so nothing was checked"


@pytest.mark.parametrize("run", [a_run(), a_run(failed(ADD), failed(QUERY)), of(DEAD)])
def test_a_quiet_run_ends_with_one_line(run: Run) -> None:
    text = summarise(gate(run), verbosity=-1)
    assert text.startswith(verdict_line(gate(run))) and "\n" not in text
    assert text.endswith("; report: out") is not gate(run).green


def test_what_to_do_next_is_said_once() -> None:
    text = summarise(gate(a_run(failed(ADD), failed(CONV), IMPROVED_INT, **LISTED)))
    assert text.count("conform manifest update --triage out RUN2") == 1
    assert (
        text.count("To remove passing cells from expected.toml: conform manifest update out ") == 1
    )
    assert "conform manifest" not in summarise(gate(a_run()))


IMPROVED_INT = passed(ADD_INT, verdict=Verdict.IMPROVEMENT)


def many(clause: str, count: int) -> list[CellResult]:
    cells = [CellKey(clause, f"op{n}", "bool") for n in range(count)]
    said = [failure("", kind=Kind.RAISED, raises="Bug", said="x" * (n + 1)) for n in range(count)]
    return [failed(cell, failure=each, layouts=()) for cell, each in zip(cells, said)]


def test_causes_that_do_not_gate_give_way_to_those_that_do() -> None:
    made = [*many("layout.values", 12), *many("streams.query", 3)]
    cells = [result.key for result in made]
    plan = plan_document(cells)
    run = Run(Path("out"), plan, PROVENANCE, {result.key: result for result in made})
    lines = summarise(gate(run)).splitlines()
    assert len(lines) <= 20 and not any(line.startswith("not gating") for line in lines)
    shown = sum(line.startswith("regression: ") for line in lines)
    assert f"and {12 - shown} more causes ({12 - shown} cells) in out" in lines
    assert "and 3 more causes (3 cells) that do not affect the gate in out" in lines


def test_levels_are_shown_where_a_plan_can_reach_one_and_more_is_asked_for() -> None:
    levels = stated(CELLS, [Level(1, "tensors", "0.1", frozenset(CELLS))])
    for plan, verbosity, shown in (("core", 1, True), ("core", 0, False), ("quick", 1, False)):
        document = plan_document(levels=levels, plan=plan)
        run = Run(Path("out"), document, replace(PROVENANCE, plan=plan), results())
        assert ("level 1 tensors" in summarise(gate(run), verbosity=verbosity)) is shown


# -- failures.md


HOSTILE = "a|b ``c`` <script>x</script> [l](http://e.x) **b** ![i](u)\n```\n# h\n- `x"


def test_names_can_be_pasted_and_hostile_ones_stay_inert() -> None:
    cell = CellKey("layout.values", "a`|``b <i>[x](http://e.x)", "bool")
    made = [failed(cell, message=HOSTILE), failed(CellKey("layout.values", "_foreach_add", "bool"))]
    plan = plan_document([result.key for result in made])
    judged = gate(Run(Path("out"), plan, PROVENANCE, {result.key: result for result in made}))
    text = markdown_of(judged, causes_in(judged))
    assert "`layout.values::_foreach_add[bool]`" in text and "\\_" not in text
    html = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    for tag in ("<script", "<a ", "<img", "<strong>", "<i>", "<h3>"):
        assert tag not in html
    assert html.count("<h1>") == 1 and html.count("<h2>") == len(causes_in(judged))
    assert "<code>layout.values::a`|``b &lt;i&gt;[x](http://e.x)[bool]</code>" in html


# -- what torch adds to its messages


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "Could not run 'aten::_copy_from' with arguments from the 'abacus' backend. This could be because the "
            "operator doesn't exist for this backend, or was omitted during the selective/custom build process (if "
            "using custom build). If you are a Facebook employee using PyTorch on mobile, please visit "
            "https://fburl.com/ptmfixes for possible resolutions. 'aten::_copy_from' is only available for these "
            "backends: [CPU, Meta].\n\nCPU: registered at /pytorch/build/aten/src/ATen/RegisterCPU.cpp:1 [kernel]",
            "Could not run 'aten::_copy_from' with arguments from the 'abacus' backend.",
        ),
        (
            "convolution_overrideable not implemented. You are likely triggering this with tensor backend other than "
            "CPU/CUDA/MKLDNN, if this is intended, please use TORCH_LIBRARY_IMPL to override this function ",
            "convolution_overrideable not implemented.",
        ),
        (
            'x.defined() INTERNAL ASSERT FAILED at "/pytorch/aten/a.cpp":7, please report a bug to PyTorch. No x',
            'x.defined() INTERNAL ASSERT FAILED at "/pytorch/aten/a.cpp":7 No x',
        ),
        (
            "Expected x == 1 to be true, but got false.  (Could this error message be improved?  If so, please report "
            "an enhancement request to PyTorch.)",
            "Expected x == 1 to be true, but got false.",
        ),
        (
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported "
            "at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
            "CUDA_LAUNCH_BLOCKING=1",
            "CUDA error: an illegal memory access was encountered",
        ),
        (
            "Cannot access data pointer of Tensor (e.g. FakeTensor, FunctionalTensor). If you're using "
            "torch.compile/export/fx, it is likely that we are erroneously tracing into a custom kernel.",
            "Cannot access data pointer of Tensor (e.g. FakeTensor, FunctionalTensor).",
        ),
        ("expected 0.5, found nan; 1 of 2 differ", "expected 0.5, found nan; 1 of 2 differ"),
        (
            "Please report this to the vendor of version 1.2",
            "Please report this to the vendor of version 1.2",
        ),
    ],
)
def test_boilerplate_of_torch_is_cut(text: str, left: str) -> None:
    assert without_boilerplate(text) == left


def test_titles_and_examples_have_no_boilerplate_and_the_record_keeps_it() -> None:
    said = "no kernel. You are likely triggering this with a tensor of another backend."
    raised = failure("", kind=Kind.RAISED, raises="RuntimeError", said=said, found=said)
    result = changed_result(failed(ADD), failure=raised)
    judged = gate(a_run(result))
    for text in (headline(result), summarise(judged), markdown_of(judged, causes_in(judged))):
        assert "no kernel." in text and not re.search("likely triggering", text)
    assert "likely triggering" in result.message
