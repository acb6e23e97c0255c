"""``conform issue``: a report is drafted for what fails again alone, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from markdown_it import MarkdownIt

from conformance.cli import conform
from conformance.search.confirm import repeat_alone
from devices.cell import Outcome, Seen, Verdict
from reports.run import write_run
from tests.reports.builders import (
    ADD,
    ADD_INT,
    CLAUSES,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    plan_document,
    results,
)

FAILS = '''"""layout.values: add[float32], layout transposed

    import torch

    t = [torch.ones(2)]
    torch.add(t[0], 1)

Expected: 2
"""
print("FAIL: expected 2, found 3")
raise SystemExit(1)
'''
BUG = Seen("pytorch#139006", "mps", "https://github.com/pytorch/pytorch/issues/139006")
STATED = [
    {**clause, "statement": "Values equal *the* reference's.", "source": "torch/testing"}
    for clause in CLAUSES
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two causes, an expected failure and a pass. Scripts are written by the tests."""
    made = [
        failed(ADD, raises="RuntimeError", seen=(BUG,)),
        failed(ADD_INT, raises="RuntimeError", repro="repro/0002.py"),
        failed(QUERY, Verdict.EXPECTED, repro="repro/expected.py"),
    ]
    folder = tmp_path / "run"
    write_run(folder, plan_document(clauses=STATED), results(*made), PROVENANCE)
    (folder / "repro").mkdir()
    return folder


def script(run: Path, name: str, text: str = FAILS) -> None:
    (run / "repro" / name).write_text(text, encoding="utf-8")


def call(*arguments: object) -> Result:
    made = CliRunner().invoke(conform, ["issue", *map(str, arguments)])
    assert "Traceback" not in made.output
    return made


@pytest.mark.parametrize(
    "cause", ["1", *(pytest.param(str(each), marks=pytest.mark.slow) for each in (ADD, ADD_INT))]
)
def test_the_report_has_everything_that_a_reader_needs(run: Path, cause: str) -> None:
    script(run, "0001.py")
    made = call(cause, "--run", run)
    assert made.exit_code == 0, made.output
    text = made.stdout
    assert text.startswith("# cpu: ")
    assert "torch.add(t[0], 1)\n```" in text  # the snippet, not indented
    assert str(ADD) in text and str(ADD_INT) in text
    assert (
        "| torch | 2.13.0\\+cpu |" in text and "| torch\\-conformance | 0.1.0, plan quick |" in text
    )
    assert "source: torch/testing" in text and "Values equal \\*the\\* reference" in text
    assert f"pytorch\\#139006 on mps: {BUG.url}" in text
    assert "FAIL: expected 2, found 3" in text and "raise SystemExit(1)" in text


@pytest.mark.slow
def test_neither_the_host_nor_the_device_is_named(run: Path) -> None:
    script(run, "0001.py")
    text = call("1", "--run", run).stdout
    assert PROVENANCE.host not in text and PROVENANCE.device_uuid not in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('print("PASS")\n', "exits with status 0 in a new process (PASS)"),
        pytest.param("raise SystemExit(2)\n", "exits with status 2", marks=pytest.mark.slow),
        ("import nosuchmodule\n", "exits with status 1 in a new process (ModuleNotFoundError"),
    ],
)
def test_what_does_not_fail_again_alone_is_not_reported(run: Path, text: str, says: str) -> None:
    script(run, "0001.py", text)
    made = call("1", "--run", run)
    assert made.exit_code == 2 and says in made.stderr and made.stdout == ""


def test_another_cell_of_the_cause_may_be_the_one_that_fails_again(run: Path) -> None:
    script(run, "0001.py", 'print("PASS")\n')
    script(run, "0002.py")
    made = call("1", "--run", run)
    assert made.exit_code == 0 and "FAIL: expected 2" in made.stdout


def test_without_a_script_there_is_no_report(run: Path) -> None:
    made = call("1", "--run", run)
    assert made.exit_code == 2 and "there is no" in made.stderr


def test_an_expected_failure_can_be_reported_too(run: Path) -> None:
    script(run, "expected.py")
    made = call(QUERY, "--run", run)
    assert made.exit_code == 0 and str(QUERY) in made.stdout


@pytest.mark.slow
def test_a_script_that_is_too_long_for_an_issue_is_left_out(run: Path) -> None:
    script(run, "0001.py", FAILS + "#" * 70_000)
    text = call("1", "--run", run).stdout
    assert "attach it as a file" in text and len(text) < 65_536


def test_hostile_texts_cannot_add_formatting(tmp_path: Path) -> None:
    evil = "</details>```\n~~~~\n# <script>alert(1)</script> @everyone"
    made = failed(ADD, message=evil, raises="RuntimeError")
    write_run(tmp_path, plan_document(), results(made), PROVENANCE)
    (tmp_path / "repro").mkdir()
    script(tmp_path, "0001.py", FAILS.replace("FAIL: ", f"FAIL: {evil!r}"))
    text = call("1", "--run", tmp_path).stdout
    html = MarkdownIt("commonmark").render(text)
    assert "<script>" not in html and html.count("<h1>") == 1 and html.count("</details>") == 1


@pytest.mark.slow
def test_the_draft_can_be_written_to_a_file(run: Path, tmp_path: Path) -> None:
    script(run, "0001.py")
    made = call("1", "--run", run, "-o", tmp_path / "draft.md")
    assert made.exit_code == 0 and "a draft; nothing was filed" in made.stdout
    assert (tmp_path / "draft.md").read_text(encoding="utf-8").startswith("# cpu: ")


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("2", "has 1 cause, numbered as in failures.md; there is no cause 2"),
        ("0", "there is no cause 0"),
        ("add", "expected a cell such as"),
        ("layout.values::sub[float32]", "does not plan the cell"),
        (str(CONV), "has the outcome 'pass'"),
    ],
)
def test_a_cause_that_the_run_does_not_have_is_one_message(
    run: Path, cause: str, says: str
) -> None:
    made = call(cause, "--run", run)
    assert made.exit_code == 4 and made.stderr.startswith("error: ") and says in made.stderr


def test_a_pass_that_was_not_expected_is_no_bug(tmp_path: Path) -> None:
    better = failed(ADD, Verdict.IMPROVEMENT, outcome=Outcome.PASS, layouts=(), failure=None)
    write_run(tmp_path, plan_document(), results(better), PROVENANCE)
    made = call("1", "--run", tmp_path)
    assert made.exit_code == 4 and "is no failure" in made.stderr


@pytest.mark.slow
def test_a_script_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("while True: pass\n", encoding="utf-8")
    again = repeat_alone(tmp_path / "a.py", seconds=0.3)
    assert not again.failed_again and again.why_not == "the repro script took more than 0.3 s"
