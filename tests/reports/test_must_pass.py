"""A must-pass list: only its cells gate, and each of them must pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import conform
from devices.cell import Outcome, Verdict
from devices.must_pass import MustPassError, read_must_pass
from reports.failures import causes_in, label
from reports.gate import ExitCode, gate
from reports.run import write_run
from reports.summary import summarise
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    plan_document,
    results,
)
from tests.reports.test_crcr import a_run

LISTED = frozenset({ADD, QUERY})
BETTER = {"outcome": Outcome.PASS, "layouts": (), "failure": None}


def test_failures_of_other_cells_do_not_gate() -> None:
    judged = gate(a_run(failed(CONV), failed(BOUNDS)), must_pass=LISTED)
    assert judged.exit_code is ExitCode.GREEN
    line = summarise(judged).splitlines()[0]
    assert line == (
        "green (exit 0): 3 of 5 cells pass; 2 unexpected results in cells that the must-pass list does not name; "
        "2 of 2 cells that must pass do"
    )


@pytest.mark.parametrize("cell", [ADD, QUERY])
def test_a_listed_cell_gates_even_if_its_clause_is_provisional(cell: object) -> None:
    judged = gate(a_run(failed(cell), failed(CONV)), must_pass=LISTED)  # type: ignore[arg-type]
    assert judged.exit_code is ExitCode.REGRESSION
    first, second = causes_in(judged)
    assert (first.gates, first.example.key) == (True, cell)
    assert (second.gates, label(second)) == (False, "not gating (not on the must-pass list)")
    assert "1 of 2 cells that must pass do" in summarise(judged)


def test_no_manifest_excuses_a_listed_cell() -> None:
    judged = gate(a_run(failed(ADD, Verdict.EXPECTED)), must_pass=LISTED)
    assert judged.exit_code is ExitCode.REGRESSION
    said = summarise(judged)
    assert "1 cell that must pass is listed in the manifest as failing" in said
    assert "conform manifest update" not in said


def test_no_declaration_excuses_a_listed_cell() -> None:
    missing = failed(ADD, Verdict.OK, outcome=Outcome.UNSUPPORTED, failure=None, layouts=())
    judged = gate(a_run(missing), must_pass=LISTED)
    assert judged.exit_code is ExitCode.REGRESSION
    assert "1 cell that must pass is unsupported by declaration" in summarise(judged)


@pytest.mark.parametrize(
    "excepted",
    [
        failed(ADD, Verdict.FLAKY),
        failed(ADD, Verdict.OK, outcome=Outcome.AMBIGUOUS, failure=None, layouts=()),
        failed(ADD, Verdict.IMPROVEMENT, **BETTER),
    ],
)
def test_what_says_nothing_about_the_device_does_not_gate(excepted: object) -> None:
    assert gate(a_run(excepted), must_pass=LISTED).green  # type: ignore[arg-type]


def test_a_run_without_an_outcome_for_any_cell_stays_incomplete() -> None:
    run = a_run()
    run.results.pop(CONV)
    assert gate(run, must_pass=LISTED).exit_code is ExitCode.INCOMPLETE


def test_what_failed_in_the_baseline_does_not_gate() -> None:
    before = a_run(failed(ADD))
    assert gate(a_run(failed(ADD)), against=before, must_pass=LISTED).green


# -- the file


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "must_pass.toml"
    path.write_text(text, encoding="utf-8")
    return path


def call(*arguments: object) -> Result:
    made = CliRunner().invoke(conform, [*map(str, arguments)])
    assert "Traceback" not in made.output
    return made


def test_entries_are_written_as_in_a_manifest(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[[must_pass]]\nclause = "layout.*"\nop = "add"\ndtype = ["float32"]\nreason = "first model"\n'
        '[[must_pass]]\nclause = "streams.query"\n',
    )
    found = read_must_pass(path, {"clause": ["layout.values", "layout.bounds", "streams.query"]})
    assert found.cells(CELLS) == {ADD, BOUNDS, QUERY}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[must_pass]]\nclause = "layout.valeus"\n', "entry 1: unknown clause 'layout.valeus'"),
        ('[[must_pass]]\nop = "add"\n', "entry 1: the key 'clause' is missing"),
        ('[[must_pass]]\nclause = "layout.values"\nops = "add"\n', "unknown key 'ops'; did you mean 'op'"),
        ('[[must_pass]]\nclause = "layout.values"\nop = "ad"\n', "entry 1 matches no planned cell; did you mean 'add'"),
        ('[[must_pass]]\nclause = "layout.values"\ndtype = "bool"\n', "judge a run of a larger plan"),
        ('[[must_pass]]\nclause = "layout.values"\nreason = 3\n', "'reason' must be a string"),
        ('[[expect]]\nclause = "layout.values"\n', "expected one or more [[must_pass]] tables, found the keys 'expect'"),
        ("", "expected one or more [[must_pass]] tables"),
        ("must_pass = 3\n", "expected one or more [[must_pass]] tables"),
        ("must_pass = [3]\n", "entry 1: expected a table"),
        ("[[must_pass\n", "expected TOML"),
    ],
)  # fmt: skip
def test_a_wrong_list_is_one_message(tmp_path: Path, text: str, says: str) -> None:
    write_run(tmp_path / "run", plan_document(), results(), PROVENANCE)
    made = call("gate", tmp_path / "run", "--must-pass", written(tmp_path, text))
    assert made.exit_code == 4 and says in made.stderr
    assert made.stderr.startswith(f"error: {tmp_path / 'must_pass.toml'}: ")


def test_a_missing_list_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(MustPassError, match="cannot be read"):
        read_must_pass(tmp_path / "nosuch.toml", {})


@pytest.mark.parametrize(("cell", "code"), [(ADD, 1), (CONV, 0)])
def test_the_commands_judge_by_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: object, code: int
) -> None:
    made = failed(cell)  # type: ignore[arg-type]
    write_run(tmp_path / "run", plan_document(), results(made), PROVENANCE)
    path = written(tmp_path, '[[must_pass]]\nclause = "layout.values"\nop = "add"\n')
    judged = call("gate", tmp_path / "run", "--must-pass", path)
    assert judged.exit_code == code, judged.output
    monkeypatch.delenv("GITHUB_OUTPUT", raising=False)
    sent = call("crcr", tmp_path / "run", "--must-pass", path)
    assert ('"conclusion":"failure"' in sent.stdout) is bool(code)
    assert ADD_INT in read_must_pass(path, {}).cells(CELLS)
