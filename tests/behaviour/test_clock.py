"""The time in which a process could run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

from conformance.checks import clock
from conformance.checks.clock import (
    LEAST,
    Clock,
    Turns,
    comes_to_be,
    could_run,
    could_run_elsewhere,
    ends_within,
    used,
    waited,
)

SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(600)"


@pytest.mark.parametrize(
    ("before", "now", "counted"),
    [
        ({}, {}, 2.0),  # it has ended, or nothing is known
        ({1: 5.0}, {1: 5.0}, 2.0),  # it ran, or slept: a hang counts in full
        ({1: 5.0}, {1: 6.5}, 0.5),
        ({1: 5.0, 2: 0.0}, {1: 5.0, 2: 1.5}, 0.5),  # one sleeps until the other has run
        ({1: 0.0, 2: 0.0}, {1: 1.0, 2: 1.0}, 1.0),  # at the same time
        ({1: 0.0}, {1: 0.0, 2: 0.5}, 1.5),  # a thread that is new
        ({1: 0.0}, {1: 3.0}, -1.0),  # a wait that began before
        ({1: 9.0}, {2: 0.0}, 2.0),  # a thread that has ended
    ],
)
def test_the_longest_wait_is_subtracted(
    before: Mapping[int, float], now: Mapping[int, float], counted: float
) -> None:
    assert could_run(2.0, before, now) == counted


@pytest.mark.parametrize(
    ("before", "now", "counted"),
    [
        ({}, {}, 2.0),
        ({1: 5.0}, {1: 5.0}, 2.0),  # what sleeps is ended in the end
        ({1: 5.0, 2: 0.0}, {1: 9.0, 2: 1.0}, 4.0),
    ],
)
def test_elsewhere_processor_time_counts_and_a_part_of_any_time(
    before: Mapping[int, float], now: Mapping[int, float], counted: float
) -> None:
    assert could_run_elsewhere(10.0, before, now) == counted


def test_what_ps_prints_is_read_for_a_process_and_those_that_it_started() -> None:
    table = "  1 0 9:00\n 10 1 01:02\n 11 10 1-02:00:01\n 12 11 0:00.50\n 13 1 5:00\n"
    assert used(10, table) == {10: 62.0, 11: 93601.0, 12: 0.5}


def test_what_only_waits_is_ended_in_the_end() -> None:
    waits = iter(float(second) for second in range(1000))
    clock = Clock(1, lambda _: {1: next(waits)})
    assert [clock.add(1.0) for _ in range(60)][-1] == pytest.approx(60 * LEAST)


def test_a_clock_begins_again_at_0() -> None:
    clock = Clock(1, lambda _: {})
    clock.add(5.0)
    clock.restart()
    assert clock.add(1.0) == 1.0


def test_what_is_ready_is_not_waited_for() -> None:
    assert Clock(1, lambda _: {}).wait(lambda seconds: True, 0.0)


def test_what_is_not_ready_is_asked_for_no_longer_than_is_left() -> None:
    asked: list[float] = []
    assert Clock(1, lambda _: {}).wait(lambda seconds: not asked.append(seconds), 0.25)
    assert 0.0 < asked[0] <= 0.25


def test_where_waits_are_not_told_processor_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "waits_are_told", lambda: False)
    looks = [{1: 0.0}, {1: 3.0}, {1: 3.0}]
    monkeypatch.setattr(clock, "used", lambda process: looks.pop(0))
    counted = Clock(1)
    assert counted.add(4.0) == 3.0
    assert counted.add(1.0) == 3.0 + clock.LEAST_ELSEWHERE


def test_a_thread_that_is_ready_has_had_its_turn_when_it_has_run_or_sleeps() -> None:
    looks: list[dict[int, int]] = [{1: 5}, {1: 5, 2: 0}, {1: 6, 2: 0}, {1: 7, 2: 3}, {2: 4}, {}]
    turns = Turns(lambda process: looks.pop(0))
    assert [turns.all_have_run() for _ in range(6)] == [False, False, False, True, True, True]


@pytest.mark.slow
def test_what_comes_to_be_later_is_seen() -> None:
    given = iter((False, False, True))
    assert comes_to_be(lambda: next(given), 60.0)


def test_what_does_not_come_to_be_is_given_up_when_every_thread_has_had_its_turn() -> None:
    assert not comes_to_be(lambda: False, 0.001)


@pytest.mark.parametrize("program", [SPINS, SLEEPS])
def test_a_hang_is_noticed(program: str) -> None:
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        assert not ends_within(child, 0.2)
        child.kill()


def test_a_process_that_ends_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        assert ends_within(child, 60.0)
    assert child.returncode == 0


@pytest.fixture
def crowd() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that compute for ever, on one processor."""
    one = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{one}}})\n{SPINS}"]
    started = [subprocess.Popen(command) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/PID/schedstat")
def test_a_process_that_shares_its_processor_is_seen_to_wait(
    crowd: list[subprocess.Popen[bytes]],
) -> None:
    def has_waited(seconds: float) -> bool:
        return max(waited(crowd[0].pid).values(), default=0.0) > 0.05

    assert Clock(crowd[0].pid).wait(has_waited, 60.0)
    assert {each.pid for each in crowd} < waited(os.getpid()).keys()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/PID/schedstat")
def test_every_thread_is_looked_at() -> None:
    over, begun = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (begun.set(), over.wait()))
    other.start()
    begun.wait()
    assert {threading.get_native_id(), other.native_id} <= waited(os.getpid()).keys()
    over.set()
    other.join()
