"""What the size suite does with each size: errors, memory, and the parts of a large tensor."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from conformance import contract, suites
from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import Blocked, CheckFailed, NotDeclared
from conformance.checks.cases.memory import memory_of
from conformance.suites.size import elements, indexing, periodic
from conformance.suites.size.limits import SMALL, around, at_each_size, most
from conformance.suites.size.reductions import _runs
from devices import registry
from devices.failure import Kind
from opinfo.device import open_device

LIMIT = 1000
CASES = suites.load("size").cases


@pytest.fixture
def context() -> CaseContext:
    return CaseContext(open_device(registry.get("cpu")), "a test")


def large_only(do: Callable[[int], object]) -> Callable[[int], None]:
    """A check that does something with all sizes but the small one."""

    def check(count: int) -> None:
        if count >= LIMIT - 1:
            do(count)

    return check


def raising(error: Exception) -> Callable[[int], None]:
    def fail(count: int) -> None:
        raise error

    return large_only(fail)


# Sizes and errors


def test_the_small_size_comes_first_and_then_both_sides_of_the_limit(context: CaseContext) -> None:
    seen: list[int] = []
    at_each_size(context, seen.append, LIMIT, "rows")
    assert seen == [SMALL, *around(LIMIT)]
    assert seen[1] < LIMIT < most(LIMIT) and LIMIT in seen


def test_the_small_check_does_not_count(context: CaseContext) -> None:
    at_each_size(context, lambda count: context.check(count, "none"), LIMIT, "rows")
    assert context.checks == len(around(LIMIT))


def test_a_wrong_small_result_is_not_a_matter_of_size(context: CaseContext) -> None:
    with pytest.raises(Blocked) as blocked:
        at_each_size(context, lambda count: context.check(False, "it is wrong"), LIMIT, "rows")
    assert blocked.value.by == "layout.values"


def test_a_small_call_that_is_not_implemented_is_unsupported(context: CaseContext) -> None:
    def check(count: int) -> None:
        raise NotImplementedError("no kernel")

    with pytest.raises(NotImplementedError, match="no kernel"):
        at_each_size(context, check, LIMIT, "rows")


def test_a_wrong_large_result_fails(context: CaseContext) -> None:
    with pytest.raises(CheckFailed, match="it is wrong"):
        at_each_size(
            context, large_only(lambda count: context.check(False, "it is wrong")), LIMIT, "rows"
        )


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, NotImplementedError])
def test_a_clear_error_is_noted_and_the_other_sizes_are_tried(
    context: CaseContext, kind: type[Exception]
) -> None:
    at_each_size(context, raising(kind("too large for 32 bits")), LIMIT, "rows")
    assert len(context.notes) == len(around(LIMIT)) == context.checks
    assert "999 rows" in context.notes[0] and "too large for 32 bits" in context.notes[0]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(""),
        RuntimeError("false INTERNAL ASSERT FAILED at a.cpp:1, please report a bug to PyTorch."),
        KeyError("what"),
        torch.AcceleratorError("an illegal memory access was encountered"),
    ],
)
def test_an_unclear_error_fails(context: CaseContext, error: Exception) -> None:
    with pytest.raises(CheckFailed) as failed:
        at_each_size(context, raising(error), LIMIT, "rows")
    assert failed.value.failure.kind is Kind.RAISED
    assert failed.value.failure.raises == type(error).__name__


def test_a_device_that_computes_nothing_after_an_error_fails(context: CaseContext) -> None:
    broken: list[int] = []

    def check(count: int) -> None:
        if broken or count >= LIMIT - 1:
            broken.append(count)
            raise RuntimeError("too large")

    with pytest.raises(CheckFailed, match="after a large call raised an error"):
        at_each_size(context, check, LIMIT, "rows")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("out of memory"),
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    ],
)
def test_without_enough_memory_nothing_is_judged(context: CaseContext, error: Exception) -> None:
    with pytest.raises(NotDeclared, match="ran out of memory with 999 rows"):
        at_each_size(context, raising(error), LIMIT, "rows")
    assert context.checks == 0


@pytest.mark.parametrize("step", [2, 3])
def test_the_last_copy_into_whole_steps_passes_the_limit(
    context: CaseContext, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(elements, "at_each_size", lambda *_, sizes: seen.extend(sizes))
    elements.written_steps(context, step, 2**32)
    assert max(seen) // step * step > 2**32


# Memory

NEEDS = BehaviourCase("layout.large", "a", print, memory=6 * 2**30, alone=True, own_process=True)


def test_a_case_is_left_out_where_it_would_take_most_of_the_memory() -> None:
    assert not_here(NEEDS, frozenset(), 1, memory=10 * 2**30) == ""
    assert not_here(NEEDS, frozenset(), 1) == ""
    why = not_here(NEEDS, frozenset(), 1, memory=9 * 2**30)
    assert "has 9.00 GiB of memory" in why and "needs about 6.00 GiB" in why


def test_memory_takes_a_process_that_is_alone() -> None:
    with pytest.raises(ValueError, match="requires own_process=True and alone=True"):
        replace(NEEDS, own_process=False)


def test_every_case_estimates_its_memory() -> None:
    assert [case.id for case in CASES if not case.memory] == []


def test_the_memory_of_a_device_is_its_own_or_the_hosts() -> None:
    cpu = open_device(registry.get("cpu"))
    host = memory_of(cpu)
    assert host is not None and host > 2**28
    silent = replace(cpu.descriptor, host_memory=False)
    assert memory_of(replace(cpu, descriptor=silent)) is None


_ALLOCATES = """
import torch
from conformance.checks.cases.memory import limited
with limited(2**28):
    torch.empty(2**28, dtype=torch.uint8)
    try:
        torch.empty(2**33, dtype=torch.uint8)
    except RuntimeError as error:
        print("refused", flush=True)
