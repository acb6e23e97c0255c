"""Cases about asynchronous collectives: the work that they wait for, the work that waits for them, and the memory that
they use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import WaitingCall
from conformance.checks.clock import comes_to_be
from conformance.suites.distributed.collective_calls import named
from conformance.suites.distributed.groups import Ranks, join
from devices.failure import Kind

cases = Cases(Kind.ORDER)

#: The number of elements of an operand.
SIZE = 1000


def full(value: float) -> torch.Tensor:
    return torch.full((SIZE,), float(value))


def total(ranks: Ranks) -> float:
    """Returns the sum of the values of all ranks if rank r contributes the value r + 1."""
    return float(sum(range(1, ranks.count + 1)))


class Done:
    """Asynchronous work of a process group, with the interface of an event: ``query()`` says whether the work is
    complete."""

    def __init__(self, work: Any) -> None:
        self.query = work.is_completed


# -- any device


def _outstanding(context: CaseContext) -> None:
    ranks = join(context)
    tensors = [ranks.put(full(10 * number + ranks.index)) for number in range(6)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for number in (5, 0, 3, 1, 4, 2):
        works[number].wait()
        want = sum(10 * number + rank for rank in range(ranks.count))
        text = "asynchronous collectives gave wrong values when wait() was called in another order"
        context.equal(tensors[number], full(want), text, f"collective {number}")
        done = context.ends(Done(works[number]))
        context.check(done, "is_completed() of a collective is not True after its result was read")


def _completion(context: CaseContext) -> None:
    ranks = join(context)
    values = ranks.put(full(1))
    if ranks.index == ranks.count - 1:
        ranks.come_last()
        dist.all_reduce(values)
    else:
        work = dist.all_reduce(values, async_op=True)
        early = comes_to_be(work.is_completed)
        context.check(
            not early, ("is_completed() of a collective is True before all ranks have called it")
        )
        ranks.come_last()
        work.wait()
    context.equal(values, full(ranks.count), "an asynchronous collective gave wrong values")


def _handle_dropped(context: CaseContext) -> None:
    ranks = join(context)
    values = [ranks.put(full(ranks.index + 1)) for _ in range(8)]
    for each in values:
        dist.all_reduce(each, async_op=True)
    dist.barrier()
    last = ranks.put(full(1))
    dist.all_reduce(last)
    context.settle()
    for each in values:
        text = "a collective whose handle was dropped gave wrong values"
        context.equal(each, full(total(ranks)), text)


def _barrier(context: CaseContext) -> None:
    ranks = join(context)

    def barrier() -> None:
        # Without a device, torch takes the backend of the CPU if there is one.
        dist.barrier(device_ids=None if context.kind == "cpu" else [ranks.device_index])

    if ranks.index == ranks.count - 1:
        ranks.come_last()
        barrier()
        context.check(True, "a barrier returned before all ranks had called it")
        return
    with WaitingCall(barrier) as call:
        early = call.is_early()
        ranks.come_last()
    context.check(not early, "a barrier returned before all ranks had called it")


def _two_groups(context: CaseContext) -> None:
    ranks = join(context)
    groups = [dist.new_group(list(range(ranks.count))) for _ in range(2)]
    for turn in range(3):
        tensors = [ranks.put(full(ranks.index + 1 + 10 * number)) for number in range(2)]
        works = [
            dist.all_reduce(each, group=group, async_op=True)
            for each, group in zip(tensors, groups)
        ]
        for number in (1, 0):
            works[number].wait()
            want = total(ranks) + 10 * number * ranks.count
            text = "collectives of two groups that ran at the same time gave wrong values"
            context.equal(tensors[number], full(want), text, f"turn {turn}, group {number}")
    for group in groups:
        dist.destroy_process_group(group)


def _future(context: CaseContext) -> None:
    ranks = join(context)
    values = ranks.put(full(ranks.index + 1))
    seen: list[torch.Tensor] = []

    def double(future: Any) -> torch.Tensor:
        seen.extend(_tensors(future.value()))
        return seen[0] * 2

    if ranks.index == ranks.count - 1:
        ranks.come_last()
    work = dist.all_reduce(values, async_op=True)
    doubled = work.get_future().then(double)
    if ranks.index != ranks.count - 1:
        ranks.come_last()
    result = doubled.wait()
    text = (
        "a function that was chained to a collective's future got the value before the "
        "collective had finished"
    )
    context.equal(result, full(2 * total(ranks)), text)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@cases(
    "distributed.order",
    ranks=2,
    over={
        "outstanding": ("_outstanding",),
        "completion": ("_completion",),
        "handle_dropped": ("_handle_dropped",),
        "barrier": ("_barrier",),
        "two_groups": ("_two_groups",),
        "future": ("_future",),
    },
)
@cases(
    "distributed.order",
    ranks=4,
    over={
        "outstanding": ("_outstanding",),
        "completion": ("_completion",),
        "barrier": ("_barrier",),
        "two_groups": ("_two_groups",),
    },
    variants={"4 ranks": (4,)},
    more=True,
)
def asynchronous(context: CaseContext, function: str, count: int = 2) -> None:
    """Collectives run asynchronously: several at a time, in two groups, with handles that are dropped, and with a last
    rank that comes late. After wait(), the result is right. is_completed() is False until all ranks take part, and a
    barrier does not return before."""
    context.pooled(globals()[function], ranks=count)


# -- devices with streams


def _reads_queued_work(context: CaseContext) -> None:
    ranks = join(context)
    values, target = ranks.put(full(0)), ranks.put(torch.zeros(ranks.count * SIZE))
    context.settle()
    with context.hold(needed=False) as hold:
        values.fill_(ranks.index + 1)
        work = named("all_gather_single", "all_gather_into_tensor")(target, values, async_op=True)
        hold.waits(Done(work), "a collective did not wait for the work queued before it")
        ranks.exchange()  # both ranks have launched, so that a collective that does not wait has read
    work.wait()
    want = torch.cat([full(rank + 1) for rank in range(ranks.count)])
    context.equal(target, want, "a collective read its input before the work queued before it")


def _wait_orders(context: CaseContext, stream: str) -> None:
    ranks = join(context)
    values, late = ranks.put(full(ranks.index + 1)), ranks.index == ranks.count - 1
    context.settle()
    if late:
        ranks.come_last()
    work = dist.all_reduce(values, async_op=True)
    index = ranks.device_index
    waiting = context.current_stream(index) if stream == "current" else context.stream(index)
    with waiting:
        work.wait()
        doubled = values * 2
        if not late:
            early = comes_to_be(waiting.query)
            text = "work that was queued after wait() ran before the collective had finished"
            context.check(not early, text)
            ranks.come_last()
    waiting.synchronize()
    text = "work that was queued after wait() did not see the result of the collective"
    context.equal(doubled, full(2 * total(ranks)), text)


def _wait_orders_current(context: CaseContext) -> None:
    _wait_orders(context, "current")


def _wait_orders_side(context: CaseContext) -> None:
    _wait_orders(context, "side")


def _launched_on_side(context: CaseContext) -> None:
    ranks = join(context)
    index = ranks.device_index
    values = ranks.put(full(0))
    context.settle()
    side = context.stream(index)
    with context.hold(side, needed=False), side:
        values.fill_(ranks.index + 1)
        work = dist.all_reduce(values, async_op=True)
        ranks.exchange()
    work.wait()
    doubled = values * 2
    text = (
        "a collective that was launched on a side stream did not wait for the work queued "
        "on this stream"
    )
    context.equal(doubled, full(2 * total(ranks)), text)


def _freed(context: CaseContext, launch: Callable[[Ranks], Callable[[], torch.Tensor]]) -> None:
    """Frees the operands of a collective while the collective waits for the last rank, and uses the memory again.
    Checks that the collective neither reads nor overwrites the new values."""
    ranks = join(context)
    context.settle()
    if ranks.index == ranks.count - 1:
        ranks.come_last()
        finish, again = launch(ranks), []
    else:
        finish = launch(ranks)
        again = [ranks.put(full(-5)) for _ in range(4)]
        context.current_stream(ranks.device_index).synchronize()
        ranks.come_last()
    found = finish()
    want = torch.cat([full(rank + 1) for rank in range(ranks.count)])
    text = "a collective read an operand's memory after it had been freed and used again"
    context.equal(found, want, text)
    for each in again:
        text = "a collective wrote to an operand's memory after it had been freed and used again"
        context.equal(each, full(-5), text)


def _gathers_freed(ranks: Ranks) -> Callable[[], torch.Tensor]:
    values = ranks.put(full(ranks.index + 1))
    target = ranks.put(torch.zeros(ranks.count * SIZE))
    work = named("all_gather_single", "all_gather_into_tensor")(target, values, async_op=True)

    def finish() -> torch.Tensor:
        work.wait()
        return target

    return finish


def _gathers_into_freed(ranks: Ranks) -> Callable[[], torch.Tensor]:
    values = ranks.put(full(ranks.index + 1))
    dist.all_reduce(values, async_op=True)  # neither the handle nor the target is kept
    del values
    return _gathers_freed(ranks)


def _freed_input(context: CaseContext) -> None:
    _freed(context, _gathers_freed)


def _freed_target(context: CaseContext) -> None:
    _freed(context, _gathers_into_freed)


def _waits_for_one_group(context: CaseContext) -> None:
    ranks = join(context)
    index = ranks.device_index
    groups = [dist.new_group(list(range(ranks.count))) for _ in range(2)]
    held, free = ranks.put(full(1)), ranks.put(full(1))
    for group in groups:  # connects the ranks
        dist.all_reduce(ranks.put(full(0)), group=group)
    context.settle()
    ranks.exchange()
    side = context.stream(index)
    with context.hold(side) as hold:
        with side:
            first = dist.all_reduce(held, group=groups[0], async_op=True)
        second = dist.all_reduce(free, group=groups[1], async_op=True)
        done = context.ends(Done(second), 5.0)
        hold.must_be_in_flight()
        context.check(done, "a collective of one group waited for a collective of another group")
    first.wait()
    second.wait()
    for values in (held, free):
        context.equal(
            values,
            full(ranks.count),
            ("collectives of two groups that ran at the same time gave wrong values"),
        )
    for group in groups:
        dist.destroy_process_group(group)


@cases(
    "distributed.order",
    ranks=2,
    requires={"streams"},
    over={
        "reads_queued_work": ("_reads_queued_work",),
        "wait_orders": ("_wait_orders_current",),
        "wait_orders_a_side_stream": ("_wait_orders_side",),
        "launched_on_a_side_stream": ("_launched_on_side",),
        "input_freed": ("_freed_input",),
        "target_freed": ("_freed_target",),
        "one_group_held": ("_waits_for_one_group",),
    },
)
def streams(context: CaseContext, function: str) -> None:
    """A collective starts after the work that is queued on the current stream, and wait() makes the current stream wait
    for the collective, whichever stream is current. Operands may be freed while the collective is pending, and a
    collective of one group does not wait for one of another group."""
    context.pooled(globals()[function], ranks=2)
