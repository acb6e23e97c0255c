"""Runs of a few ops: the same outcomes however they are run, selections, reports and manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml
from msgspec import structs

from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult, by_declaration
from reports.run import load_run
from tests.conftest import WholeRun
from tests.plugin.running import CHECKOUT, ForkServer, Ran, cells_of, run_conform

#: Ops that pass, and ops of which torch's CPU fails a clause.
OPS = ("addbmm", "mm", "median", "copysign", "neg", "tril")
KNOWN = {
    ("layout.inplace", "addbmm"),
    ("layout.expanded_read", "median"),
    ("layout.output_strides", "copysign"),
    ("layout.out_kept", "tril"),
    ("layout.bounds", "tril"),
}
#: The clauses of runs that are about the run. Those that compile take a second of each op.
CLAUSES = ("--clauses", "layout.*,autograd.*,dispatch.*,graphs.*,precision.*")
BASE = ("--device", "cpu", "--expectations", "none", "-v", *CLAUSES)


@dataclass(frozen=True)
class Few:
    """A run of OPS."""

    folder: Path
    junitxml: Path
    ran: Ran
    cells: dict[CellKey, CellResult]

    @property
    def failing(self) -> list[CellKey]:
        return [key for key, cell in self.cells.items() if cell.outcome is Outcome.FAIL]


@pytest.fixture(scope="module")
def few(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Few:
    """The run that others are compared with: ``-n 0``, in the plan's order."""
    base = tmp_path_factory.mktemp("few")
    folder, junitxml = base / "run", base / "cells.xml"
    ran = fork.pytest(
        *(*BASE, "-n", "0", "--ops", ",".join(OPS)),
        f"--results={folder}",
        f"--junitxml={junitxml}",
    )
    return Few(folder, junitxml, ran, cells_of(folder))


def found(cell: CellResult) -> CellResult:
    """A result without what may differ from run to run."""
    return structs.replace(cell, seconds=0.0, worker="", repro=None, example=None)


#: The suites that have an item for every op. That of compiled code has items for some.
SUITES = ("layout", "graphs", "dispatch", "precision", "autograd")


def items(ran: Ran) -> list[str]:
    """The items of all suites that ran, in order: ``layout-neg-float32``."""
    found = re.findall(r"::test_conformance\[(\S+-float32)\] (?:PASSED|FAILED)", ran.text)
    return [str(item) for item in found if not str(item).startswith("compile-")]


def items_of(*ops: str) -> set[str]:
    """The items of ops in all suites, in float32."""
    return {f"{suite}-{op}-float32" for suite in SUITES for op in ops}


def order(ran: Ran) -> list[str]:
    """The ops of the layout suite's items that ran, in order."""
    ours = [item for item in items(ran) if item.startswith("layout-")]
    return [item.removeprefix("layout-").removesuffix("-float32") for item in ours]


# -- the same outcomes


def test_the_run_has_failing_and_passing_cells(few: Few) -> None:
    failing = {(c.clause, c.unit) for c, r in few.cells.items() if r.outcome is Outcome.FAIL}
    assert failing >= KNOWN and few.ran.code == 1
    tried = [r for r in few.cells.values() if not by_declaration(r)]
    assert {r.outcome for r in tried} == {Outcome.PASS, Outcome.FAIL}
    assert all(r.message.startswith("by declaration") for r in few.cells.values() if r not in tried)
    assert sorted(items(few.ran)) == sorted(items_of(*OPS))


