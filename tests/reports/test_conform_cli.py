"""The ``conform`` command: exit codes, and one line for each error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import conform
from conformance.version import VERSION
from devices import registry
from devices.cell import CellKey, Verdict
from devices.descriptor import Descriptor
from devices.registry import Registry
from reports.run import CellResult, write_run
from tests.reports.builders import ADD, PROVENANCE, failed, passed, plan_document, results


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(conform, list(arguments))
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def _no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.mark.parametrize(
    ("made", "code"), [(results(), 0), (results(failed(ADD)), 1), ({ADD: passed(ADD)}, 2)]
)
def test_gate_exits_as_the_run_deserves(
    tmp_path: Path, made: dict[CellKey, CellResult], code: int
) -> None:
    write_run(tmp_path, plan_document(), made, PROVENANCE)
    result = call("gate", str(tmp_path))
    assert result.exit_code == code
    assert f"(exit {code})" in result.stdout and str(tmp_path) in result.stdout


def test_gate_tells_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(ADD)), PROVENANCE)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert "\n::error title=regression" in call("gate", str(tmp_path / "run")).stdout
    assert (tmp_path / "summary.md").read_text().startswith("## torch-conformance: red")


def test_gate_allows_improvements_when_told_to(tmp_path: Path) -> None:
    made = results(passed(ADD, verdict=Verdict.IMPROVEMENT))
    write_run(tmp_path, plan_document(), made, PROVENANCE)
    assert call("gate", str(tmp_path)).exit_code == 1
    assert call("gate", str(tmp_path), "--allow-improvements").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gate", "/no/such/run"), "error: /no/such/run: not found"),
        (("gate",), "error: Missing argument 'RUN'."),
        (("gate", "x", "--wrong"), "error: No such option"),
        (("nonsense",), "error: No such command 'nonsense'."),
        (("contract", "--clauses", "laout.*"), "error: no clause matches 'laout.*'"),
        (("contract", "--clauses", " , "), "error: --clauses was given an empty list"),
    ],
)
def test_usage_errors_are_one_line_and_exit_four(arguments: tuple[str, ...], says: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 4
    assert result.stderr.startswith(says)
    assert result.stderr.count("\n") == 1 and result.stdout == ""


def test_contract_selects_clauses() -> None:
    result = call("contract", "--clauses", "layout.values,streams.*")
    assert result.exit_code == 0
    assert "layout.values (" in result.stdout and "streams.query (" in result.stdout
    assert "layout.bounds (" not in result.stdout


def test_contract_as_json_is_its_snapshot() -> None:
    from conformance.contract import load

    assert json.loads(call("contract", "--json").stdout) == load().snapshot()
    chosen = json.loads(call("contract", "--json", "--clauses", "layout.values").stdout)
    assert [clause["id"] for clause in chosen["clauses"]] == ["layout.values"]
    assert [family["name"] for family in chosen["families"]] == ["layout"]


def test_contract_as_a_page() -> None:
    assert "layout.values" in call("contract").stdout


def test_devices_are_listed_with_why_they_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str | None:
        raise OSError("libdriver.so")

    made = {
        name: Descriptor(
            name=name,
            torch_type="npu",
            title="An NPU",
            capabilities=frozenset({"strides"}),
            dtypes=frozenset({"float32"}),
            unavailable=unavailable,
        )
        for name, unavailable in (
            ("one", lambda: None),
            ("two", lambda: "no driver"),
            ("three", broken),
        )
    }
    monkeypatch.setattr(registry, "installed", lambda: Registry(made, {}))
    rows = {
        row["name"]: row
        for row in json.loads(call("devices", "--json", "--no-probe").stdout)["devices"]
    }
    assert rows["one"]["unavailable"] is None and rows["two"]["unavailable"] == "no driver"
    assert "raised OSError: libdriver.so" in rows["three"]["unavailable"]
    text = call("devices", "--no-probe").stdout
    assert "one     npu         1 of 40, 1 dtypes  not probed  yes" in text
    assert "two is not available here: no driver" in text


def test_the_cpu_is_among_the_devices() -> None:
    result = call("devices", "--no-probe")
    assert result.exit_code == 0 and "cpu" in result.stdout


def test_run_hands_every_argument_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def main(arguments: list[str]) -> pytest.ExitCode:
        seen.append(arguments)
        return pytest.ExitCode.NO_TESTS_COLLECTED

    monkeypatch.setattr(pytest, "main", main)
    result = call("run", "-n", "auto", "--device", "npu", "--help", "-k", "add", "-x")
    assert result.exit_code == 5
    (arguments,) = seen
    assert arguments[:2] == ["-p", "conformance.plugin"]
    given = ["-n", "auto", "--device", "npu", "--help", "-k", "add", "-x"]
    assert arguments[-len(given) - 2 :] == ["--pyargs", "conformance", *given]
    # Nothing is written into the working directory.
    assert arguments[2].startswith("-o") and arguments[3].startswith("cache_dir=")


def test_the_command_needs_no_torch() -> None:
    code = (
        "import sys; from conformance.cli import conform;"
        "conform(['contract', '--json'], standalone_mode=False);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    code = f"{sys.executable} -m conformance.cli contract | head -1"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.stdout


def test_a_verdict_that_nobody_read_is_not_green(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(), PROVENANCE)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "conformance.cli", "results", str(tmp_path)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_without_room_is_one_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, plan_document(), results(), PROVENANCE)
    code = f"{sys.executable} -m conformance.cli gate {tmp_path} > /dev/full"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_the_version_is_that_of_the_suite() -> None:
    assert call("--version").stdout == f"torch-conformance {VERSION}\n"


def test_results_shows_a_run_again_and_its_record_as_json(tmp_path: Path) -> None:
    made = results(failed(ADD))
    write_run(tmp_path, plan_document(), made, PROVENANCE)
    text = CliRunner().invoke(conform, ["results", str(tmp_path)], standalone_mode=False)
    assert text.output.startswith("red (exit 1): 1 regression; 4 of 5 cells pass")
    assert "    layout.values::add[float32]: fail" in text.output
    data = CliRunner().invoke(conform, ["results", str(tmp_path), "--json"], standalone_mode=False)
    record = json.loads(data.output)
    assert record["provenance"]["torch"] == PROVENANCE.torch
    assert len(record["results"]) == len(made) == len(record["plan"]["cells"][0][1]) + 3
    (bad,) = (each for each in record["results"] if each["outcome"] == "fail")
    assert bad["key"] == {"clause": "layout.values", "op": "add", "dtype": "float32"}
    assert bad["failure"]["kind"] == "values"
