"""Crashes, hangs and a poisoned device in runs: each costs the cell that caused it, and is named."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult
from tests.isolation.running import planted
from tests.plugin.running import ForkServer, Ran, cells_of, run_conform

OPS = ("neg", "mm", "sin", "add")
LAYOUT = ("--clauses", "layout.*")
#: A crash in the run's first cell, a hang in the midst, a poisoned device, and a crash in its last.
FIRST, MIDST, LAST = ("layout.values::add[float32]", "layout.determinism::mm[float32]",
                      "layout.determinism::sin[float32]")  # fmt: skip
POISON = "layout.values::neg[float32]"
OUTCOMES = {
    CellKey.parse(FIRST): Outcome.CRASH,
    CellKey.parse(MIDST): Outcome.HANG,
    CellKey.parse(POISON): Outcome.CRASH,
    CellKey.parse(LAST): Outcome.CRASH,
}


@dataclass(frozen=True)
class Disturbed:
    """Two runs of the same cells, one of them with mishaps."""

    folder: Path
    ran: Ran
    cells: dict[CellKey, CellResult]
    calm: dict[CellKey, CellResult]

    def message(self, cell: str) -> str:
        return self.cells[CellKey.parse(cell)].message


@pytest.fixture(scope="module")
def calm(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[CellKey, CellResult]:
    folder = tmp_path_factory.mktemp("calm") / "run"
    ran = fork.pytest(
        *("--device", "simulated", "--ops", ",".join(OPS), "--expectations", "none", *LAYOUT),
        f"--results={folder}",
    )
    assert ran.code == 0, ran.text
    return cells_of(folder)


@pytest.fixture(scope="module")
def disturbed(
    fork: ForkServer, calm: dict[CellKey, CellResult], tmp_path_factory: pytest.TempPathFactory
) -> Disturbed:
    folder = tmp_path_factory.mktemp("disturbed") / "run"
    ran = fork.pytest(
        *("-p", "tests.isolation.planting", "-n", "2", "--dist", "worksteal"),
        *("--device", "simulated", "--ops", ",".join(OPS), "--expectations", "none", *LAYOUT),
        *("--cell-timeout", "15", f"--results={folder}"),
        **planted({FIRST: "segfault", MIDST: "gil", POISON: "poison", LAST: "fork"}),
    )
    return Disturbed(folder, ran, cells_of(folder), calm)


def test_only_the_guilty_cells_are_lost(disturbed: Disturbed) -> None:
    lost = {key: r.outcome for key, r in disturbed.cells.items() if r.outcome is not Outcome.PASS}
    assert lost == OUTCOMES


def test_every_other_cell_has_the_result_of_an_undisturbed_run(disturbed: Disturbed) -> None:
    assert disturbed.cells.keys() == disturbed.calm.keys()
    for key, result in disturbed.calm.items():
        if key not in OUTCOMES:
            found = disturbed.cells[key]
            assert (found.outcome, found.layouts) == (result.outcome, result.layouts), key


def test_a_crash_is_named_with_its_signal_and_its_stack(disturbed: Disturbed) -> None:
    message = disturbed.message(FIRST)
    assert "killed by SIGSEGV; in _segfault (isolation/planting.py:" in message
    assert f"{FIRST}: crash: the worker was killed by SIGSEGV" in disturbed.ran.text


def test_a_hang_that_holds_the_gil_is_named_with_its_stack(disturbed: Disturbed) -> None:
    message = disturbed.message(MIDST)
    assert "did not return in 15 s and was killed; in match (re/__init__.py:" in message
    assert "< _holds_the_gil (isolation/planting.py:" in message


def test_a_poisoned_device_is_named_with_what_it_said(disturbed: Disturbed) -> None:
    message = disturbed.message(POISON)
    assert "left the device unusable: " in message and "device-side error" in message


def test_a_forked_child_that_lives_on_hides_no_death(disturbed: Disturbed) -> None:
    assert "killed by SIGABRT" in disturbed.message(LAST)


def test_the_call_that_ended_the_process_is_left_out_of_its_group(disturbed: Disturbed) -> None:
    strides = disturbed.cells[CellKey("layout.output_strides", "neg", "float32")]
    assert strides.outcome is Outcome.PASS
    assert strides.message == (
        f"1 call was skipped because it, or a call of another cell that runs it, ended a process earlier in this run, see {POISON}"
    )
    assert strides.checks < disturbed.calm[strides.key].checks


def test_a_run_with_crashes_is_complete_and_red(disturbed: Disturbed, cache: Path) -> None:
    assert disturbed.ran.code == 1 and "red (exit 1)" in disturbed.ran.text
    assert "4 regressions" in disturbed.ran.text
    assert "no outcome" not in disturbed.ran.text
    gate = run_conform("gate", str(disturbed.folder), cache=cache)
    assert gate.code == 2 and "a partial run" in gate.text  # --ops, which no gate lets through
    assert f"{FIRST}: crash" in gate.text and "Traceback" not in gate.text


def test_junit_counts_crashes_and_hangs_as_errors(disturbed: Disturbed) -> None:
    root = ElementTree.parse(disturbed.folder / "junit-layout.xml").getroot()
    assert (root.get("errors"), root.get("failures")) == ("4", "0")
    errors = {
        f"{case.get('classname')}::{case.get('name')}": found.get("type")
        for case in root.iter("testcase")
        if (found := case.find("error")) is not None
    }
    assert errors == {str(key): outcome.value for key, outcome in OUTCOMES.items()}


def test_nothing_that_the_run_needed_stays_behind(disturbed: Disturbed) -> None:
    assert {p.name for p in disturbed.folder.iterdir()} == {
        *("run.conform", "junit-layout.xml", "journal", "failures.json", "failures.md", "repro"),
    }
    assert list((disturbed.folder / "journal").iterdir()) == []


@pytest.mark.slow
def test_a_device_whose_error_sticks_costs_the_cell_that_met_it(
    fork: ForkServer, tmp_path: Path
) -> None:
    """The device's own fault: the third call of exp in a process, and every call behind it."""
    ran = fork.pytest(
        *("-n", "1", "--device", "simulated", "--ops", "exp,neg", "--expectations", "none"),
        *("--clauses", "layout.values,layout.out_resize", f"--results={tmp_path / 'run'}"),
        SIMULATED_FAULTS="process.sticky_error",
        SIMULATED_FAULT_OP="aten::exp",
        SIMULATED_FAULT_CALL="3",
    )
    cells = cells_of(tmp_path / "run")
    lost = {str(key): r for key, r in cells.items() if r.outcome is not Outcome.PASS}
    assert lost.keys() == {"layout.values::exp[float32]"} and len(cells) == 4, ran.text
    (result,) = lost.values()
    assert result.outcome is Outcome.CRASH and "unusable in this process" in result.message


