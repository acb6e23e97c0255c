"""Runs whose workers come from the fork server, and runs that lose it: the cells are the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome
from reports.model import CellResult
from tests.forking.threads import with_thread
from tests.isolation.running import planted
from tests.plugin.running import ForkServer, Ran, cells_of, run_pytest

AT = "layout.values::mm[float32]"


def run(fork: ForkServer, folder: Path, *arguments: str, **env: str) -> Ran:
    return fork.pytest(
        *("-p", "tests.isolation.planting", "--device", "cpu", "--ops", "mm,sin,add"),
        *("--clauses", "layout.*", "--expectations", "none", f"--results={folder}", *arguments),
        **env,
    )


def outcomes(folder: Path) -> Mapping[CellKey, tuple[Outcome, int]]:
    def told(result: CellResult) -> tuple[Outcome, int]:
        return result.outcome, result.checks

    return {key: told(result) for key, result in cells_of(folder).items()}


@pytest.fixture(scope="module")
def calm(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calm") / "run"
    assert run(fork, folder, "-n", "0").code == 0
    return folder


@pytest.mark.slow
def test_a_fork_server_that_dies_costs_nothing(
    fork: ForkServer, tmp_path: Path, calm: Path
) -> None:
    once = tmp_path / "once"
    ran = run(fork, tmp_path / "run", "-n", "2", **planted({AT: "kill-server"}, once))
    assert ran.code == 0 and any(once.iterdir()), ran.text
    assert "killed by SIGKILL" in ran.text
    assert outcomes(tmp_path / "run") == outcomes(calm)


@pytest.mark.slow
def test_workers_that_may_not_be_copied_run_the_same(
    fork: ForkServer, tmp_path: Path, calm: Path
) -> None:
    ran = run(fork, tmp_path / "run", "-n", "2", PYTHONPATH=with_thread(tmp_path))
    assert ran.code == 0, ran.text
    assert outcomes(tmp_path / "run") == outcomes(calm)


@pytest.mark.slow
def test_a_crash_in_a_worker_that_may_not_be_copied_costs_its_cell(
    fork: ForkServer, tmp_path: Path, calm: Path
) -> None:
    ran = run(
        fork,
        tmp_path / "run",
        "-n",
        "1",
        PYTHONPATH=with_thread(tmp_path),
        **planted({AT: "segfault"}),
    )
    assert ran.code == 1 and "killed by SIGSEGV" in ran.text, ran.text
    found = dict(outcomes(tmp_path / "run"))
    assert found.pop(CellKey.parse(AT))[0] is Outcome.CRASH
    assert found.items() <= outcomes(calm).items() and len(found) == len(outcomes(calm)) - 1


@pytest.mark.slow
def test_auto_starts_no_more_workers_than_are_of_use(fork: ForkServer, tmp_path: Path) -> None:
    ran = run(fork, tmp_path / "run", "-n", "auto")
    one = re.search(r"^1 worker \[\d items\]", ran.text, re.MULTILINE)  # few enough for one
    assert ran.code == 0 and one, ran.text


@pytest.mark.slow
def test_pytest_warns_of_nothing_that_was_loaded_before_it(cache: Path, tmp_path: Path) -> None:
    arguments = "--device", "cpu", "--ops", "neg", f"--results={tmp_path / 'run'}"
    ran = run_pytest(*arguments, "--clauses", "layout.*", cache=cache)
    assert ran.code == 0 and "PytestAssertRewriteWarning" not in ran.text, ran.text
