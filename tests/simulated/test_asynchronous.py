"""Work is queued: the host goes on, order is what streams and events say, errors surface later."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import devices.simulated.backend as backend
from devices import registry
from opinfo.device import open_device
from tests.plugin.running import ForkServer

ONES = (1.0, 1.0, 1.0, 1.0)


@pytest.fixture
def stream(gates: None) -> Iterator[torch.Stream]:
    with torch.Stream("simulated") as made:
        yield made
        made.synchronize()


@pytest.fixture
def gate(stream: torch.Stream) -> Iterator[torch.simulated.Gate]:
    """Holds the current stream; opened at the end whatever happens."""
    made = torch.simulated.Gate()
    yield made
    made.open()


def ones() -> torch.Tensor:
    return torch.ones(4, device="simulated")


def square() -> torch.Tensor:
    return torch.ones(2, 2, device="simulated")


#: Calls that are queued, and what makes their arguments: anew for each test, as planted faults of other tests may
#: have spoilt what was made before.
QUEUED: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "pointwise": (torch.add, lambda: (ones(), ones())),
    "expanded": (torch.mul, lambda: (ones(), ones()[:1])),
    "in place": (torch.Tensor.add_, lambda: (ones(), ones())),
    "out": (lambda x, out: torch.exp(x, out=out), lambda: (ones(), ones())),
    "fill": (lambda x: x.fill_(3), lambda: (ones(),)),
    "copy": (torch.clone, lambda: (ones(),)),
    "convert": (torch.Tensor.double, lambda: (ones(),)),
    "reduction": (lambda x: x.sum(0), lambda: (ones(),)),
    "matmul": (torch.mm, lambda: (square(), square())),
    "gradient of a convolution": (
        lambda g, x, w: torch.ops.aten.convolution_backward(
            g, x, w, None, [1], [0], [1], False, [0], 1, [True, False, False]
        )[0],
        lambda: (ones().view(1, 1, 4), ones().view(1, 1, 4), ones()[:1].view(1, 1, 1)),
    ),
    "concatenation": (lambda x, y: torch.cat([x, y]), lambda: (ones(), ones())),
    "two devices": (lambda x: x.to("simulated:1"), lambda: (ones(),)),
}


@pytest.mark.parametrize("name", QUEUED)
def test_the_host_goes_on_while_the_work_is_in_flight(
    name: str, stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    call, make = QUEUED[name]
    arguments = make()
    torch.simulated.synchronize()
    gate.close()
    result = call(*arguments)  # returns although nothing can run
    assert not stream.query()
    gate.open()
    stream.synchronize()
    # The same call on the CPU; in-place and out= calls have run once on the device before.
    want = {"in place": [2.0] * 4}.get(name)
    if want is None:
        want = call(*(each.cpu() for each in arguments)).cpu().tolist()
    assert result.cpu().tolist() == want and stream.query()


def test_a_chain_of_queued_work_keeps_its_order(
    stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    x = ones()
    gate.close()
    y = x
    for step in range(50):
        y = (y * 2).remainder_(1) if step % 10 == 9 else y + x
    gate.open()
    want = torch.ones(4)
    for step in range(50):
        want = (want * 2).remainder_(1) if step % 10 == 9 else want + 1
    assert y.tolist() == want.tolist()


def test_memory_that_is_freed_while_work_uses_it_stays_right(
    stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    x = ones()
    gate.close()
    first = x + 1
    address = first.data_ptr()
    second = first * 10
    del first
    third = x + 5  # may take the first one's memory: it is written after it was read
    gate.open()
    assert third.data_ptr() == address
    assert (second.tolist(), third.tolist()) == ([20.0] * 4, [6.0] * 4)


def test_a_missing_wait_shows_a_race_and_a_wait_mends_it(gate: torch.simulated.Gate) -> None:
    x = torch.zeros(4, device="simulated")
    other = torch.Stream("simulated")
    torch.simulated.synchronize()
    gate.close()
    x.add_(1)
    with other:
        early = x.tolist()  # nobody said that this must wait
    recorded = torch.accelerator.current_stream().record_event()
    other.wait_event(recorded)
    gate.open()
    with other:
        assert (early, x.tolist()) == ([0.0] * 4, list(ONES))


def test_a_scalar_of_the_host_is_read_at_the_call(
    stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    x, scalar = ones(), torch.tensor(2.0)
    gate.close()
    y = x * scalar
    scalar.fill_(100.0)
    gate.open()
    assert y.tolist() == [2.0] * 4


def test_a_copy_between_devices_holds_both_current_streams(
    stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    x = ones()
    there = torch.accelerator.current_stream("simulated:1")
    gate.close()
    moved = (x + 1).to("simulated:1")
    after = moved * 2
    x.zero_()  # behind the copy
    assert not there.query() and not stream.query()
    gate.open()
    assert after.tolist() == [4.0] * 4 and x.tolist() == [0.0] * 4


def test_a_pinned_copy_is_queued_and_a_pageable_one_is_not(
    stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    x, pinned = ones(), torch.zeros(4).pin_memory()
    torch.simulated.synchronize()
    gate.close()
    pinned.copy_(x, non_blocking=True)
    assert pinned.tolist() == [0.0] * 4 and not stream.query()
    gate.open()
    stream.synchronize()
    assert pinned.tolist() == list(ONES)


# Errors


def test_a_failure_of_queued_work_surfaces_at_the_next_synchronise(stream: torch.Stream) -> None:
    backend.library.fail("index 7 is out of range")
    with pytest.raises(RuntimeError, match="index 7 is out of range"):
        torch.simulated.synchronize()
    assert (ones() + 1).tolist() == [2.0] * 4


def test_a_failure_of_queued_work_surfaces_at_the_next_call_after_it(stream: torch.Stream) -> None:
    x = ones()
    backend.library.fail("index 7 is out of range")
    while not stream.query():
        pass
    with pytest.raises(RuntimeError, match="index 7 is out of range"):
        x + 1


def test_what_can_be_seen_at_the_call_is_raised_there(
    stream: torch.Stream, gate: torch.simulated.Gate
) -> None:
    x, y = ones(), torch.ones(3, device="simulated")
    with pytest.raises(RuntimeError, match="must match the size"):
        x + y


def test_a_copy_that_cannot_be_broadcast_is_refused_at_the_call() -> None:
    target = ones()
    with pytest.raises(RuntimeError, match="must match the size"):
        target.copy_(square())
    assert target.tolist() == list(ONES)
    assert ones().copy_(torch.zeros(1, device="simulated")).tolist() == [0.0] * 4


def test_values_that_an_op_refuses_are_refused_at_the_call() -> None:
    whole = torch.ones(2, dtype=torch.int64, device="simulated")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        whole // 0


# The end


def test_a_process_with_queued_work_ends_cleanly(fork: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch, devices.simulated.backend
            x = torch.ones(300, 300, device="simulated")
            torch.simulated.synchronize()
            for _ in range(200):
                y = x @ x
            gate = torch.simulated.Gate()
            gate.close()
            z = x + y
            print("ends", flush=True)
            """
        ),
        encoding="utf-8",
    )
    ran = fork.script(script)
    assert ran.code == 0 and "ends" in ran.text


def test_a_result_on_the_host_is_waited_for_before_it_is_judged(stream: torch.Stream) -> None:
    device = open_device(registry.get("simulated"))
    gate = torch.simulated.Gate()
    result = ones().to("cpu", torch.float64, non_blocking=True)
    threading.Timer(0.05, gate.open).start()
    device.settle([result])
    assert result.tolist() == list(ONES)
    assert stream.query()


def test_a_stream_whose_last_event_is_over_is_idle() -> None:
    """At no moment is an event over and what it stands behind not."""
    stream, x = torch.Stream("simulated"), torch.zeros(2, device="simulated")
    torch.simulated.synchronize()
    busy = []
    for _ in range(2000):
        with stream:
            x.add_(1)
        stream.record_event().synchronize()
        busy.append(not stream.query())
    assert not any(busy)
