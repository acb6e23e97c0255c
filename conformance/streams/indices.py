"""streams.cross_device: streams and events of two indices."""

from __future__ import annotations

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import ends_early
from conformance.streams.judging import filled, learnt, same_everywhere

cases = Cases()

_CLAUSE = "streams.cross_device"


@cases(_CLAUSE, indices=2, over={"forth": (0, 1), "back": (1, 0)})
def behind_the_source(context: Context, mine: int, other: int) -> None:
    """A copy between indices sees the work of the source's current stream."""
    giving, taking = context.stream(mine), context.stream(other)
    source, target = filled(context, 1, mine), filled(context, 0, other)
    learnt(context)
    target.copy_(source)
    context.settle()
    with context.hold(giving) as hold:
        with giving, taking:
            source.add_(6)
            target.copy_(source, non_blocking=True)
        context.check(not ends_early(taking, hold), "the taking stream waits for the copy")
    taking.synchronize()
    context.equal(target, same_everywhere(7), "the copy sees the source's earlier work")


@cases(_CLAUSE, indices=2, over={"target_forth": (0, 1), "target_back": (1, 0)})
def behind_the_target(context: Context, mine: int, other: int) -> None:
    """A copy between indices comes behind the work of the target's current stream."""
    giving, taking = context.stream(mine), context.stream(other)
    source, target = filled(context, 7, mine), filled(context, 0, other)
    learnt(context)
    target.copy_(source)
    context.settle()
    with context.hold(taking) as hold:
        with giving, taking:
            target.add_(90)
            target.copy_(source, non_blocking=True)
            target.add_(1)
        context.check(not ends_early(taking, hold), "the taking stream's work waits")
    taking.synchronize()
    giving.synchronize()
    context.equal(target, same_everywhere(8), "the copy comes between what stands around it")


@cases(_CLAUSE, indices=2)
def block_switches(context: Context) -> None:
    """`with stream:` makes the stream's index current, and restores the one before."""
    for start, other in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(start)
        with context.stream(other):
            now = torch.accelerator.current_device_index()
            context.same(now, other, "inside, the stream's index is current")
        now = torch.accelerator.current_device_index()
        context.same(now, start, "behind the block, the index before is current again")


@cases(_CLAUSE, indices=2)
def set_stream_switches(context: Context) -> None:
    """set_stream makes the stream's index current."""
    for index in (1, 0, 1):
        torch.accelerator.set_stream(context.stream(index))
        now = torch.accelerator.current_device_index()
        context.same(now, index, "the index of the stream is current")


@cases(_CLAUSE, indices=2)
def record_elsewhere(context: Context) -> None:
    """Recording an event on a stream of another index than its own raises."""
    event = context.event(0)
    event.record(context.stream(0))
    event.synchronize()
    there = context.stream(1)
    context.raises(
        (RuntimeError, ValueError),
        event.record,
        there,
        text="an event of index 0 is not recorded on index 1",
    )
    context.check(event.query(), "and stays as it was")


@cases(_CLAUSE, indices=2)
def waits_across(context: Context) -> None:
    """A stream waits for an event of another index."""
    first, second = context.stream(0), context.stream(1)
    tensor = filled(context, 1, 1)
    event = context.event(0)
    with context.hold(first) as hold:
        event.record(first)
        second.wait_event(event)
        with second:
            tensor.add_(6)
        context.check(not ends_early(second, hold), "it waits while the other index is busy")
    second.synchronize()
    context.equal(tensor, same_everywhere(7), "and goes on behind it")
