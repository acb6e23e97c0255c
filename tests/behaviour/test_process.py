"""Functions in processes of their own, and locks between processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.behaviour.alone import DeviceLock

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


def test_who_is_alone_is_alone(tmp_path: Path) -> None:
    inside = {"with others": 0, "alone": 0}
    wrong: list[dict[str, int]] = []
    guard = threading.Lock()

    def use(place: int) -> None:
        lock, alone = DeviceLock(tmp_path), place % 3 == 0
        kind = "alone" if alone else "with others"
        for _ in range(50):
            with lock.held(alone=alone):
                with guard:
                    inside[kind] += 1
                    if inside["alone"] > 1 or (inside["alone"] and inside["with others"]):
                        wrong.append(dict(inside))
                with guard:
                    inside[kind] -= 1

    with ThreadPoolExecutor(max_workers=6) as pool:
        list(pool.map(use, range(6)))
    assert wrong == []


def test_others_use_the_device_together(tmp_path: Path) -> None:
    met = threading.Barrier(2, timeout=30)

    def use(_: int) -> None:
        with DeviceLock(tmp_path).held(alone=False):
            met.wait()  # both are inside, or this raises

    with ThreadPoolExecutor(max_workers=2) as pool:
        assert list(pool.map(use, range(2))) == [None, None]
