"""device.count: indices, and which one is current."""

from __future__ import annotations

import threading
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.device.judging import computes, counted

cases = Cases()

TWO: dict[str, Any] = {"requires": {"multi_device"}, "indices": 2}


@cases("device.count")
def constant(context: Context) -> None:
    """The count is constant, and is that of the indices which work."""
    count = counted(context)
    context.check(count >= 1, "there is a device", got=count)
    for index in range(count):
        context.same(computes(context.at(index)), [3.0, 5.0, 7.0], f"index {index} computes")
        context.same(counted(context), count, "device_count is constant")
    context.same(
        context.together(lambda: counted(context))[0], count, "device_count is that in a thread"
    )


def _past(context: Context) -> int:
    return counted(context)


@cases("device.count", over={"at_the_count": (0,), "far_above_it": (5,)})
def tensors_past_it(context: Context, more: int) -> None:
    """No tensor is made on an index at or above the count."""
    index = _past(context) + more
    makers = {
        "torch.empty": lambda: torch.empty(2, device=context.at(index)),
        "torch.ones": lambda: torch.ones(2, device=context.at(index)),
        "tensor.to": lambda: torch.ones(2).to(context.at(index)),
    }
    for name, make in makers.items():
        context.raises(Exception, make, text=f"{name} on index {index} raises")


@cases("device.count", requires={"streams"})
def streams_past_it(context: Context) -> None:
    """Streams of an index at the count raise."""
    at = context.at(_past(context))
    for name, call in {
        "torch.Stream": lambda: torch.Stream(device=at),
        "current_stream": lambda: torch.accelerator.current_stream(at),
        "synchronize": lambda: torch.accelerator.synchronize(at),
    }.items():
        context.raises(Exception, call, text=f"{name} of {at} raises")


@cases("device.count", requires={"allocator_statistics"})
def statistics_past_it(context: Context) -> None:
    """Memory statistics of an index at the count raise."""
    at, memory = context.at(_past(context)), torch.accelerator.memory
    for name in ("memory_stats", "memory_allocated", "reset_peak_memory_stats"):
        context.raises(
            Exception, getattr(memory, name), at, text=f"torch.accelerator.{name} of {at} raises"
        )


@cases("device.count", requires={"multi_device"})
def set_past_it(context: Context) -> None:
    """An index at the count cannot be made current."""
    before, index = torch.accelerator.current_device_index(), _past(context)
    context.raises(
        Exception, torch.accelerator.set_device_index, index, text=f"setting index {index} raises"
    )
    context.same(torch.accelerator.current_device_index(), before, "the current index is as before")


@cases("device.count", **TWO)
def negative_sets_nothing(context: Context) -> None:
    """A negative index is documented to set nothing."""
    torch.accelerator.set_device_index(1)
    torch.accelerator.set_device_index(-1)
    context.same(torch.accelerator.current_device_index(), 1, "set_device_index(-1) sets nothing")


@cases("device.count", **TWO)
def set_is_current(context: Context) -> None:
    """What is set is current, and takes what names no index."""
    for index in (1, 0, 1):
        torch.accelerator.set_device_index(index)
        context.same(torch.accelerator.current_device_index(), index, "what is set is current")
        made = torch.empty(2, device=context.kind)
        context.same(made.device.index, index, "a tensor that names no index is on the current one")


@cases("device.count", **TWO)
def with_restores(context: Context) -> None:
    """`with` makes an index current and restores the one before, nested and where it raises."""
    current = torch.accelerator.current_device_index
    for first, second in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(first)
        with torch.accelerator.device_index(second):
            context.same(current(), second, "inside `with` the index is current")
            with torch.accelerator.device_index(first):
                context.same(current(), first, "it nests")
            context.same(current(), second, "the inner `with` restores")
            with torch.accelerator.device_index(None):
                context.same(current(), second, "None changes nothing")
        context.same(current(), first, "the outer `with` restores")
        try:
            with torch.accelerator.device_index(second):
                raise KeyError("ours")
        except KeyError:
            pass
        context.same(current(), first, "a block that raises restores")


@cases("device.count", **TWO)
def of_the_thread(context: Context) -> None:
    """The current index belongs to the thread."""
    current = torch.accelerator.current_device_index
    torch.accelerator.set_device_index(0)
    may_end = threading.Event()
    seen: list[int] = []

    def other() -> None:
        torch.accelerator.set_device_index(1)
        seen.append(current())
        may_end.wait(10.0)
        seen.append(current())

    def this() -> None:
        while not seen:
            pass
        seen_here.append(current())
        torch.accelerator.set_device_index(0)
        may_end.set()

    seen_here: list[int] = []
    context.together(other, this)
    context.same(seen_here, [0], "another thread's index is not current here")
    context.same(seen, [1, 1], "a thread keeps its own index whatever another sets")
    context.same(current(), 0, "the main thread's index is as before")
