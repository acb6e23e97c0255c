"""Failures in groups: what shares one, what is shown of it, and the files that hold them all."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Kind
from reports.gate import gate
from reports.model import CellResult, Example, ExampleTensor, Run, RunError
from reports.run import load_run, write_run
from reports.summary import (
    Group,
    document,
    grouped,
    groups_of,
    markdown_of,
    summarise,
    write_failures,
)
from tests.reports.builders import (
    PROVENANCE,
    changed_result,
    failed,
    failure,
    passed,
    plan_document,
)

FAMILIES = {"sin": "unary", "cos": "unary", "mul": "binary", "eq": "binary"}
VALUES = failure("1 of 2 elements differ", layout="contiguous+step_inner")
SMALL = Example(
    "torch.sin(t[0])",
    "contiguous+step_inner",
    "1 of 2 elements differ",
    (ExampleTensor("float32", (2,), (2,), 0, "[0.0, 1.0]"),),
    17,
)


def cell(op: str, dtype: str = "float32", clause: str = "layout.values") -> CellKey:
    return CellKey(clause, op, dtype)


def wrong(key: CellKey, **changed: object) -> CellResult:
    given = {
        "raises": None,
        "failure": VALUES,
        "failed": 2,
        "layouts": ("contiguous+step_inner",),
        **changed,
    }
    return failed(key, **given)  # type: ignore[arg-type]


def counts(groups: tuple[Group, ...]) -> list[tuple[str, int]]:
    return [(str(g.key), len(g.results)) for g in groups]


def test_ops_of_a_family_that_fail_alike_are_one_group() -> None:
    found = grouped([wrong(cell("sin")), wrong(cell("cos")), wrong(cell("sin", "int64"))], FAMILIES)
    assert counts(found) == [("regression layout.values: values, unary, step", 3)]
    assert [r.key for r in found[0].results] == [cell("sin"), cell("cos"), cell("sin", "int64")]


@pytest.mark.parametrize(
    "other",
    [
        wrong(cell("mul")),
        wrong(cell("tan")),  # no family: its own
        wrong(cell("cos", clause="layout.bounds")),
        wrong(cell("cos"), failure=failure("int32 for int64", kind=Kind.DTYPE)),
        wrong(cell("cos"), failure=failure("raised", kind=Kind.RAISED, raises="RuntimeError")),
        wrong(cell("cos"), layouts=("contiguous+offset",)),
        changed_result(wrong(cell("cos")), verdict=Verdict.IMPROVEMENT),
        changed_result(wrong(cell("cos")), outcome=Outcome.CRASH, layouts=()),
    ],
    ids=["family", "op", "clause", "kind", "exception", "place", "verdict", "outcome"],
)
def test_what_the_key_can_tell_apart_is_never_merged(other: CellResult) -> None:
    assert [len(g.results) for g in grouped([wrong(cell("sin")), other], FAMILIES)] == [1, 1]


def test_two_exceptions_are_two_groups() -> None:
    both = [
        wrong(cell("sin"), failure=failure("no", kind=Kind.RAISED, raises=name))
        for name in ("RuntimeError", "IndexError")
    ]
    assert len(grouped(both, FAMILIES)) == 2


def test_the_minimised_layout_decides_where_there_is_one() -> None:
    noisy = wrong(cell("cos"), layouts=("contiguous+step_inner+offset",), example=SMALL)
    assert len(grouped([wrong(cell("sin")), noisy], FAMILIES)) == 1


def test_regressions_come_first_then_the_largest_group() -> None:
    mended = changed_result(wrong(cell("cos")), verdict=Verdict.IMPROVEMENT)
    results = [mended, wrong(cell("mul")), wrong(cell("sin")), wrong(cell("cos"))]
    assert [len(g.results) for g in grouped(results, FAMILIES)] == [2, 1, 1]


def test_groups_do_not_depend_on_the_order_of_results_but_for_ties() -> None:
    results = [wrong(cell(op, d)) for op in ("sin", "cos", "mul") for d in ("float32", "int8")]
    wanted = dict(counts(grouped(results, FAMILIES)))
    random.Random(0).shuffle(results)
    assert dict(counts(grouped(results, FAMILIES))) == wanted


def test_the_example_is_the_smallest_minimised_one() -> None:
    large = replace(SMALL, tensors=(ExampleTensor("float32", (2, 2), (4, 2), 0),))
    results = [wrong(cell("sin")), wrong(cell("cos"), example=large)]
    results.append(wrong(cell("cos", "int64"), example=SMALL))
    (group,) = grouped(results, FAMILIES)
    assert group.example is results[2]


def test_without_a_minimised_one_the_example_has_a_repro() -> None:
    results = [wrong(cell("sin"), repro=None), wrong(cell("cos"))]
    assert grouped(results, FAMILIES)[0].example is results[1]


# -- a run


def run_of(folder: Path, *results: CellResult) -> Run:
    cells = [r.key for r in results]
    plan = plan_document(cells, families=FAMILIES)
    return write_run(folder, plan, {r.key: r for r in results}, PROVENANCE)


def test_the_terminal_shows_a_group_once_with_its_example_and_the_others_names(
    tmp_path: Path,
) -> None:
    made = run_of(tmp_path, wrong(cell("sin"), example=SMALL), wrong(cell("cos")))
    text = summarise(gate(made))
    assert text.count("new regression:") == 1
    assert "new regression: layout.values::sin[float32]: fail: " in text
    assert "smallest failing example, layout contiguous+step_inner: torch.sin(t[0])" in text
    assert "t[0]: float32 of shape (2,), strides (2,) = [0.0, 1.0]" in text
    assert "and 1 more cell alike (values, unary, step): cos[float32]" in text


def test_an_error_is_said_to_be_ours_and_a_blocked_cell_names_what_blocks_it(
    tmp_path: Path,
) -> None:
    blocked: dict[str, object] = {"failure": None, "failed": 0, "outcome": Outcome.BLOCKED}
    results = [
        wrong(cell("sin"), failure=None, failed=0, outcome=Outcome.ERROR, note="no such layout"),
        wrong(cell("cos"), **blocked, blocked_by="device.capability"),
        wrong(cell("tan"), **blocked, blocked_by="layout.values"),
    ]
    text = summarise(gate(run_of(tmp_path, *results)))
    assert text.count("an error is a mistake of torch-conformance") == 1
    kinds = [group.key.kind for group in grouped(results, FAMILIES)]
    assert kinds[1:] == ["blocked by device.capability", "blocked by layout.values"]


def test_at_most_twenty_groups_are_shown_the_largest_first(tmp_path: Path) -> None:
    results = [wrong(cell(f"op{n}")) for n in range(30)]
    results += [wrong(cell("op29", dtype)) for dtype in ("int8", "int16")]
    made = run_of(tmp_path, *results)
    write_failures(gate(made))
    text = summarise(gate(made))
    shown = [line for line in text.splitlines() if line.startswith("new regression")]
    assert len(shown) == 20 and "::op29[float32]" in shown[0]
    assert f"and 10 more groups (10 cells) in {tmp_path / 'failures.md'}" in text


def test_the_report_files_hold_every_group_and_cell(tmp_path: Path) -> None:
    results = [wrong(cell(f"op{n}")) for n in range(30)] + [wrong(cell("sin"), example=SMALL)]
    made = run_of(tmp_path, *results, passed(cell("mul")))
    write_failures(gate(made))
    data = json.loads((tmp_path / "failures.json").read_text())
    assert (data["format"], data["cells"], len(data["groups"])) == (1, 31, 31)
    names = {name for group in data["groups"] for name in group["cells"]}
    assert names == {str(r.key) for r in results}
    minimised = [g["example"]["minimised"] for g in data["groups"]]
    assert [m["call"] for m in minimised if m] == ["torch.sin(t[0])"]
    text = (tmp_path / "failures.md").read_text()
    assert text.startswith("# 31 new in 31 groups\n") and text.count("\n## ") == 31
    assert "`python repro/0001.py` in this folder" in text


def test_a_run_without_failures_says_so(tmp_path: Path) -> None:
    made = run_of(tmp_path, passed(cell("sin")))
    groups = groups_of(made, gate(made).new)
    assert (document(groups).groups, markdown_of(groups)) == ([], "# 0 new in 0 groups\n")


def test_report_files_that_cannot_be_written_are_one_error(tmp_path: Path) -> None:
    made = run_of(tmp_path, wrong(cell("sin")))
    (tmp_path / "failures.json").mkdir()
    with pytest.raises(RunError, match=r"failures\.json: cannot be written"):
        write_failures(gate(made))


# -- the minimised example in JUnit


@pytest.mark.parametrize(
    "example",
    [
        SMALL,
        Example("check()", "nan", "wrong", (), 0, False),
        replace(SMALL, message="a\ud800b\x00 <&> ]]>", call="torch.add(t[0], float('nan'))"),
    ],
)
def test_an_example_reads_back_as_it_was_written(tmp_path: Path, example: Example) -> None:
    made = run_of(tmp_path, wrong(cell("sin"), example=example))
    assert load_run(tmp_path).results == made.results
    if example.message.isprintable():
        assert load_run(tmp_path).results[cell("sin")].example == example


def test_junit_shows_the_example_to_people(tmp_path: Path) -> None:
    run_of(tmp_path, wrong(cell("sin"), example=replace(SMALL, whole=False)))
    text = (tmp_path / "junit-layout.xml").read_text()
    assert (
        "smallest failing example, layout contiguous+step_inner (the search ran out of its" in text
    )


def test_redacting_reaches_the_example_s_message(tmp_path: Path) -> None:
    said = replace(SMALL, message="seen on builder7")
    plan = plan_document([cell("sin")], families=FAMILIES)
    results = {cell("sin"): wrong(cell("sin"), example=said)}
    made = write_run(tmp_path, plan, results, PROVENANCE, redact=True)
    kept = made.results[cell("sin")].example
    assert kept is not None and kept.message == "seen on [redacted]"
    assert b"builder7" not in (tmp_path / "run.conform").read_bytes()
