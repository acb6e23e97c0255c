"""A check whose process was killed by a signal that may come from outside of the run gets a second attempt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.execution import attempt
from conformance.checks.cases.pools import end_pool
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Attempt
from devices import registry
from opinfo.device import open_device
from tests.frame import deaths


@pytest.fixture(autouse=True)
def no_pool_is_left() -> Iterator[None]:
    yield
    end_pool()


def attempted(
    check: Callable[..., None], folder: Path, number: signal.Signals, times: int, own: bool = False
) -> Attempt:
    case = BehaviourCase(
        "distributed.sharing", "dies", check, (str(folder), int(number), times), own_process=own
    )
    device = open_device(registry.get("cpu"))
    return attempt(case, device, DeviceLocator(device="cpu"))


#: Each attempt starts an interpreter, so only one of them is fast.
CHILD = pytest.param(deaths.in_a_child, False, id="child")
OTHERS = [
    pytest.param(deaths.in_a_rank, False, id="rank", marks=pytest.mark.slow),
    pytest.param(deaths.dies, True, id="own process", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("check", "own"), [CHILD, *OTHERS])
def test_a_check_whose_process_was_killed_once_runs_again(
    check: Callable[..., None], own: bool, tmp_path: Path
) -> None:
    made = attempted(check, tmp_path, signal.SIGKILL, 1, own)
    assert made.passes and made.checks > 0
    assert "was killed by SIGKILL, perhaps from outside of the run" in "".join(made.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("check", "own"), [CHILD, *OTHERS])
def test_a_check_whose_process_is_killed_twice_fails(
    check: Callable[..., None], own: bool, tmp_path: Path
) -> None:
    made = attempted(check, tmp_path, signal.SIGKILL, 9, own)
    assert made.failure is not None and len(list(tmp_path.iterdir())) == 2


def test_a_crash_is_a_failure_at_once(tmp_path: Path) -> None:
    made = attempted(deaths.in_a_child, tmp_path, signal.SIGSEGV, 1)
    assert made.failure is not None and len(list(tmp_path.iterdir())) == 1
