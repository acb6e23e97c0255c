"""Measures whether memory grows while work is repeated, on the device and on the host.

A *window* is a number of repetitions, after which all results are freed. Device memory leaks if it grows in
each of three consecutive windows. A cache that fills once, or during the warm-up, is not a leak. If the device
keeps statistics, its allocated bytes are compared exactly. Otherwise its free memory is compared, with a
tolerance of one allocation granule per repetition.

The module host_memory.py measures host memory and defines the bounds for its growth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from conformance.checks.behaviour.allocator_memory import fresh, memory_info
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.allocator import host_memory
from conformance.suites.allocator.host_memory import Held

#: The length of a side of each operand, which takes 64 KiB.
SIDE = 128
CALLS = 4  # calls in a window of device memory
HOST_CALLS = 16  # calls in a window of host memory
WINDOWS = 3


def in_use(context: CaseContext) -> int | None:
    """Returns the bytes of device memory in use on all indices together, or None if the device does not report
    memory use."""
    if context.has("allocator_statistics"):
        return sum(context.counters(index).allocated for index in context.indices)
    if context.has("allocator_memory_info"):
        fresh(context)
        free, total = memory_info(context)
        return total - free
    return None


def must_measure(context: CaseContext, *, host: bool = False) -> None:
    """Raises NotDeclared if the use of device memory cannot be measured. If ``host`` is true, it is enough that host
    memory can be measured."""
    if in_use(context) is None and not (host and any(host_memory.measure_host_memory())):
        raise NotDeclared(
            "memory use was not checked: the descriptor declares neither allocator_statistics nor allocator_memory_info"
        )


def grows(context: CaseContext, repeat: Callable[[], None], calls: int) -> list[int]:
    """Returns by how many bytes the device memory in use grew in each of three windows of ``calls``
    repetitions, or an empty list if it did not grow in all of them. Two repetitions run before the first window
    as a warm-up."""
    step = 0 if context.has("allocator_statistics") else context.granularity * calls
    found: list[int] = []
    run_window(context, repeat, 2)
    before = in_use(context)
    for _ in range(WINDOWS):
        run_window(context, repeat, calls)
        after = in_use(context)
        if before is None or after is None or after - before <= step:
            return []
        found.append(after - before)
        before = after
    return found


def run_window(context: CaseContext, repeat: Callable[[], None], calls: int) -> None:
    for _ in range(calls):
        repeat()
    context.settle()


def host_bound(context: CaseContext, calls: int, floor: Held) -> Held:
    """Returns how many bytes host memory may grow by in a window of ``calls`` repetitions: the largest growth for a
    CPU op that is known not to leak, but at least ``floor``."""
    x = torch.ones(SIDE, SIDE)

    def repeat() -> None:
        (x * 2 + 1).sum()

    return host_memory.bound_of(partial(run_window, context, repeat, calls), floor)


def host_grows(
    context: CaseContext, repeat: Callable[[], None], calls: int, bound: Held
) -> Held | None:
    """Returns by how many bytes host memory grew in 16 windows of ``calls`` repetitions if it grew beyond ``bound`` in
    each window. Returns None if it did not."""
    return host_memory.grown(partial(run_window, context, repeat, calls), bound)


def note_what_is_measured(context: CaseContext) -> None:
    """Notes in the result of the case which part of host memory this system does not report."""
    missing = host_memory.unmeasured()
    if missing:
        context.note(
            f"host memory was measured only in part: this system does not report {missing}"
        )


def host_stays(
    context: CaseContext, repeat: Callable[[], None], calls: int, bound: Held, what: str
) -> None:
    """Checks that host memory does not grow beyond ``bound`` in windows of ``calls`` calls of ``repeat``. ``what``
    names the repeated work in the message of the failure."""
    note_what_is_measured(context)
    grown = host_grows(context, repeat, calls, bound)
    text, windows = "host memory grew with repeated calls", f"in 16 windows of {calls:,} calls"
    context.check(
        grown is None,
        text,
        expected=f"at most {bound} per window",
        found=f"{grown} {windows}",
        at=what,
    )


def square(context: CaseContext, first: int = 1, *, grad: bool = False) -> torch.Tensor:
    values = ((torch.arange(SIDE * SIDE) * 37 + 11 * first) % 101).float() * (0.8 / 101) + 0.1
    return context.to_device(values.reshape(SIDE, SIDE)).requires_grad_(grad)
