"""A run that is interrupted or killed keeps what it had done, and can be gone on with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from conformance.run.progress import FILE
from devices.cell import CellKey, Outcome
from reports.model import CellResult
from tests.isolation.running import planted
from tests.plugin.running import ForkServer, Ran, cells_of, run_conform

OPS = "abs,acos,add,mm,neg,sin"
BASE = (
    *("-p", "tests.isolation.planting", "--device", "cpu", "--expectations", "none"),
    *("--clauses", "layout.*"),
)
#: In the middle of the fourth of six items.
AT = "layout.inplace::neg[float32]"


def run(fork: ForkServer, folder: Path, *arguments: str, **env: str) -> Ran:
    ops = () if "--ops" in arguments else ("--ops", OPS)
    return fork.pytest(*BASE, *ops, *arguments, f"--results={folder}", **env)


def outcomes(cells: Mapping[CellKey, CellResult]) -> dict[CellKey, tuple[Outcome, int]]:
    return {key: (result.outcome, result.checks) for key, result in cells.items()}


@pytest.fixture(scope="module")
def calm(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[CellKey, CellResult]:
    folder = tmp_path_factory.mktemp("calm") / "run"
    assert run(fork, folder).code == 0
    return cells_of(folder)


def test_a_controller_that_was_killed_is_gone_on_with(
    fork: ForkServer, tmp_path: Path, calm: dict[CellKey, CellResult]
) -> None:
    folder, once = tmp_path / "run", tmp_path / "once"
    killed = run(fork, folder, "-n", "1", **planted({AT: "kill-controller"}, once))
    assert killed.code == -9 and not (folder / "run.conform").exists()
    ran = run(fork, folder, "--resume")
    assert ran.code == 0 and "conformance: resumed: " in ran.text, ran.text
    assert outcomes(cells_of(folder)) == outcomes(calm)
    resumed = [line for line in ran.text.splitlines() if "passed" in line]
    assert resumed and "6 passed" not in resumed[-1]  # what was done is not done again


@pytest.mark.slow
def test_a_controller_that_died_with_everything_done_is_gone_on_with(
    fork: ForkServer, tmp_path: Path, calm: dict[CellKey, CellResult]
) -> None:
    folder = tmp_path / "run"
    assert run(fork, folder, PLANTED_END="1").code == 9
    assert not (folder / "run.conform").exists()
    ran = run(fork, folder, "--resume")
    assert ran.code == 0, ran.text
    assert outcomes(cells_of(folder)) == outcomes(calm)


@pytest.mark.slow
def test_a_run_with_deselected_items_that_died_at_its_end_is_gone_on_with(
    fork: ForkServer, tmp_path: Path
) -> None:
    folder, some = tmp_path / "run", ("-n", "1", "-k", "add")
    assert run(fork, folder, *some, PLANTED_END="1").code == 9
    ran = run(fork, folder, *some, "--resume")
    assert ran.code == 0 and "cells pass" in ran.text, ran.text


def test_ctrl_c_leaves_a_result_that_can_be_read_and_gone_on_with(
    fork: ForkServer, tmp_path: Path, cache: Path, calm: dict[CellKey, CellResult]
) -> None:
    folder, once = tmp_path / "run", tmp_path / "once"
    ran = run(fork, folder, "-n", "1", **planted({AT: "interrupt-controller"}, once))
    assert ran.code == 2 and "cut short: interrupted" in ran.text and "--resume" in ran.text
    partly = outcomes(cells_of(folder))
    assert 0 < len(partly) < len(calm) and partly.items() <= outcomes(calm).items()
    gate = run_conform("gate", str(folder), cache=cache)
    assert gate.code == 2 and "no outcome" in gate.text
    assert run(fork, folder, "--resume").code == 0
    assert outcomes(cells_of(folder)) == outcomes(calm)
    again = run(fork, folder, "--resume")
    assert again.code == 4 and "nothing to resume" in again.text
    assert "the run in the folder is complete" in again.text


@pytest.mark.slow
def test_without_workers_a_crash_is_named_by_the_second_resume(
    fork: ForkServer, tmp_path: Path, calm: dict[CellKey, CellResult]
) -> None:
    folder = tmp_path / "run"
    crashing = planted({AT: "abort"})
    assert run(fork, folder, **crashing).code == -6
    assert run(fork, folder, "--resume", **crashing).code == -6  # it may have been killed by hand
    ran = run(fork, folder, "--resume", **crashing)
    assert ran.code == 1 and f"{AT}: crash" in ran.text
    lost = outcomes(cells_of(folder)).items() ^ outcomes(calm).items()
    assert {key for key, _ in lost} == {CellKey.parse(AT)}


@pytest.mark.slow
def test_a_poisoned_device_ends_a_run_without_workers_and_is_named(
    fork: ForkServer, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    poisoned = planted({"layout.values::add[float32]": "poison"})
    ran = run(fork, folder, **poisoned)
    assert ran.code == 3 and "left the device unusable" in ran.text and "Traceback" not in ran.text
    ran = run(fork, folder, "--resume", **poisoned)
    assert ran.code == 1, ran.text
    lost = {str(k) for k, r in cells_of(folder).items() if r.outcome is not Outcome.PASS}
    assert lost == {"layout.values::add[float32]"}


@pytest.fixture(scope="module")
def interrupted(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    run(fork, folder, **planted({AT: "interrupt-self"}, folder.parent / "once"))
    return folder


def test_another_run_is_not_gone_on_with(fork: ForkServer, interrupted: Path) -> None:
    ran = run(fork, interrupted, "--resume", "--ops", "neg")
    assert ran.code == 4 and "is from a different run: selection was" in ran.text, ran.text


def test_nothing_is_gone_on_with_where_nothing_was_begun(fork: ForkServer, tmp_path: Path) -> None:
    ran = run(fork, tmp_path / "none", "--resume")
    assert ran.code == 4 and "the folder holds no run" in ran.text


def test_a_line_that_was_cut_off_is_left_out(
    fork: ForkServer, tmp_path: Path, interrupted: Path, calm: dict[CellKey, CellResult]
) -> None:
    folder = Path(shutil.copytree(interrupted, tmp_path / "run"))
    path = folder / FILE
    os.truncate(path, path.stat().st_size - 20)
    assert run(fork, folder, "--resume").code == 0
    assert outcomes(cells_of(folder)) == outcomes(calm)
