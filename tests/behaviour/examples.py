"""Cases that end in every way: what the tests of the frame run."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotInFlight
from devices.failure import Kind

cases = Cases(Kind.COUNT)

#: Attempts at ``in_flight_later`` so far.
ATTEMPTS: list[float] = []


@cases("device.count")
def passes(context: CaseContext) -> None:
    """Two checks that hold."""
    context.check(True, "it holds")
    context.equal(torch.zeros(3), torch.zeros(3), "it holds for tensors")


@cases("device.count")
def fails(context: CaseContext) -> None:
    """The second check does not hold."""
    context.same(1 + 1, 2, "sums are right")
    context.same(1 + 1, 3, "sums are right")
    context.check(True, "never reached")


@cases("device.count")
def checks_nothing(context: CaseContext) -> None:
    """No check at all."""


@cases("device.count")
def stands_on_what_is_not_so(context: CaseContext) -> None:
    """A precondition that does not hold, behind a check that does."""
    context.check(True, "it holds")
    context.must(False, "no work was in flight")


@cases("device.count")
def raises(context: CaseContext) -> None:
    """The device raises."""
    context.check(True, "it holds")
    raise KeyError("no such block")


@cases("device.count")
def refuses(context: CaseContext) -> None:
    """The device says that it does not implement it."""
    raise NotImplementedError("no kernel for that")


@cases("device.count")
def in_flight_later(context: CaseContext) -> None:
    """Work is over too soon, twice."""
    ATTEMPTS.append(context.patience)
    context.check(True, "seen early")
    if len(ATTEMPTS) < 3:
        raise NotInFlight("it was over")
    context.check(True, "seen in flight")


@cases("device.count")
def never_in_flight(context: CaseContext) -> None:
    """Work is always over too soon."""
    raise NotInFlight("it was over")


@cases("device.count", requires={"streams", "graphs"})
def takes_more(context: CaseContext) -> None:
    """Takes capabilities beyond its clause's."""
    context.check(True, "it holds")


@cases("device.count", indices=2)
def takes_two(context: CaseContext) -> None:
    """Takes two devices."""
    context.check(True, "it holds")


@cases("device.count", own_process=True, environment={"CONFORM_EXAMPLE": "seen"})
def in_its_own_process(context: CaseContext) -> None:
    """Runs in a process with an environment of its own."""
    context.same(os.environ.get("CONFORM_EXAMPLE"), "seen", "the environment is there")


# What children do


def returns(context: CaseContext, number: int, text: str) -> dict[str, Any]:
    context.check(True, "seen in the child")
    print("said in the child")
    return {"sum": number + len(text), "pid": os.getpid()}


def fails_there(context: CaseContext) -> None:
    context.check(False, "it does not hold there")


def never_in_flight_there(context: CaseContext) -> None:
    raise NotInFlight("it was over there")


def raises_there(context: CaseContext) -> None:
    raise ValueError("wrong there")


def dies(context: CaseContext) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(context: CaseContext) -> None:
    while True:
        time.sleep(1)
