"""``conform manifest``: what each command writes, says and exits with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import conform
from devices import registry
from devices.cell import CellKey, Outcome
from devices.failure import Kind
from reports.model import CellResult
from reports.run import write_run
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

BLOCK = '[[expect]]\nclause = "layout.values"\nop = "add"\ndtype = "float32"\noutcome = "fail"\nreason = "why"\n'


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(conform, ["manifest", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result


def write(folder: Path, *made: CellResult, name: str = "run", **origin: str) -> Path:
    """A run in which these results differ from a pass."""
    path = folder / name
    start = f"2026-01-31T12:00:00+00:00 {name}"
    provenance = replace(PROVENANCE, **{"start": start, **origin})  # type: ignore[arg-type]
    write_run(path, plan_document(), results(*made), provenance)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "expected.toml"
    path.write_text(BLOCK)
    return path


# lint


def test_lint_says_that_there_is_no_problem(tmp_path: Path, file: Path) -> None:
    result = call("lint", "--manifest", file, "--run", write(tmp_path))
    assert (result.exit_code, result.stdout) == (0, f"{file}: 1 block, no problems\n")


def test_lint_names_a_block_that_matches_no_cell_of_the_run(tmp_path: Path, file: Path) -> None:
    file.write_text(BLOCK.replace('"add"', '"ad"'))
    result = call("lint", "--manifest", file, "--run", write(tmp_path))
    assert result.exit_code == 1
    assert f"{file}:1: the block matches no planned cell (unknown op 'ad'; did you mean 'add'?)" in result.stdout  # fmt: skip
    assert call("lint", "--manifest", file, "--no-plan").exit_code == 0


def test_lint_names_an_expired_block(file: Path) -> None:
    file.write_text(BLOCK + "expires = 2020-01-01\n")
    result = call("lint", "--manifest", file, "--no-plan")
    assert result.exit_code == 1 and "expired on 2020-01-01" in result.stdout


def test_lint_fix_writes_the_canonical_form(file: Path) -> None:
    file.write_text('[[expect]]\nreason = "why"\noutcome="fail"\nclause=["layout.values"]# c\n')
    result = call("lint", "--manifest", file, "--no-plan")
    assert result.exit_code == 1
    assert f"{file}:2: from this line on, the file is not in canonical form" in result.stdout
    fixed = call("lint", "--manifest", file, "--no-plan", "--fix")
    assert fixed.exit_code == 0 and "written in canonical form" in fixed.stdout
    assert file.read_text() == (
        '[[expect]]\nclause = "layout.values"  # c\noutcome = "fail"\nreason = "why"\n'
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BLOCK + "color = 1\n", "unknown key 'color'"),
        (BLOCK.replace("layout.values", "layout.valeus"), "unknown clause 'layout.valeus'; did you mean"),
        (BLOCK.replace('reason = "why"\n', ""), "the key 'reason' is missing"),
        (BLOCK + 'layouts = ["sideways"]\n', "unknown layout 'sideways'"),
        (BLOCK + 'when = { drivr = ">1" }\n', "unknown fact 'drivr'; did you mean 'driver'?"),
        (BLOCK.replace('"fail"', '"flaky"'), "outcome 'flaky' needs 'expires'"),
        (BLOCK.replace('"fail"', '"flaky"') + "expires = 2030-01-01\n", "needs 'min_pass_rate'"),
        ("[[expect]\n", "not TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_error(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    result = call("lint", "--manifest", file, "--no-plan")
    assert result.exit_code == 4
    assert result.stderr.startswith(f"error: {file}:") and says in result.stderr


def test_a_fact_that_the_run_s_machine_does_not_know_is_an_error(
    tmp_path: Path, file: Path
) -> None:
    file.write_text(BLOCK.replace("reason =", 'when = { driver = ">1" }\nreason ='))
    result = call("lint", "--manifest", file, "--run", write(tmp_path))
    assert result.exit_code == 4 and "needs the fact 'driver'" in result.stderr
    assert call("lint", "--manifest", file, "--no-plan").exit_code == 0


def test_a_device_that_is_not_here_is_not_asked_for_its_facts(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts() -> dict[str, str]:
        raise AssertionError("asked")

    absent = replace(registry.get("cpu"), facts=facts, unavailable=lambda: "not here")
    monkeypatch.setattr(registry, "get", lambda name: absent)
    for command in (["lint", "--no-plan"], ["stats"], ["explain", ADD]):
        assert call(*command, "--device", "cpu", "--manifest", file).exit_code == 0


def test_lint_plans_the_device_s_cells_where_no_run_is_given(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def planned(self: object, plan: str) -> Mapping[CellKey, None]:
        asked.append(plan)
        return dict.fromkeys(CELLS)

    monkeypatch.setattr("conformance.commands.manifest.Given.cells", planned)
    assert call("lint", "--manifest", file).exit_code == 0
    assert call("lint", "--manifest", file, "--plan", "core").exit_code == 0
    assert asked == ["full", "core"]


# update


def test_update_shows_the_difference_and_writes_it(tmp_path: Path, file: Path) -> None:
    file.write_text(BLOCK.replace('"add"', '["add", "nn.functional.conv2d"]'))
    file.chmod(0o640)
    result = call("update", write(tmp_path, failed(CONV)), "--manifest", file)
    assert result.exit_code == 0
    assert f"--- {file}\n+++ {file} (updated)\n" in result.stdout
    assert '-op = ["add", "nn.functional.conv2d"]\n+op = "nn.functional.conv2d"\n' in result.stdout
    assert f"{file}: 1 block narrowed\n" in result.stdout
    assert file.read_text() == BLOCK.replace('"add"', '"nn.functional.conv2d"')
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("option", "code"), [("--dry-run", 0), ("--check", 1)])
def test_update_writes_nothing_when_told_so(
    tmp_path: Path, file: Path, option: str, code: int
) -> None:
    result = call("update", write(tmp_path), "--manifest", file, option)
    assert result.exit_code == code
    assert '-op = "add"' in result.stdout and "(nothing was written)" in result.stdout
    assert file.read_text() == BLOCK


def test_update_check_is_green_where_nothing_would_change(tmp_path: Path, file: Path) -> None:
    result = call("update", write(tmp_path, failed(ADD)), "--manifest", file, "--check")
    assert (result.exit_code, result.stdout) == (0, f"{file}: nothing to change\n")


def test_update_adds_with_a_reason_and_two_runs(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    made = failed(BOUNDS, layouts=("transposed",), raises=None)
    runs = [write(tmp_path, made, name=name) for name in "ab"]
    told = call("update", *runs, "--manifest", file, "--reason", "it is late", "--kind", "device-bug",
                "--issue", "https://x.y/1", "--expires", "2030-01-01")  # fmt: skip
    assert told.exit_code == 0 and "1 block added" in told.stdout
    assert file.read_text().endswith(
        '# it is late\n\n[[expect]]\nclause = "layout.bounds"\nop = "add"\ndtype = "float32"\n'
        'layouts = ["transposed"]\noutcome = "fail"\nkind = "device-bug"\nreason = "it is late"\n'
        'issue = "https://x.y/1"\nexpires = 2030-01-01\n'
    )


def test_update_drafts_a_reason_for_each_cause(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    raises = failure("", kind=Kind.RAISED, raises="RuntimeError", said="no such mode 7")
    made = [
        failed(ADD, raises=None),
        failed(ADD_INT, raises=None),
        failed(CONV, failure=raises, raises="RuntimeError"),
        failed(BOUNDS, failure=raises, raises="RuntimeError"),
    ]
    runs = [write(tmp_path, *made, name=name) for name in "ab"]
    told = call("update", *runs, "--manifest", file, "--triage", "--kind", "device-bug")
    assert told.exit_code == 0 and "3 blocks added" in told.stdout
    assert sorted(line for line in file.read_text().splitlines() if line.startswith("# ")) == [
        "# Expected failures, one block for each root cause.",
        "# triage: raises RuntimeError: no such mode 7 (nn.functional.conv2d, add)",
        "# triage: wrong values if an input is not contiguous (add)",
    ]
    assert "leave out --reason" in call("update", *runs, "--triage", "--reason", "r").stderr


def test_update_adds_only_what_is_selected(tmp_path: Path, file: Path) -> None:
    file.write_text("")
    made = [failed(key, raises=None) for key in (ADD, ADD_INT, CONV)]
    runs = [write(tmp_path, *made, name=name) for name in "ab"]
    call(
        "update", *runs, "--manifest", file, "--reason", "r", "--ops", "nn.*", "--dtypes", "float32"
    )
    assert 'op = "nn.functional.conv2d"' in file.read_text() and '"add"' not in file.read_text()


def test_update_names_what_it_leaves_alone(tmp_path: Path, file: Path) -> None:
    runs = [
        write(tmp_path, failed(CONV, raises=None), name="a"),
        write(tmp_path, failed(ADD), name="b"),
    ]
    result = call("update", *runs, "--manifest", file)
    assert file.read_text() == BLOCK
    assert "not changed: the runs disagree (2 cells)" in result.stdout
    assert (
        f"    {ADD}: {runs[0]}: pass; {runs[1]}: fail with AssertionError in transposed\n"
        in result.stdout
    )
    assert 'outcome = "flaky"' in result.stdout
    again = call("update", runs[0], "--manifest", file, "--dry-run")
    assert "not recorded: unexpected failures (1 cell)" in again.stdout


def test_update_exits_1_where_flaky_cells_pass_too_seldom(tmp_path: Path, file: Path) -> None:
    file.write_text(
        BLOCK.replace('"fail"', '"flaky"') + "expires = 2099-01-01\nmin_pass_rate = 0.9\n"
    )
    runs = [write(tmp_path, failed(ADD), name="a"), write(tmp_path, name="b")]
    result = call("update", *runs, "--manifest", file)
    assert result.exit_code == 1
    assert "passes in 1 of 2 runs; expected a pass rate of at least 0.9" in result.stdout


def test_update_takes_unseen_dtypes_to_be_as_those_that_were_seen_when_told_so(
    tmp_path: Path, file: Path
) -> None:
    file.write_text(BLOCK.replace('dtype = "float32"\n', ""))
    run = write(tmp_path)
    shown = call("update", run, "--manifest", file, "--dry-run").stdout
    assert shown.count('+  "bfloat16",') == 1 and "that no RUN planned" in shown
    assert "1 block removed" in call("update", run, "--manifest", file, "--unseen-too").stdout
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--reason", " "], "--reason is empty"),
        (["--kind", "device-bug"], "--kind needs --reason or --triage"),
        (["--reason", "r", "--issue", "later"], "--issue 'later' is not a URL"),
        (["--reason", "r", "--expires", "soon"], "--expires 'soon' is not a date"),
        (["--reason", "r"], "failures are added only from two runs that agree"),
        (["--ops", "nothing*"], "--ops 'nothing*' matches nothing"),
        (["--clauses", ","], "--clauses was given an empty list"),
    ],
)
def test_update_refuses_what_makes_no_sense(
    tmp_path: Path, file: Path, arguments: list[str], says: str
) -> None:
    result = call("update", write(tmp_path, failed(ADD)), "--manifest", file, *arguments)
    assert result.exit_code == 4 and says in result.stderr
    assert file.read_text() == BLOCK


def test_update_works_on_the_manifest_that_the_run_was_judged_by(
    tmp_path: Path, file: Path
) -> None:
    run = write(tmp_path, expectations=str(file))
    assert call("update", run).exit_code == 0
    assert file.read_text() == ""


def test_a_device_that_is_named_has_a_manifest_of_its_own(tmp_path: Path, file: Path) -> None:
    """And not the one that the run was judged by, which may lie in another checkout."""
    run = write(tmp_path, expectations=str(file))
    result = call("update", run, "--check", "--device", "cpu")
    expectations = registry.get("cpu").expectations
    assert f"{expectations}:" in result.output and str(file) not in result.output


def test_without_a_manifest_update_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "installed", lambda: registry.Registry({}, {}))
    result = call("update", write(tmp_path))
    assert result.exit_code == 4 and "name the file with --manifest PATH" in result.stderr


def test_a_manifest_that_is_not_there_is_an_error_that_says_how_to_start_one(
    tmp_path: Path,
) -> None:
    result = call("update", write(tmp_path), "--manifest", tmp_path / "none.toml")
    assert (
        result.exit_code == 4
        and "create it with `conform manifest update RUN RUN --triage`" in result.stderr
    )


@pytest.mark.parametrize("command", [["lint", "--no-plan"], ["update", "run"], ["stats"]])
def test_a_folder_in_the_place_of_a_manifest_is_one_error(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    result = call(*command, "--manifest", tmp_path)
    assert result.exit_code == 4 and "Is a directory" in result.stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that refuses")
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, file: Path) -> None:
    run = write(tmp_path)
    file.parent.chmod(0o500)
    try:
        result = call("update", run, "--manifest", file)
    finally:
        file.parent.chmod(0o700)
    assert result.exit_code == 4 and "cannot be written" in result.stderr


def test_a_write_that_fails_leaves_the_old_text(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = write(tmp_path)
    monkeypatch.setattr(Path, "replace", full)
    result = call("update", run, "--manifest", file)
    assert result.exit_code == 4 and "No space left on device" in result.stderr
    assert file.read_text() == BLOCK and not list(tmp_path.glob(".*"))


# explain


def test_explain_shows_the_block_and_the_verdict(tmp_path: Path, file: Path) -> None:
    runs = [write(tmp_path, failed(ADD), name="a"), write(tmp_path, name="b")]
    result = call("explain", ADD, "--manifest", file, "--run", runs[0], "--run", runs[1])
    assert result.exit_code == 0
    assert "decides: " in result.stdout
    assert f"{runs[0]}: fail with AssertionError in transposed: expected\n" in result.stdout
    assert f"{runs[1]}: pass: improvement\n" in result.stdout
    assert "`conform manifest update RUN`" in result.stdout


def test_explain_holds_a_flaky_cell_to_its_pass_rate(tmp_path: Path, file: Path) -> None:
    file.write_text(
        BLOCK.replace('"fail"', '"flaky"') + "expires = 2099-01-01\nmin_pass_rate = 0.9\n"
    )
    runs = [write(tmp_path, failed(ADD), name="a"), write(tmp_path, name="b")]
    result = call("explain", ADD, "--manifest", file, "--run", runs[0], "--run", runs[1])
    assert "all runs together: regression\n    passes in 1 of 2 runs" in result.stdout


def test_explain_says_that_a_run_did_not_plan_a_cell(tmp_path: Path, file: Path) -> None:
    run = write(tmp_path)
    result = call("explain", "layout.values::addr[float32]", "--manifest", file, "--run", run)
    assert (
        f"{run}: the cell is not planned; did you mean 'layout.values::add[float32]'"
        in result.stdout
    )


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("add", "expected a cell such as 'layout.values::add[float32]', got 'add'"),
        (
            "layout.valeus::add[int8]",
            "unknown clause 'layout.valeus'; did you mean 'layout.values'",
        ),
        ("layout.values::ad[int8]", "layout.values::ad[int8]: unknown op 'ad'; did you mean 'add'"),
        ("layout.values::add[int88]", "unknown dtype 'int88'; did you mean 'int8'"),
        ("streams.wait::drwan", "streams.wait has no case 'drwan'; did you mean 'drawn'"),
    ],
)
@pytest.mark.parametrize("command", [("manifest", "explain"), ("minimise",)])
def test_what_is_not_a_cell_is_refused_with_the_nearest_names(
    command: tuple[str, ...], cell: str, says: str
) -> None:
    result = CliRunner().invoke(conform, [*command, cell, "--device", "cpu"])
    assert result.exit_code == 4 and says in result.stderr and result.stderr.count("\n") == 1


# stats


def test_stats_as_json(tmp_path: Path, file: Path) -> None:
    result = call("stats", "--manifest", file, "--json", "--run", write(tmp_path))
    told = json.loads(result.stdout)
    assert (told["blocks"], told["covered"], told["planned"]) == (1, 1, len(CELLS))
    assert told["manifest"] == str(file) and told["without_issue"] == [f"{file}:1"]


def test_stats_without_a_plan_count_no_cells(file: Path) -> None:
    assert call("stats", "--manifest", file).stdout.startswith(f"{file}\n1 block\n")


# Every manifest that we ship


@pytest.mark.parametrize(
    "name", [name for name, each in registry.installed().devices.items() if each.expectations]
)
def test_the_manifests_of_our_devices_have_no_problem(name: str) -> None:
    result = call("lint", "--device", name, "--no-plan")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1), result.output


def test_a_result_that_is_no_evidence_is_not_used(tmp_path: Path, file: Path) -> None:
    unchecked = passed(ADD, checks=0)
    result = call("update", write(tmp_path, unchecked), "--manifest", file)
    assert file.read_text() == BLOCK, result.output
    assert unchecked.outcome is Outcome.PASS


def test_update_takes_a_case_out_of_its_block_whole_for_a_case_has_no_dtype(
    tmp_path: Path, file: Path
) -> None:
    text = BLOCK.replace('dtype = "float32"\n', "").replace("layout.values", QUERY.clause)
    file.write_text(text.replace('"add"', f'["another", "{QUERY.unit}"]'))
    result = call("update", write(tmp_path), "--manifest", file)
    assert "that no RUN planned" not in result.stdout
    assert file.read_text() == text.replace('"add"', '"another"')  # which no run planned