@pytest.mark.slow
def test_two_workers_and_a_cold_cache_give_the_same_outcomes_and_checks(
    few: Few, whole_run: WholeRun
) -> None:
    whole = {
        key: found(cell) for key, cell in whole_run.cells.items() if key.unit in OPS and key.dtype
    }
    assert {key: found(cell) for key, cell in few.cells.items()} == whole
    assert {cell.worker for cell in whole_run.cells.values()} == {"gw0", "gw1"}
    assert {cell.worker for cell in few.cells.values()} == {"main"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_another_order_gives_the_same_outcomes_and_checks(
    few: Few, fork: ForkServer, tmp_path: Path, seed: str
) -> None:
    ran = fork.pytest(
        *(*BASE, "-n", "0", "--ops", ",".join(OPS), "-p", "tests.plugin.data.shuffle"),
        f"--results={tmp_path / 'run'}",
        SHUFFLE_SEED=seed,
    )
    assert sorted(items(ran)) == sorted(items(few.ran)) and items(ran) != items(few.ran)
    cells = cells_of(tmp_path / "run")
    assert {k: found(c) for k, c in cells.items()} == {k: found(c) for k, c in few.cells.items()}


@pytest.mark.slow
def test_without_the_reference_cache_outcomes_and_checks_are_the_same(
    few: Few, fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(
        *(*BASE, "--ops", "copysign,mm", "--no-reference-cache"),
        f"--results={tmp_path / 'run'}",
    )
    assert re.search(r"expected strides: 0 of \d[\d,]* from the cache \(cache off\)", ran.text)
    wanted = {k: found(c) for k, c in few.cells.items() if k.unit in ("copysign", "mm")}
    assert {k: found(c) for k, c in cells_of(tmp_path / "run").items()} == wanted


@pytest.mark.slow
def test_most_stride_references_come_with_the_package(whole_run: WholeRun) -> None:
    """Else they are of samples that are no longer taken: CONTRIBUTING.md says how to write them anew."""
    about = re.search(
        r"strides: ([\d,]+) of ([\d,]+) from the cache, ([\d,]+) from this package",
        whole_run.ran.text,
    )
    assert about is not None
    cached, asked, shipped = (int(each.replace(",", "")) for each in about.groups())
    assert shipped / (asked - cached) > 0.8


@pytest.mark.slow
def test_wrong_references_of_the_package_change_no_outcome(
    few: Few, fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(
        *(*BASE, "--ops", "copysign,mm", "-p", "tests.plugin.data.wrong_references"),
        f"--results={tmp_path / 'run'}",
        TORCH_CONFORMANCE_CACHE=str(tmp_path / "cache"),
    )
    for op in ("copysign", "mm"):
        text = f"{op} in float32 runs again: an expected stride that comes with this package differs from the"
        assert ran.text.count(text) == 1
    wanted = {k: found(c) for k, c in few.cells.items() if k.unit in ("copysign", "mm")}
    assert {k: found(c) for k, c in cells_of(tmp_path / "run").items()} == wanted


# -- a selection is a partial run


def test_a_selected_run_is_partial_and_says_so(few: Few) -> None:
    plan = load_run(few.folder).plan
    assert plan.partial is True
    assert plan.selection == {"--ops": ",".join(OPS), "--clauses": CLAUSES[1]}
    assert "partial run (--ops, --clauses)" in few.ran.text


def test_the_gate_refuses_a_partial_run(few: Few, cache: Path) -> None:
    ran = run_conform("gate", str(few.folder), cache=cache)
    assert ran.code == 2 and "a partial run" in ran.text and "Traceback" not in ran.text


@pytest.mark.slow
def test_the_gate_says_of_a_whole_run_what_pytest_said(whole_run: WholeRun, cache: Path) -> None:
    ran = run_conform("gate", str(whole_run.folder), cache=cache)
    assert ran.code == whole_run.ran.code == 1 and "a partial run" not in ran.text


def test_k_selects_and_the_selected_cells_decide_the_exit_code(
    few: Few, fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(*(*BASE, "--ops", "neg,tril", "-k", "neg"), f"--results={tmp_path / 'run'}")
    assert ran.code == 0 and re.search(r"\d passed, [1-9]\d* deselected", ran.text)
    assert sorted(items(ran)) == sorted(items_of("neg"))
    assert "partial run (--ops, --clauses, pytest keyword)" in ran.text
    assert {key.unit for key in cells_of(tmp_path / "run")} == {"neg"}


def test_a_k_that_leaves_nothing_exits_5(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *(*BASE, "--ops", "neg", "-k", "no_such_item"), f"--results={tmp_path / 'run'}"
    )
    assert ran.code == 5 and "Traceback" not in ran.text
    assert "nothing selected (exit 5): no test matches --ops neg together with " in ran.text
    assert not (tmp_path / "run").exists()


def test_a_node_id_selects_one_item(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *BASE,
        "conformance/test_conformance.py::test_conformance[layout-neg-float32]",
        f"--results={tmp_path / 'run'}",
    )
    assert ran.code == 0 and "1 passed" in ran.text
    assert "partial run (--clauses, pytest node ids)" in ran.text
    assert {key.unit for key in cells_of(tmp_path / "run")} == {"neg"}


@pytest.mark.slow
def test_x_stops_at_the_first_failing_item_and_leaves_the_others_out(
    few: Few, fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(*(*BASE, "-x", "--ops", ",".join(OPS)), f"--results={tmp_path / 'run'}")
    first = next(op for op in order(few.ran) if op in {key.unit for key in few.failing})
    begun = order(few.ran)[: order(few.ran).index(first) + 1]
    assert ran.code == 1 and order(ran) == begun
    assert {key.unit for key in cells_of(tmp_path / "run")} == set(begun)


def test_collect_only_lists_the_items_and_leaves_an_earlier_run_as_it_was(
    few: Few, fork: ForkServer
) -> None:
    before = {p: p.read_bytes() for p in few.folder.rglob("*") if p.is_file()}
    ran = fork.pytest(
        *("--device", "cpu", "--collect-only", "-q", "--ops", "neg,tril", *CLAUSES),
        f"--results={few.folder}",
    )
    assert ran.code == 0
    listed = re.findall(r"::test_conformance\[(\S+)\]", ran.text)
    short = {f"precision-neg-{dtype}" for dtype in ("bfloat16", "float16")}  # in every plan
    assert sorted(listed) == sorted(items_of("neg", "tril") | short)
    assert {p: p.read_bytes() for p in few.folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        (("-n", "1"), {"call"}),
        (("-n", "0"), {"call"}),
        (("-s", "-n", "0"), {"call", "setup", "teardown"}),
        pytest.param(
            ("-n", "1", "-p", "tests.plugin.taker"),
            {"call", "setup", "teardown"},
            marks=pytest.mark.slow,
        ),
        (("-n", "0", "-p", "tests.plugin.taker"), {"call", "setup", "teardown"}),
    ],
)
def test_an_item_is_one_report_unless_somebody_looks(
    fork: ForkServer, tmp_path: Path, options: tuple[str, ...], phases: set[str]
) -> None:
    ran = fork.pytest(
        *(*BASE, *options, "-vv", "--durations=0", "--ops", "neg", "--clauses", "layout.values"),
        f"--results={tmp_path / 'run'}",
    )
    assert ran.code == 0
    assert set(re.findall(r"^\S+s (call|setup|teardown) ", ran.text, re.MULTILINE)) == phases


@pytest.mark.slow
def test_lf_runs_what_failed_last(fork: ForkServer, tmp_path: Path) -> None:
    common = (*BASE, "--ops", "neg,tril", "-o", f"cache_dir={tmp_path / 'pytest-cache'}")
    assert fork.pytest(*common, f"--results={tmp_path / 'run'}").code == 1
    ran = fork.pytest(*common, "--lf", f"--results={tmp_path / 'again'}")
    assert ran.code == 1 and order(ran) == ["tril"] and "pytest lf" in ran.text
    assert {key.unit for key in cells_of(tmp_path / "again")} == {"tril"}


def test_clauses_that_are_not_selected_are_not_run(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *(*BASE, "--ops", "neg", "--clauses", "layout.values,layout.in*"),
        f"--results={tmp_path / 'run'}",
    )
    assert ran.code == 0
    assert {key.clause for key in cells_of(tmp_path / "run")} == {
        "layout.values",
        "layout.inputs_intact",
        "layout.inplace",
    }


def test_when_the_time_is_over_no_item_starts_and_the_run_is_incomplete(
    fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(
        *(*BASE, "--ops", "neg,mm", "--max-time", "0.001s"), f"--results={tmp_path / 'run'}"
    )
    assert ran.code in (2, 3) and "Traceback" not in ran.text
    assert re.search(r"[1-9]\d* skipped", ran.text) and "passed" not in ran.text
    assert cells_of(tmp_path / "run") == {}


# -- reports


def test_the_junit_file_is_written_from_cells(few: Few) -> None:
    suites = list(JUnitXml.fromfile(str(few.junitxml)))
    cases = {(case.classname, case.name) for suite in suites for case in suite}
    assert cases == {(key.clause, f"{key.unit}[{key.dtype}]") for key in few.cells}
    assert sum(suite.tests for suite in suites) == len(few.cells)
    assert sum(suite.failures for suite in suites) == len(few.failing)
    undeclared = [cell for cell in few.cells.values() if by_declaration(cell)]
    assert sum(suite.skipped for suite in suites) == len(undeclared)
    assert sum(suite.errors for suite in suites) == 0


def test_an_unwritable_junit_file_is_one_error(fork: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = fork.pytest(
        *(*BASE, "--ops", "neg"),
        f"--results={tmp_path / 'run'}",
        f"--junitxml={tmp_path / 'file' / 'x.xml'}",
    )
    assert ran.code == 4 and "cannot be written" in ran.text
    assert "Traceback" not in ran.text and "INTERNALERROR" not in ran.text


def test_the_end_gives_the_verdict_then_causes_with_their_repros(few: Few) -> None:
    section = few.ran.text.partition("= conformance =")[2].splitlines()[1:]
    assert section[0].startswith("red (exit 1): ")
    shown = [line for line in section if line.startswith("regression: ")]
    repros = [line for line in section if line.startswith(f"    python {few.folder / 'repro'}/")]
    assert 0 < len(shown) == len(repros) <= len(few.failing)


def test_the_verdict_is_the_last_section_and_the_only_report_of_failures(few: Few) -> None:
    assert "= FAILURES =" not in few.ran.text and "short test summary" not in few.ran.text
    assert "Traceback" not in few.ran.text and "worker.py" not in few.ran.text
    after = few.ran.text.partition("= conformance =")[2].splitlines()[1:]
    assert [line for line in after if line.startswith("=") and " failed" not in line] == []


def test_failures_of_other_tests_are_shown_as_pytest_shows_them(
    fork: ForkServer, tmp_path: Path
) -> None:
    path = tmp_path / "test_other.py"
    path.write_text("def test_other():\n    assert 1 == 2\n")
    options = ("--device", "cpu", "--ops", "tril", "--clauses", "layout.out_kept")
    ran = fork.pytest(*options, "--expectations", "none", f"--results={tmp_path / 'run'}",
                      "conformance", str(path))  # fmt: skip
    assert ran.code == 1 and "assert 1 == 2" in ran.text and "= FAILURES =" in ran.text
    assert ran.text.count("FAILED ") == 1 and "test_conformance[" not in ran.text
    assert ran.text.rindex("= FAILURES =") < ran.text.rindex("= conformance =")


def test_quiet_is_one_line(fork: ForkServer, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--ops", "neg", "--clauses", "layout.values", "-q")
    ran = fork.pytest(*options, "--expectations", "none", f"--results={tmp_path / 'run'}")
    lines = [line for line in ran.text.splitlines() if line]
    assert ran.code == 0 and len(lines) == 3, ran.text
    assert lines[0].endswith("[100%]") and "(exit 0)" in lines[1] and "1 passed" in lines[2]


@pytest.mark.slow
def test_a_new_run_takes_the_place_of_what_an_earlier_one_wrote(
    fork: ForkServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for op, repros in (("tril", 2), ("neg", 0)):
        fork.pytest(*(*BASE, "--ops", op), f"--results={folder}")
        assert {key.unit for key in cells_of(folder)} == {op}
        assert len(list(folder.rglob("*.py"))) == repros


def test_results_go_where_they_are_asked_for_and_nowhere_else(few: Few) -> None:
    assert (few.folder / "run.conform").is_file() and few.junitxml.is_file()
    assert not (CHECKOUT / "cells.xml").exists()


# -- manifests


def block(clause: str, op: str, outcome: str = "fail", more: str = "") -> str:
    return (
        f'[[expect]]\nclause = "{clause}"\nop = "{op}"\ndtype = "float32"\noutcome = "{outcome}"\n'
        f'kind = "upstream-bug"\nreason = "made up for a test"\n{more}\n'
    )


def with_manifest(fork: ForkServer, tmp_path: Path, ops: str, *blocks: str) -> Ran:
    path = tmp_path / "expected.toml"
    path.write_text("\n".join(blocks))
    return fork.pytest(
        *("--device", "cpu", "--ops", ops, *CLAUSES, f"--expectations={path}"),
        f"--results={tmp_path / 'run'}",
    )


def test_expected_failures_make_the_run_green(few: Few, fork: ForkServer, tmp_path: Path) -> None:
    blocks = [
        block(cell.clause, cell.unit, more=f"layouts = {json.dumps(few.cells[cell].layouts)}")
        for cell in few.failing
    ]
    ran = with_manifest(fork, tmp_path, ",".join(OPS), *blocks)
    assert ran.code == 0 and "green (exit 0)" in ran.text and " failed" not in ran.text
    verdicts = [cell.verdict for cell in cells_of(tmp_path / "run").values()]
    assert verdicts.count(Verdict.EXPECTED) == len(few.failing)
    assert set(verdicts) == {Verdict.OK, Verdict.EXPECTED}


def test_an_unexpected_pass_is_an_improvement_and_exits_1(fork: ForkServer, tmp_path: Path) -> None:
    ran = with_manifest(fork, tmp_path, "neg", block("layout.values", "neg"))
    assert ran.code == 1 and "1 cell passes that " in ran.text and "1 failed" in ran.text
    cell = cells_of(tmp_path / "run")[CellKey("layout.values", "neg", "float32")]
    assert (cell.outcome, cell.verdict) == (Outcome.PASS, Verdict.IMPROVEMENT)


def test_another_outcome_than_the_expected_one_is_a_regression(
    fork: ForkServer, tmp_path: Path
) -> None:
    ran = with_manifest(
        fork, tmp_path, "median", block("layout.expanded_read", "median", "unsupported")
    )
    assert ran.code == 1 and "red (exit 1): 1 regression; " in ran.text
    cell = cells_of(tmp_path / "run")[CellKey("layout.expanded_read", "median", "float32")]
    assert cell.verdict is Verdict.REGRESSION and "expected 'unsupported'" in cell.why


def some(few: Few, *, failing: int, passing: int) -> CellKey:
    """A failing cell with at least that many failing and passing layouts."""
    return next(
        key
        for key in few.failing
        if len(few.cells[key].layouts) >= failing
        and len(set(few.cells[key].ran_layouts) - set(few.cells[key].layouts)) >= passing
    )


def expecting(fork: ForkServer, tmp_path: Path, cell: CellKey, layouts: Iterable[str]) -> Ran:
    """Run the cell's op, expecting that the cell fails in these layouts."""
    listed = f"layouts = {json.dumps(list(layouts))}"
    return with_manifest(fork, tmp_path, cell.unit, block(cell.clause, cell.unit, more=listed))


def test_a_newly_failing_layout_is_a_regression(few: Few, fork: ForkServer, tmp_path: Path) -> None:
    cell = some(few, failing=2, passing=0)
    ran = expecting(fork, tmp_path, cell, few.cells[cell].layouts[1:])
    assert ran.code == 1
    assert cells_of(tmp_path / "run")[cell].verdict is Verdict.REGRESSION


@pytest.mark.slow
def test_a_listed_layout_that_passes_is_an_improvement(
    few: Few, fork: ForkServer, tmp_path: Path
) -> None:
    cell = some(few, failing=1, passing=1)
    passing = set(few.cells[cell].ran_layouts) - set(few.cells[cell].layouts)
    ran = expecting(fork, tmp_path, cell, [*few.cells[cell].layouts, min(passing)])
    assert ran.code == 1
    assert cells_of(tmp_path / "run")[cell].verdict is Verdict.IMPROVEMENT


@pytest.mark.slow
def test_a_block_for_another_machine_is_ignored(fork: ForkServer, tmp_path: Path) -> None:
    elsewhere = block("layout.values", "neg", more='when = { os = "plan9" }')
    assert with_manifest(fork, tmp_path, "neg", elsewhere).code == 0
