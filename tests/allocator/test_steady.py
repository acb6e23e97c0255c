"""allocator.steady: what it takes for a leak, and what it does not."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.suites.allocator import host_memory, leaks_everywhere
from conformance.suites.allocator.host_memory import FLOOR, MANY_FLOOR, little_to_collect
from conformance.suites.allocator.memory_windows import (
    grows,
    host_bound,
    host_grows,
    note_what_is_measured,
)
from devices import registry
from opinfo.database import DATABASE
from opinfo.device import open_device
from opinfo.module_catalog import ModuleEntry, module_entries

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


# Every op and every module


def judged(case: Callable[[CaseContext, int], None]) -> str:
    """Runs a case on the CPU. Returns the message with which it fails, or an empty string."""
    try:
        case(CaseContext(open_device(registry.get("cpu")), "a test"), 0)
    except CheckFailed as failed:
        return str(failed)
    return ""


@linux
@pytest.mark.slow  # loads a database
@pytest.mark.parametrize("leaks", [False, True])
def test_an_op_of_the_database_that_leaks_is_named(
    monkeypatch: pytest.MonkeyPatch, kept: list[Any], leaks: bool
) -> None:
    op = copy.copy(DATABASE.subjects()["lgamma"])

    def function(x: torch.Tensor) -> torch.Tensor:
        if leaks:
            kept.append(bytes([1]) * 4096)
        return torch.lgamma(x)

    vars(op).update(function=function)
    monkeypatch.setattr(DATABASE, "subjects", lambda: {"lgamma": op})
    message = judged(leaks_everywhere.every_op)
    assert ("lgamma" in message) == leaks, message


@linux
@pytest.mark.slow  # loads a database
@pytest.mark.parametrize("leaks", [False, True])
def test_a_module_that_leaks_in_its_backward_is_named(
    monkeypatch: pytest.MonkeyPatch, kept: list[Any], leaks: bool
) -> None:
    entry = module_entries()["Softsign"]

    class Leaking(torch.nn.Softsign):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = super().forward(x)
            if leaks:
                made.register_hook(lambda grad: kept.append(bytes([1]) * 4096))
            return made

    upstream = copy.copy(entry.upstream)
    upstream.module_cls = Leaking
    entries = {"Softsign": ModuleEntry(upstream)}
    monkeypatch.setattr(leaks_everywhere, "module_entries", lambda: entries)
    message = judged(leaks_everywhere.every_module)
    assert ("Softsign" in message) == leaks, message


# Systems that report less


def test_without_glibc_and_proc_what_is_not_measured_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kept: list[Any], context: CaseContext
) -> None:
    assert context  # in which there is little to collect
    monkeypatch.setattr(host_memory, "_of_libc", lambda name: None)
    monkeypatch.setattr(host_memory, "_STATUS", tmp_path / "nothing")
    assert host_memory.unmeasured() == (
        "the heap of the C library and the resident memory of the process"
    )
    before = host_memory.measure_host_memory()
    kept += [object() for _ in range(10_000)]
    grown = host_memory.measure_host_memory().since(before)
    # Python's own objects are seen. Some objects of the process may have been freed in the meantime.
    assert grown.resident == 0 and grown.heap >= 64 * 9_000


@pytest.mark.skipif(host_memory.unmeasured() != "", reason="needs Linux with glibc")
def test_on_linux_all_of_it_is_measured(context: CaseContext) -> None:
    named = CaseContext(context.opened, "a test")
    note_what_is_measured(named)
    assert named.notes == []
