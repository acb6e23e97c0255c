"""The judges of profiles, on lists of events that no profiler made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import accumulate

import pytest
from torch.profiler import DeviceType, ProfilerActivity

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.suites.profiler.executions import judge
from conformance.suites.profiler.memory_events import fits, paired
from conformance.suites.profiler.recording import (
    CLOCKS,
    Execution,
    HostEvent,
    MemoryEvent,
    events_of,
    loaded,
    overlapping,
    own_activity,
    type_of,
)
from conformance.suites.profiler.sessions import recorded_steps
from devices import registry
from opinfo.device import open_device


@pytest.fixture(scope="module")
def context() -> CaseContext:
    return CaseContext(open_device(registry.get("cpu")), "a test")


def host(begin: int, end: int, thread: int = 1) -> HostEvent:
    return HostEvent("aten::add", 1, thread, begin, end, -1, 0)


def ran(begin: int, end: int, stream: int = 0, index: int = 0) -> Execution:
    return Execution("kernel", "CUDA", index, stream, begin, end, 1)


def memory(*blocks: tuple[int, int], index: int = -1) -> list[MemoryEvent]:
    """Memory events of addresses and sizes in bytes, with the totals of a right profile."""
    totals = accumulate((size for _, size in blocks), initial=4096)
    next(totals)
    return [
        MemoryEvent(0.0, address, size, index, total, 8192)
        for (address, size), total in zip(blocks, totals, strict=True)
    ]


# Host events and executions


def test_an_event_contains_what_its_thread_did_meanwhile() -> None:
    outer = host(10, 20)
    assert outer.contains(host(10, 20)) and outer.contains(host(12, 13))
    assert not any(
        map(outer.contains, (host(9, 13), host(12, 21), host(21, 22), host(12, 13, thread=2)))
    )


def test_executions_overlap_on_one_stream_of_one_index_only() -> None:
    first, second = ran(0, 9_000), ran(4_000, 12_000)
    assert overlapping([second, first]) == [(first, second)]
    assert overlapping([first, ran(4_000, 12_000, stream=1)]) == []
    assert overlapping([first, ran(4_000, 12_000, index=1)]) == []
    assert overlapping([first, ran(8_500, 12_000)]) == []  # traces are rounded to a µs


WINDOW = host(0, 10 * CLOCKS)


@pytest.mark.parametrize(
    ("execution", "index", "text"),
    [
        (ran(3, 9), 1, "another index"),
        (ran(9, 9), 0, "is not positive"),
        (ran(9, 3), 0, "is not positive"),
        (ran(-CLOCKS - 1, 9), 0, "began before the op"),
        (ran(3, 11 * CLOCKS + 1), 0, "ended after the host had finished waiting"),
    ],
    ids=["index", "empty", "negative", "early", "late"],
)
def test_a_wrong_execution_is_noticed(
    context: CaseContext, execution: Execution, index: int, text: str
) -> None:
    with pytest.raises(CheckFailed, match=text):
        judge(context, execution, WINDOW, begins=0, index=index)


def test_a_right_execution_passes(context: CaseContext) -> None:
    judge(context, ran(3, 9), WINDOW, begins=2)


# Memory


def test_blocks_are_paired_by_address(context: CaseContext) -> None:
    events = memory((1, 64), (2, 128), (1, -64), (1, 32))
    assert paired(context, events) == {2: 128, 1: 32}


@pytest.mark.parametrize("index", [0, 1])
def test_a_total_that_does_not_follow_from_the_bytes_is_noticed(
    context: CaseContext, index: int
) -> None:
    events = [memory((1, 64), (1, -64), index=each) for each in (0, 1)]
    one, other = events[index]
    assert paired(context, [*events[0], *events[1]]) == {}
    events[index] = [one, dataclasses.replace(other, allocated=0)]
    with pytest.raises(CheckFailed, match=f"by the bytes of the event.*index {index}"):
        paired(context, [*events[0], *events[1]])


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (memory((1, 64), (2, -64)), "at an address at which none was allocated"),
        (memory((1, 64), (1, -64), (1, -64)), "at which none was allocated"),
        (memory((1, 64), (1, -32)), "with another size"),
        (memory((1, 64), (1, 64)), "at the address of a block that is still allocated"),
    ],
    ids=["elsewhere", "twice", "bytes", "live"],
)
def test_blocks_that_do_not_pair_are_noticed(
    context: CaseContext, events: list[MemoryEvent], text: str
) -> None:
    with pytest.raises(CheckFailed, match=text):
        paired(context, events)


@pytest.mark.parametrize(("found", "right"), [(99, False), (100, True), (100 + 2 * 64, True), (229, False)])  # fmt: skip
def test_bytes_are_rounded_up_by_a_granule_for_each_block(
    context: CaseContext, found: int, right: bool
) -> None:
    def call() -> None:
        fits(context, found, [60, 40], "other bytes")

    passes(call) if right else fails(call, "other bytes")


def passes(call: Callable[[], object]) -> None:
    call()


def fails(call: Callable[[], object], text: str) -> None:
    with pytest.raises(CheckFailed, match=text):
        call()


# The trace


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": Infinity}', '{"a": b}', '{"a": 1', ""])
def test_what_is_no_json_is_noticed(context: CaseContext, text: str) -> None:
    with pytest.raises(CheckFailed, match="not valid JSON"):
        loaded(context, text)


@pytest.mark.parametrize("trace", [[], {}, {"traceEvents": {}}, None])
def test_a_trace_without_events_is_noticed(context: CaseContext, trace: object) -> None:
    with pytest.raises(CheckFailed, match="no list traceEvents"):
        events_of(context, trace)


def test_the_place_of_an_error_is_shown(context: CaseContext) -> None:
    with pytest.raises(CheckFailed, match="aten::mul"):
        loaded(context, '{"name": 1, "kernel": aten::mul}')


# Schedules, activities


def test_the_steps_that_a_schedule_records() -> None:
    """As torch's documentation says: skip, then cycles of waiting, warming up and recording."""
    assert recorded_steps(1, 1, 2, 2, 0, steps=9) == [[2, 3], [6, 7]]
    assert recorded_steps(1, 1, 2, 0, 1, steps=9) == [[3, 4], [7, 8]]
    assert recorded_steps(0, 1, 3, 0, 0, steps=6) == [[1, 2, 3], [5]]


def test_the_activity_of_a_device_type() -> None:
    assert own_activity("cuda") is ProfilerActivity.CUDA
    assert own_activity("cpu") is ProfilerActivity.CPU
    assert own_activity("simulated") is ProfilerActivity.PrivateUse1
    # The name of the type is the device's once the simulated device is loaded.
    assert type_of("cuda").name == "CUDA"
    assert type_of("simulated") == DeviceType.PrivateUse1