torch.empty(2**33, dtype=torch.uint8)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the limit")
def test_a_process_gets_no_more_memory_than_the_case_estimates() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALLOCATES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


# Plans


def test_plans_have_more_cases_the_larger_they_are() -> None:
    known = contract.load()
    quick, core, full = (
        [c for c in suites.planned_cases(known, more=m, whole=w) if c.clause == "layout.large"]
        for m, w in ((False, False), (True, False), (True, True))
    )
    assert 0 < len(quick) < len(core) < len(full) == len(CASES)
    assert {*quick} < {*core} < {*full}
    assert all(case.memory < 2**28 for case in quick)


# Parts of a tensor


@pytest.mark.parametrize("count", [1, 250, 251, 252, 1003])
@pytest.mark.parametrize("innermost", [False, True])
def test_slices_repeat_along_a_dimension(context: CaseContext, count: int, innermost: bool) -> None:
    slices = periodic.period((2, 3), torch.float32)
    made = periodic.repeated(context, slices, count, 1, innermost=innermost)
    want = slices[torch.arange(count) % periodic.PERIOD].movedim(0, 1)
    assert torch.equal(made, want)
    periodic.check_repeats(context, made, slices, "it is wrong", dim=1)


def test_one_wrong_slice_is_found_and_named(
    context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic, "_CHUNK", 4096)
    slices = periodic.period((), torch.uint8)
    made = periodic.repeated(context, slices, 100_000)
    periodic.check_repeats(context, made, slices, "it is wrong")
    made[77_777] += 1
    with pytest.raises(CheckFailed, match="is slice 7"):
        periodic.check_repeats(context, made, slices, "it is wrong")


def test_a_shorter_result_is_found(context: CaseContext) -> None:
    slices = periodic.period((3,), torch.uint8)
    made = periodic.repeated(context, slices, 500)[:, :2]
    with pytest.raises(CheckFailed, match="it is wrong"):
        periodic.check_repeats(context, made, slices, "it is wrong")


def test_a_period_has_different_slices() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int64, torch.float32):
        assert len(periodic.period((), dtype).unique()) == periodic.PERIOD


@pytest.mark.parametrize("power", [16, 24, 31, 32])
def test_no_index_that_loses_its_high_bits_leads_to_the_same_slice(power: int) -> None:
    assert 2**power % periodic.PERIOD != 0


@pytest.mark.parametrize("count", [500, 2**24 + 1, 2**31 - 1, 2**31 + 67, 2**32 + 1])
def test_windows_are_apart_and_inside(count: int) -> None:
    spans = indexing.places(count, 2**31)
    assert spans[0][0] == 0 and sum(spans[-1]) == count
    assert all(sum(one) < other[0] for one, other in itertools.pairwise(spans))


def test_runs_of_a_sorted_tensor() -> None:
    count = 3 * periodic.PERIOD + 10
    values = periodic.period((), torch.uint8)[torch.arange(count) % periodic.PERIOD].sort().values
    for value, (start, times) in enumerate(_runs(count)):
        assert values[start : start + times].tolist() == [value] * times
    assert sum(times for _, times in _runs(count)) == count
