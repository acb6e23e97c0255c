"""Cases about streams whose verdict on a wrong device does not depend on what happened to finish in time."""

from __future__ import annotations

import pytest

from conformance.checks.cases.exceptions import Blocked
from conformance.suites.streams import threads
from devices.simulated.backend.fault_switches import planted
from tests.autograd.trying import tried
from tests.behaviour.test_false_alarms import scripted


class _Elsewhere:
    """Launches of other threads, which overlap with this one's in some rounds."""

    def __init__(self, first: int) -> None:
        self.rounds, self._first = 0, first

    def __call__(self, launches: threads.Launches) -> None:
        self.rounds += 1
        if self.rounds >= self._first:
            launches._inside.add(-1)
        for _ in range(threads.OVERLAPS):
            with launches:
                pass
        launches._inside.clear()


def test_rounds_go_on_until_launches_overlap() -> None:
    context, rounds = scripted(), _Elsewhere(first=3)

    def checked(launches: threads.Launches) -> None:
        rounds(launches)
        context.check(True, "a check of each round")

    threads.until_they_overlap(context, checked)
    assert (rounds.rounds, context.checks) == (3, 1)


def test_launches_that_never_overlap_show_nothing() -> None:
    rounds = _Elsewhere(first=10**6)
    with pytest.raises(Blocked, match="no two of 6 threads queued work at the same time") as caught:
        threads.until_they_overlap(scripted(), rounds)
    assert caught.value.by == "streams.concurrent" and rounds.rounds == threads.ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "clause", "name", "message"),
    [
        # The second stream may be slow.
        (
            *("streams.ignore_wait", "streams.threads", "hand_over"),
            "did not see the work before the event",
        ),
        # Work of some microseconds finishes in time.
        (
            *("streams.synchronize_returns_early", "streams.synchronize", "results_are_there"),
            "read wrong values after synchronize()",
        ),
        (
            "streams.reorder_tasks",
            "streams.in_order",
            "copies_on_a_stream",
            "on a side stream differs",
        ),
        ("streams.unlocked_queue", "streams.threads", "one_stream", "were lost or ran twice"),
        (
            *("streams.backward_not_joined", "streams.autograd", "caller_waits_for_backward"),
            "did not wait for the streams of backward",
        ),
    ],
)
def test_a_fault_shows_in_each_run(fault: str, clause: str, name: str, message: str) -> None:
    assert tried(clause, name, "simulated").failure is None
    with planted(fault):
        for _ in range(3):
            assert message in str(tried(clause, name, "simulated").failure)
