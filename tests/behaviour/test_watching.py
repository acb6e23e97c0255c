"""Watching work for a while, and calls in threads of their own."""

from __future__ import annotations

import threading

import pytest

from conformance.checks.cases.exceptions import CheckFailed
from conformance.checks.cases.held_streams import WaitingCall, ends


class Work:
    """Done when it was asked so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def query(self) -> bool:
        self.times -= 1
        return self.times < 0


def test_work_that_is_done_after_a_while_ends() -> None:
    assert ends(Work(3), 60.0)


def test_work_that_is_never_done_does_not() -> None:
    assert not ends(Work(10**9), 0.0)


def test_a_call_goes_on_beside_its_caller() -> None:
    gate = threading.Event()
    with WaitingCall(gate.wait) as call:
        assert not call.ended(0.0)
        gate.set()
    assert call.value is True


def test_what_a_call_raises_is_raised_where_it_was_made() -> None:
    with pytest.raises(ValueError, match="invalid literal"), WaitingCall(lambda: int("three")):
        pass


def test_what_the_block_raises_comes_first() -> None:
    gate = threading.Event()
    with pytest.raises(LookupError), WaitingCall(gate.wait):
        raise LookupError
    gate.set()


def test_a_call_that_does_not_end_is_told() -> None:
    gate = threading.Event()
    with pytest.raises(CheckFailed, match="had not ended after 0 s"), WaitingCall(gate.wait, 0.0):
        pass
    gate.set()
