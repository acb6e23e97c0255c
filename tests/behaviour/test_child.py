"""The protocol for work in another process."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conformance.checks import child as children
from conformance.checks.child import ChildDied, ChildLimits, Ended, ask, messages, use_copier
from conformance.run.fork_client import ForkServer

WORK = "tests.behaviour.children:"


@pytest.fixture(scope="module", autouse=True, params=["fresh", "copied"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh interpreter, or a copy: nothing here tells them apart."""
    if request.param == "copied" and not sys.platform.startswith("linux"):
        pytest.skip("nothing is copied but on Linux")
    server = ForkServer() if request.param == "copied" else None
    use_copier(server)
    yield request.param
    use_copier(None)
    if server is not None:
        server.close()


Child = partial(children.Child, copied=True)


def test_an_answer_comes_back_whatever_is_printed() -> None:
    answer, ended = ask(
        Child(WORK + "answers", {"a": [1, 2]}, environment={"CONFORM_EXAMPLE": "yes"})
    )
    assert (answer["orders"], answer["seen"]) == ({"a": [1, 2]}, "yes")
    assert answer["pid"] != os.getpid() and answer["leads"]
    assert (ended.well, str(ended)) == (True, "exited with status 0")
    assert ended.last_line == "the last line"


def test_a_child_works_in_this_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer, _ = ask(Child(WORK + "answers", None))
    assert answer["folder"] == str(tmp_path) and answer["torch"] is (kind == "copied")


def test_messages_come_in_order() -> None:
    assert list(messages(Child(WORK + "counts", 5))) == [0, 1, 2, 3, 4]


def test_an_exception_ends_the_child_with_its_text() -> None:
    with pytest.raises(ChildDied, match=r"exited with status 1: RuntimeError: no such device"):
        list(messages(Child(WORK + "raises", None)))


@pytest.mark.parametrize("work", ["dies", "dies_with_a_fork_alive"])
def test_a_signal_is_named(work: str) -> None:
    answer, ended = ask(Child(WORK + work, None, ChildLimits(total=60.0, silence=60.0)))
    assert (answer, ended.signal, ended.well) == ("begun", "SIGSEGV", False)
    assert str(ended) == "was killed by SIGSEGV: about to die"


@pytest.mark.parametrize(
    ("orders", "limits", "late"),
    [
        ("start", ChildLimits(start=0.5), "had not started after 0.5 s"),
        ("silent", ChildLimits(silence=0.5), "was silent for 0.5 s"),
        ("talking", ChildLimits(silence=60.0, total=0.5), "had not ended after 0.5 s"),
    ],
)
def test_each_limit_ends_the_child(orders: str, limits: ChildLimits, late: str) -> None:
    with pytest.raises(ChildDied) as died:
        list(messages(Child(WORK + "hangs", orders, limits)))
    assert (died.value.ended.status, died.value.ended.how) == (None, late)


def test_a_child_that_answers_and_does_not_end_is_killed() -> None:
    answer, ended = ask(Child(WORK + "does_not_end", None, ChildLimits(exit=0.2)))
    assert answer == "answered"
    assert ended.how == "had not ended 0.2 s after its last message"


def test_who_hears_a_message_may_set_another_limit_for_the_next() -> None:
    heard = []
    with Child(WORK + "speaks_once", None, ChildLimits(silence=0.0)) as child:
        for message in child:
            heard.append(message)
            child.limits = ChildLimits(silence=60.0)
    assert heard == ["begun", "done"]


def test_what_the_child_started_is_killed_with_it() -> None:
    with Child(WORK + "leaves_another", None) as child:
        other = os.pidfd_open(next(iter(child)))
        assert child.ready
    assert child.ended.how == "was stopped"
    ended, _, _ = select.select([other], [], [], 60.0)  # a signal arrives when it arrives
    os.close(other)
    assert ended


def test_closing_the_messages_ends_the_child() -> None:
    found = messages(Child(WORK + "hangs", "silent"))
    pid = next(found)
    found.close()  # type: ignore[attr-defined]  # a generator; would wait 600 s
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
        (None, "ended with an unknown status"),
    ],
)
def test_how_a_process_ended_is_one_text(status: int | None, how: str) -> None:
    assert Ended(status).how == how


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for it")
def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    code = (
        "from conformance.checks.child import Child\n"
        f"with Child({WORK + 'hangs'!r}, 'silent') as child:\n"
        "    for pid in child:\n"
        "        print(pid, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        status = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        assert runs(status)
        parent.kill()
    for _ in range(600):
        if not runs(status):
            return
        time.sleep(0.1)
    pytest.fail("the child still runs a minute later")


def runs(status: Path) -> bool:
    """Whether a process runs; one that has ended may wait for its parent."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False
