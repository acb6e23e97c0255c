"""Functions in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotInFlight
from conformance.checks.cases.processes import DeviceLocator, in_process
from conformance.checks.cases.results import Result
from devices import registry
from opinfo.device import Device
from opinfo.guarded import identity
from tests.behaviour import examples


def started(function: Callable[..., Any], *arguments: Any, seconds: float = 30.0) -> Result:
    return in_process(function, arguments, DeviceLocator(device="cpu"), "a test", seconds=seconds)


@pytest.fixture(scope="module")
def ended() -> dict[str, Result]:
    """How each example ended; two are started at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting = {
            "returns": pool.submit(started, examples.returns, 40, "ab"),
            "dies": pool.submit(started, examples.dies),
            "hangs": pool.submit(started, examples.hangs, seconds=0.5),
            "raises": pool.submit(started, examples.raises_there),
        }
        return {name: future.result() for name, future in waiting.items()}


def test_a_result_and_what_was_printed_come_back(ended: dict[str, Result]) -> None:
    found = ended["returns"]
    assert (found.answered, found.ended.status, found.checks) == (True, 0, 1)
    assert found.value["sum"] == 42
    assert "said in the child" in found.ended.printed


def test_a_signal_is_named(ended: dict[str, Result]) -> None:
    found = ended["dies"]
    assert (found.answered, found.ended.how) == (False, "was killed by SIGSEGV")


def test_a_process_that_hangs_is_ended(ended: dict[str, Result]) -> None:
    found = ended["hangs"]
    assert (found.answered, found.ended.status) == (False, None)
    assert found.ended.how == "had not ended after 0.5 s"


def test_an_exception_is_told_and_left_to_the_case(ended: dict[str, Result]) -> None:
    found = ended["raises"]
    assert found.raised == "ValueError: wrong there"
    assert found.failure is not None and found.failure.raises == "ValueError"


def test_a_check_that_fails_in_a_child_fails_here() -> None:
    device = Device(registry.get("cpu"), torch.device("cpu"), identity, identity)
    context = CaseContext(device, "a test", where=DeviceLocator(device="cpu"))
    with pytest.raises(CheckFailed, match="it does not hold there"):
        context.child(examples.fails_there)
    assert context.checks == 1


def test_work_that_is_over_too_soon_in_a_child_is_tried_again_with_more_of_it() -> None:
    device = Device(registry.get("cpu"), torch.device("cpu"), identity, identity)
    context = CaseContext(device, "a test", where=DeviceLocator(device="cpu"))
    with pytest.raises(NotInFlight, match="in another process: it was over there"):
        context.child(examples.never_in_flight_there)
