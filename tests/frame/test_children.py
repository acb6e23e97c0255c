"""Subprocesses that work together: the answers of all, or one failure that names the rank, and nothing is left."""

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

from conformance.checks import child
from conformance.checks.cases import processes
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.checks.cases.processes import DeviceLocator, in_processes
from conformance.checks.cases.results import Result, group_failure
from conformance.checks.child import Ended, use_copier
from conformance.run.fork_client import ForkServer
from devices import registry
from devices.failure import Failure, Kind
from opinfo.device import open_device
from tests.frame import ranks

RANKS = 4

#: A program that does what a process of the group does.
SERVES = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
from conformance.checks.child import serve
serve(given, int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _copies(server: ForkServer) -> Iterator[None]:
    """Processes are forked from one that has loaded torch, as in a run: loading it takes a second each."""
    use_copier(server)
    yield
    use_copier(None)


def ran(
    function: Callable[..., Any], *arguments: Any, ranks: int = RANKS, seconds: float = 60.0
) -> list[Result]:
    return in_processes(function, arguments, ranks, seconds, DeviceLocator(device="cpu"), "a group")


def nothing_left(folder: Path) -> bool:
    """Whether every process that left its id in the folder is gone. Waits for up to 10 s."""
    end = time.monotonic() + 10
    pids = [int(each.name) for each in folder.iterdir()]
    while any(Path(f"/proc/{pid}/stat").exists() for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("copies", [True, False])
def test_the_answers_of_all_ranks_come_back_in_order(copies: bool) -> None:
    if not copies:
        use_copier(None)
    results = ran(ranks.adds_up)
    assert [each.value for each in results] == [6.0] * RANKS
    assert [each.rank for each in results] == list(range(RANKS))
    assert all(each.checks == 1 and each.ended.well for each in results)
    assert group_failure(results) is None


def test_a_check_that_fails_in_one_rank_is_the_failure_of_the_group() -> None:
    failure = group_failure(ran(ranks.adds_up, 2))
    assert failure is not None and (failure.rank, failure.kind) == (2, Kind.STATE)
    assert failure.message.startswith("rank 2: the sum of all ranks is wrong: expected 6.0, found")


def test_the_checks_and_notes_of_all_ranks_count_if_one_of_them_fails() -> None:
    opened = open_device(registry.get("cpu"))
    context = CaseContext(opened, "a test")
    results = [Result(checks=n, notes=[f"rank {n}"], answered=True, rank=n) for n in range(3)]
    results[1].failure = Failure(kind=Kind.VALUES, subject="the sum is wrong")
    with pytest.raises(CheckFailed, match="rank 1: the sum is wrong"):
        context._taken(results)
    assert (context.checks, context.notes) == (3, ["rank 0", "rank 1", "rank 2"])


@pytest.mark.parametrize(
    ("how", "seconds", "said"),
    [
        ("dies", 60.0, "rank 1: the process was killed by SIGSEGV"),
        pytest.param(
            *("hangs", 5.0, "rank 1: the process had not ended after 5 s"), marks=pytest.mark.slow
        ),
        pytest.param(
            *("exits", 60.0, "rank 1: the process exited before its function returned"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_failure_names_the_rank_and_nothing_is_left(
    how: str, seconds: float, said: str, tmp_path: Path
) -> None:
    failure = group_failure(ran(ranks.fails, how, 1, str(tmp_path), seconds=seconds))
    assert failure is not None and failure.rank == 1
    assert failure.message.startswith(said)
    assert len(list(tmp_path.iterdir())) == RANKS and nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(
            "import time; time.sleep(600)",
            "rank 3: the process had not started after 30 s",
            marks=pytest.mark.slow,
        ),
        (
            "import sys; sys.exit('no such device')",
            "rank 3: the process exited with status 1: no such device",
        ),
    ],
)
def test_a_rank_that_never_starts_is_named(
    code: str,
    said: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[child.Child] = []
    script = tmp_path_factory.mktemp("late") / "script.py"
    script.write_text(code)

    class Late(child.Child):
        def __enter__(self) -> child.Child:
            started.append(self)
            if len(started) == RANKS:
                self.script = str(script)
            return super().__enter__()

    monkeypatch.setattr(processes, "Child", Late)
    monkeypatch.setattr(processes, "START_SECONDS", 30.0)
    failure = group_failure(ran(ranks.fails, "waits for the last rank", 9, str(tmp_path)))
    assert failure is not None and failure.rank == 3
    assert failure.message.startswith(said)
    assert nothing_left(tmp_path)


def test_the_others_are_ended_when_one_has_died() -> None:
    results = ran(ranks.dies_alone, 2, seconds=30.0)
    failure = group_failure(results)
    assert failure is not None
    assert failure.message == "rank 2: the process was killed by SIGKILL"
    assert {each.ended.how for each in results} == {
        "was killed by SIGKILL",
        "was ended because another process of its group had failed",
    }


@pytest.mark.slow
def test_the_limit_counts_from_the_moment_in_which_all_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[child.Child] = []
    script = tmp_path / "script.py"
    script.write_text(f"import time; time.sleep(20)\n{SERVES}")

    class Late(child.Child):
        def __enter__(self) -> child.Child:
            started.append(self)
            if len(started) == RANKS:
                self.script = str(script)
            return super().__enter__()

    monkeypatch.setattr(processes, "Child", Late)
    results = ran(ranks.adds_up, seconds=15.0)
    assert group_failure(results) is None
    assert [each.value for each in results] == [6.0] * RANKS


@pytest.mark.slow
def test_a_call_that_every_rank_refuses_is_left_to_the_case() -> None:
    results = ran(ranks.refuses)
    assert group_failure(results) is None
    assert [each.raised for each in results] == [
        f"ValueError: refused by rank {rank}" for rank in range(RANKS)
    ]


def test_the_first_exception_is_to_blame_for_those_of_the_others(tmp_path: Path) -> None:
    results = ran(ranks.fails, "raises", 1, str(tmp_path))
    failure = group_failure(results)  # None if all others have noticed that the rank is gone
    assert failure is None or failure.rank == 1
    assert results[1].raised == "RuntimeError: this rank has no such kernel"
    assert nothing_left(tmp_path)


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "from tests.frame import test_children, ranks\n"
        f"test_children.ran(ranks.waits, {str(tmp_path)!r}, ranks=2)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert nothing_left(tmp_path)


def test_the_rank_is_part_of_a_failure_and_of_its_message() -> None:
    failure = Failure(kind=Kind.STATE, subject="the sum is wrong").of_rank(3)
    assert failure.message == "rank 3: the sum is wrong"
    assert failure.of_rank(None) == Failure(kind=Kind.STATE, subject="the sum is wrong")


@pytest.mark.parametrize(
    ("one", "others", "said"),
    [
        ("raised", "behind", "rank 1: raised RuntimeError: no kernel"),
        ("behind", "raised", "rank 1: the process had not ended after 9 s"),
    ],
)
def test_the_rank_that_got_least_far_is_to_blame(one: str, others: str, said: str) -> None:
    def result(how: str, rank: int) -> Result:
        made = Result(ended=Ended(None, "had not ended after 9 s"), rank=rank)
        made.steps, made.at = (1, 5.0) if rank == 1 else (2, float(rank))
        if how == "behind":
            made.behind = True
        else:
            made.ended, made.answered, made.raised = Ended(0), True, "RuntimeError: no kernel"
            detail = "raised RuntimeError: no kernel"
            made.failure = Failure(kind=Kind.RAISED, detail=detail, raises="RuntimeError")
        return made

    failure = group_failure([result(one if rank == 1 else others, rank) for rank in range(3)])
    assert failure is not None and failure.message == said
