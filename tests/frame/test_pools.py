"""Processes that stay for the next case: started once, ended by a failure, replaced where they are gone, and never left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.checks.cases import pools
from conformance.checks.cases.pools import end_pool, in_pool
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Result, group_failure
from conformance.checks.child import use_copier
from conformance.run.fork_client import ForkServer
from tests.frame import ranks
from tests.frame.test_children import nothing_left

RANKS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _no_pool_is_left(server: ForkServer) -> Iterator[None]:
    """Processes are forked from one that has loaded torch, as in a run: loading it takes a second each."""
    use_copier(server)
    yield
    end_pool()
    use_copier(None)


def ran(function: Callable[..., Any], *arguments: Any, seconds: float = 60.0) -> list[Result]:
    return in_pool(function, arguments, RANKS, seconds, DeviceLocator(device="cpu"), "a pool")


def pids() -> list[int]:
    return [result.value for result in ran(ranks.names_itself)]


def test_the_same_processes_answer_one_question_after_another() -> None:
    first = pids()
    assert len({*first, os.getpid()}) == RANKS + 1
    assert pids() == first


@pytest.mark.slow
def test_a_failure_names_its_rank_and_ends_the_pool() -> None:
    first = pids()
    failure = group_failure(ran(ranks.fails_on, 1))
    assert failure is not None and failure.rank == 1
    assert {*pids()}.isdisjoint(first)


@pytest.mark.slow
def test_a_process_that_died_between_two_questions_is_replaced() -> None:
    first = pids()
    os.kill(first[1], signal.SIGKILL)
    end = time.monotonic() + 10
    while pools._running is not None and pools._running.pool.whole:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert {*pids()}.isdisjoint(first)


def test_a_rank_that_dies_fails_its_case_alone(tmp_path: Path) -> None:
    results = ran(ranks.dies_alone, 1, seconds=30.0)
    failure = group_failure(results)
    assert failure is not None
    assert failure.message == "rank 1: the process was killed by SIGKILL"
    assert len(pids()) == RANKS


@pytest.mark.slow
def test_another_environment_is_for_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pids()
    monkeypatch.setenv("OF_A_TEST", "1")
    assert {*pids()}.isdisjoint(first)


@pytest.mark.slow
def test_a_fork_of_the_process_has_a_pool_of_its_own() -> None:
    first = pids()
    child = os.fork()
    if child == 0:
        apart = {*pids()}.isdisjoint(first)
        end_pool()
        os._exit(0 if apart else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pids() == first


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from tests.frame import test_pools, ranks\n"
        f"test_pools.ran(ranks.leaves_its_id, {str(tmp_path)!r})\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < RANKS:
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert nothing_left(tmp_path)
