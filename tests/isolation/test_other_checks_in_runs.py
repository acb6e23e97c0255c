"""Runs on a device where lazily negated inputs end the process: the other checks of each cell count, and a manifest that
expects the crashes expects no other failure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from conformance.run.progress import FILE
from devices.cell import CellKey, Outcome, Verdict
from reports.junit import explain
from tests.plugin.running import ForkServer, Ran, cells_of, run_conform

EXP, NEG = (CellKey("layout.values", op, "float32") for op in ("exp", "neg"))
EXPECTED = """
[[expect]]
clause = "layout.values"
outcome = "crash"
kind = "device-bug"
reason = "lazily negated inputs end the process"
"""
LAYOUTS = """
[[expect]]
clause = "layout.values"
op = "exp"
outcome = "fail"
kind = "device-bug"
reason = "exp ignores strides"
layouts = {}
"""
CRASHES = {"PLANTED_CALL": "neg"}
FAULT = {"SIMULATED_FAULTS": "values.ignore_strides"}


def run(fork: ForkServer, folder: Path, manifest: str, *arguments: str, **env: str) -> Ran:
    """A run of four cells on the simulated device, with one worker if the arguments do not say otherwise."""
    arguments = arguments or ("-n", "1")
    path = folder.with_suffix(".toml")
    path.write_text(manifest)
    return fork.pytest(
        *("-p", "tests.isolation.planting", "--device", "simulated", "--ops", "exp,neg"),
        *("--clauses", "layout.values,layout.bounds", f"--expectations={path}"),
        *(*arguments, "--minimise", "0", f"--results={folder}"),
        workers=None,
        **{**CRASHES, **env},
    )


@pytest.fixture(scope="module")
def faulty(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("faulty") / "run"
    return folder, run(fork, folder, EXPECTED, **FAULT)


def test_a_new_fault_beside_an_expected_crash_is_a_regression(faulty: tuple[Path, Ran]) -> None:
    folder, ran = faulty
    cells = cells_of(folder)
    assert ran.code == 1 and "red (exit 1): 1 regression; 2 of 4 cells pass" in ran.text
    assert {key: (cells[key].outcome, cells[key].verdict) for key in (EXP, NEG)} == {
        EXP: (Outcome.CRASH, Verdict.REGRESSION),
        NEG: (Outcome.CRASH, Verdict.EXPECTED),
    }
    rest = cells[EXP].rest
    assert rest is not None
    assert (rest.outcome, rest.ended, rest.verdict) == (
        Outcome.FAIL,
        Verdict.EXPECTED,
        Verdict.REGRESSION,
    )
    assert "contiguous+step_inner" in rest.layouts and cells[EXP].layouts == ()


def test_all_checks_but_the_deadly_ones_are_counted(faulty: tuple[Path, Ran]) -> None:
    cell = cells_of(faulty[0])[NEG]
    assert cell.checks > 50 and cell.message.endswith(f"; and {cell.checks} other checks pass")


def test_reports_tell_the_fault_and_not_only_the_crash(
    faulty: tuple[Path, Ran], cache: Path
) -> None:
    folder, ran = faulty
    cell = cells_of(folder)[EXP]
    assert "wrong values if an input is not contiguous (exp)" in ran.text
    assert "repro/layout.values/exp-float32-other-checks.py" in ran.text
    assert "exp-float32-other-checks.py" in (folder / "failures.md").read_text()
    assert cell.rest is not None
    told = (
        f"and {cell.rest.failed} of {cell.checks} other checks fail: [{cell.rest.failure.layout}]"  # type: ignore[union-attr]
    )
    root = ElementTree.parse(folder / "junit-layout.xml").getroot()
    (element,) = root.iter("error")
    assert element.get("type") == "crash" and told in (element.text or "")
    assert "to reproduce the failure of the other checks: python repro/" in explain(cell)
    shown = run_conform("manifest", "explain", str(EXP), "--run", str(folder), cache=cache)
    assert "crash, other checks: fail in " in shown.text and "regression" in shown.text


@pytest.mark.slow
def test_a_fail_block_that_lists_the_layouts_covers_the_other_checks(
    fork: ForkServer, faulty: tuple[Path, Ran], tmp_path: Path
) -> None:
    rest = cells_of(faulty[0])[EXP].rest
    assert rest is not None
    listed = EXPECTED + LAYOUTS.format(list(rest.layouts))
    ran = run(fork, tmp_path / "run", listed, **FAULT)
    assert ran.code == 0 and "2 fail as expected" in ran.text, ran.text
    ran = run(fork, tmp_path / "fixed", listed)
    assert ran.code == 1 and "1 cell does better than fixed.toml says" in ran.text, ran.text


@pytest.mark.slow
def test_a_device_that_is_never_forked_counts_them_too(fork: ForkServer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    where = ("--dist=load", "--tx=popen//python=python")
    ran = run(fork, folder, EXPECTED, *where, **FAULT)
    cells = cells_of(folder)
    assert ran.code == 1 and cells[EXP].verdict is Verdict.REGRESSION, ran.text
    assert cells[NEG].verdict is Verdict.EXPECTED and cells[NEG].checks > 50


@pytest.mark.slow
def test_without_workers_they_run_when_the_run_is_resumed(fork: ForkServer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ("-n", "0")
    died = [run(fork, folder, EXPECTED, *arguments, **FAULT)]
    while not (folder / "run.conform").exists() and len(died) < 8:
        died.append(run(fork, folder, EXPECTED, *arguments, "--resume", **FAULT))
    cells = cells_of(folder)
    # Each of the two cells ends pytest twice before it counts as a crash.
    assert [ran.code for ran in died] == [-11, -11, -11, -11, 1], died[-1].text
    assert not (folder / FILE).exists()
    assert cells[EXP].verdict is Verdict.REGRESSION and cells[EXP].rest is not None
    assert cells[NEG].verdict is Verdict.EXPECTED and cells[NEG].checks > 50
