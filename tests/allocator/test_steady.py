"""allocator.steady: what it takes for a leak, and what it does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.suites.allocator.host_memory import FLOOR, MANY_FLOOR, little_to_collect
from conformance.suites.allocator.leaks import grows, host_bound, host_grows
from devices import registry
from opinfo.device import open_device

CALLS = 4


@pytest.fixture(scope="module")
def context() -> Iterator[CaseContext]:
    with little_to_collect():
        yield CaseContext(open_device(registry.get("simulated")), "a test")


@pytest.fixture
def kept() -> Iterator[list[Any]]:
    """What a leaking op keeps while the test runs."""
    found: list[Any] = []
    yield found
    found.clear()


def block(size: int = 1) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="simulated:0")


def every(count: int, leak: Callable[[], object]) -> Callable[[], None]:
    calls = itertools.count()

    def repeat() -> None:
        if next(calls) % count == 0:
            leak()

    return repeat


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_block_that_is_kept_at_every_nth_call_is_a_leak(
    context: CaseContext, kept: list[Any], count: int
) -> None:
    assert grows(context, every(count, lambda: kept.append(block())), CALLS) != []


def test_a_block_on_another_index_is_a_leak(context: CaseContext, kept: list[Any]) -> None:
    leak = every(1, lambda: kept.append(torch.empty(1, device="simulated:1")))
    assert grows(context, leak, CALLS) != []


def test_a_cycle_of_references_that_nothing_collects_is_a_leak(context: CaseContext) -> None:
    import gc

    def leak() -> None:
        cycle: list[Any] = [block()]
        cycle.append(cycle)

    gc.disable()
    try:
        assert grows(context, leak, CALLS) != []
    finally:
        gc.enable()
        gc.collect()


def test_an_error_that_holds_its_frame_is_a_leak(context: CaseContext, kept: list[Any]) -> None:
    def leak() -> None:
        held = block()
        try:
            raise KeyError(held.numel())
        except KeyError as error:
            kept.append(error)

    assert grows(context, leak, CALLS) != []


def test_a_cache_that_fills_is_none(context: CaseContext, kept: list[Any]) -> None:
    def fills() -> None:
        if len(kept) < 5:
            kept.append(block(4096))

    assert grows(context, fills, CALLS) == []


def test_a_cache_that_is_replaced_is_none(context: CaseContext, kept: list[Any]) -> None:
    def replaces() -> None:
        kept[:] = [*kept, block(4096)][-3:]

    assert grows(context, replaces, CALLS) == []


def test_what_is_freed_late_is_none(context: CaseContext, kept: list[Any]) -> None:
    """A block that lives for one call more."""

    def late() -> None:
        kept[:] = [block(4096)]

    assert grows(context, late, CALLS) == []


# The host's memory


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


@linux
@pytest.mark.parametrize("size", [64, 600, 8_192, 65_536, 1_000_000])
def test_bytes_of_the_host_that_are_kept_are_a_leak(
    context: CaseContext, kept: list[Any], size: int
) -> None:
    bound = host_bound(context, 16, FLOOR)
    assert host_grows(context, lambda: kept.append(bytes([1]) * size), 16, bound) is not None


@linux
def test_the_smallest_objects_of_a_thousand_calls_are_a_leak(
    context: CaseContext, kept: list[Any]
) -> None:
    bound = host_bound(context, 16, MANY_FLOOR)
    assert host_grows(context, lambda: kept.append(bytes([1]) * 16), 1000, bound) is not None


@linux
def test_a_cache_of_the_host_that_fills_is_none(context: CaseContext, kept: list[Any]) -> None:
    bound = host_bound(context, 16, FLOOR)

    def fills() -> None:
        if len(kept) < 20:
            kept.append(bytes([1]) * 100_000)

    assert host_grows(context, fills, 16, bound) is None


@linux
def test_an_op_that_keeps_nothing_is_none(context: CaseContext) -> None:
    x = torch.ones(64, 64, device="simulated:0")
    bound = host_bound(context, 16, FLOOR)
    for _ in range(20):
        assert host_grows(context, lambda: (x * 2).sum() and None, 16, bound) is None
