"""What the Cross-Repository CI Relay is given of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from devices.cell import CellKey, Verdict
from reports.crcr import LIMIT, counts, payload, text_of
from reports.gate import gate
from reports.model import CellResult, Run
from reports.run import write_run
from tests.plugin.running import run_conform
from tests.reports.builders import ADD, CELLS, CONV, PROVENANCE, failed, plan_document, results


def a_run(*made: CellResult, cells: tuple[CellKey, ...] = CELLS) -> Run:
    return Run(Path("out"), plan_document(cells), PROVENANCE, results(*made, cells=cells))


def test_the_counts_are_those_of_the_junit_files() -> None:
    run = a_run(failed(CONV), failed(ADD, Verdict.EXPECTED))
    assert counts(run) == {"passed": 3, "failed": 1, "skipped": 1}


def test_a_cell_without_an_outcome_has_failed() -> None:
    run = a_run()
    run.results.pop(ADD)
    assert counts(run) == {"passed": 4, "failed": 1}


def test_the_environment_is_told_without_host_and_uuid() -> None:
    run = a_run()
    found = payload(gate(run))
    environment = found.conformance.environment
    assert environment["torch"] == PROVENANCE.torch and environment["device"] == "cpu"
    assert "builder7" not in text_of(found) and "GPU-1234" not in text_of(found)


def test_it_concludes_as_the_gate_does() -> None:
    green, red = a_run(), a_run(failed(CONV))
    assert payload(gate(green)).conclusion == "success"
    found = payload(gate(red))
    assert found.conclusion == "failure" and found.conformance.exit_code == 1
    (new,) = found.conformance.new
    assert new.cell == str(CONV) and new.message.startswith("AssertionError: values differ")


def test_it_stays_small_however_much_fails() -> None:
    cells = tuple(CellKey("layout.values", f"op{n}", "float32") for n in range(20_000))
    message = 'a "quoted" message \N{SNOWMAN} ' * 40
    run = a_run(*(failed(cell, message=message) for cell in cells), cells=cells)
    found = payload(gate(run))
    text = text_of(found)
    assert LIMIT * 0.95 < len(text) <= LIMIT and text.isascii()
    ours = json.loads(text)["conformance"]
    assert len(ours["new"]) + ours["new_left_out"] == len(cells) and len(ours["new"]) > 50


def test_the_command_prints_one_line_and_tells_github(tmp_path: Path, cache: Path) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    ran = run_conform("crcr", str(tmp_path / "run"), cache=cache, GITHUB_OUTPUT=str(tmp_path / "o"))
    assert ran.code == 0 and json.loads(ran.text)["failed"] == 1
    said = (tmp_path / "o").read_text().splitlines()
    assert said == [f"test-results={ran.text.strip()}", "conclusion=failure"]


def test_a_run_that_cannot_be_read_exits_4(tmp_path: Path, cache: Path) -> None:
    ran = run_conform("crcr", str(tmp_path), cache=cache)
    assert ran.code == 4 and ran.text.startswith("error: ")