# -- one worker where no number of them is given; what the manifest expects

EXPECTED = """
[[expect]]
clause = "layout.inplace"
op = "neg"
outcome = "crash"
kind = "device-bug"
reason = "known to crash"

[[expect]]
clause = "layout.values"
op = "sin"
outcome = "hang"
kind = "device-bug"
reason = "known to hang"
"""


@pytest.fixture(scope="module")
def expecting(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    folder = tmp_path_factory.mktemp("expecting") / "run"
    manifest = folder.parent / "expected.toml"
    manifest.write_text(EXPECTED)
    ran = fork.pytest(
        *(
            "-p",
            "tests.isolation.planting",
            "-v",
            "--device",
            "cpu",
            "--ops",
            "neg,sin,abs",
            *LAYOUT,
        ),
        *(f"--expectations={manifest}", "--cell-timeout", "15", f"--results={folder}"),
        workers=None,
        **planted({"layout.inplace::neg[float32]": "exit", "layout.values::sin[float32]": "stop"}),
    )
    return Disturbed(folder, ran, cells_of(folder), {})


@pytest.mark.slow
def test_without_n_one_worker_runs_the_items(expecting: Disturbed) -> None:
    assert re.search(r"^1 worker \[\d+ items\]", expecting.ran.text, re.MULTILINE)


@pytest.mark.slow
def test_crashes_and_hangs_that_are_expected_are_green(expecting: Disturbed) -> None:
    assert expecting.ran.code == 0, expecting.ran.text
    lost = {
        str(key): (r.outcome, r.verdict)
        for key, r in expecting.cells.items()
        if r.outcome is not Outcome.PASS
    }
    assert lost == {
        "layout.inplace::neg[float32]": (Outcome.CRASH, Verdict.EXPECTED),
        "layout.values::sin[float32]": (Outcome.HANG, Verdict.EXPECTED),
    }


@pytest.mark.slow
def test_known_crashers_run_last_and_alone(expecting: Disturbed) -> None:
    order = [
        line.partition("[layout-")[2].partition("]")[0]
        for line in expecting.ran.text.splitlines()
        if "PASSED" in line and "[layout-" in line
    ]
    assert order[:3] == ["abs-float32", "neg-float32", "sin-float32"]
    assert set(order[3:]) == {"neg-float32@layout.inplace", "sin-float32@layout.values"}


@pytest.mark.slow
def test_a_stopped_process_counts_as_hung(expecting: Disturbed) -> None:
    assert "did not return in 15 s and was killed" in expecting.message(
        "layout.values::sin[float32]"
    )


# -- stopping early, and deaths that are nobody's


@pytest.mark.slow
def test_x_counts_a_crash(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *("-p", "tests.isolation.planting", "-x", "-n", "1", "--maxschedchunk", "1"),
        *("--device", "cpu", "--ops", "abs,acos,add,mm,neg,sin", "--expectations", "none", *LAYOUT),
        f"--results={tmp_path / 'run'}",
        **planted({"layout.values::acos[float32]": "abort"}),
    )
    assert ran.code != 0 and "stopping after 1 failures" in ran.text, ran.text
    assert CellKey("layout.values", "sin", "float32") not in cells_of(tmp_path / "run")


@pytest.mark.slow
def test_workers_that_die_before_they_do_anything_end_the_run(
    fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(
        *("-p", "tests.isolation.planting", "-n", "1", "--device", "cpu", "--ops", "neg"),
        f"--results={tmp_path / 'run'}",
        PLANTED_START="9",
    )
    assert ran.code == 3 and "3 workers in a row died before they ran anything" in ran.text
    assert "exited with status 9" in ran.text and "Traceback" not in ran.text


@pytest.mark.parametrize("mode", ["loadscope", "loadfile", "loadgroup", "each"])
def test_a_distribution_that_loses_items_is_refused(
    fork: ForkServer, tmp_path: Path, mode: str
) -> None:
    ran = fork.pytest(
        *("-n", "2", "--dist", mode, "--device", "cpu", "--ops", "neg"),
        f"--results={tmp_path / 'run'}",
    )
    assert ran.code == 4 and f"--dist {mode}: expected load or worksteal" in ran.text
    assert not (tmp_path / "run").exists()
