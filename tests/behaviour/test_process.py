"""Functions in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from conformance.behaviour.context import Context
from conformance.behaviour.judging import CheckFailed
from conformance.behaviour.process import Ended, Where, run
from devices import registry
from opinfo.device import Device, identity
from tests.behaviour import examples


def started(function: Callable[..., Any], *arguments: Any, seconds: float = 30.0) -> Ended:
    return run(function, arguments, Where(device="cpu"), "a test", {}, seconds)


@pytest.fixture(scope="module")
def ended() -> dict[str, Ended]:
    """How each example ended; two are started at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting = {
            "returns": pool.submit(started, examples.returns, 40, "ab"),
            "dies": pool.submit(started, examples.dies),
            "hangs": pool.submit(started, examples.hangs, seconds=0.5),
            "raises": pool.submit(started, examples.raises_there),
        }
        return {name: future.result() for name, future in waiting.items()}


def test_a_result_and_what_was_printed_come_back(ended: dict[str, Ended]) -> None:
    found = ended["returns"]
    assert (found.answered, found.returncode, found.checks) == (True, 0, 1)
    assert found.value["sum"] == 42
    assert "said in the child" in found.printed


def test_a_signal_is_named(ended: dict[str, Ended]) -> None:
    found = ended["dies"]
    assert (found.answered, found.how) == (False, "was killed by SIGSEGV")


def test_a_process_that_hangs_is_ended(ended: dict[str, Ended]) -> None:
    found = ended["hangs"]
    assert (found.answered, found.returncode) == (False, None)
    assert found.how == "had not ended when its time was over"


def test_an_exception_is_told_and_left_to_the_case(ended: dict[str, Ended]) -> None:
    found = ended["raises"]
    assert (found.raised, found.raised_type) == ("ValueError: wrong there", "ValueError")


def test_a_check_that_fails_in_a_child_fails_here() -> None:
    device = Device(registry.get("cpu"), torch.device("cpu"), identity, identity)
    context = Context(device, "a test", where=Where(device="cpu"))
    with pytest.raises(CheckFailed, match="in a process of its own: it does not hold there"):
        context.child(examples.fails_there)
    assert context.checks == 1
