"""Indices: how many there are, which one is current, and where tensors are placed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.device.processes import computes, counted
from devices.failure import Kind

cases = Cases(Kind.STATE)


# -- device.count: indices, and which one is current


TWO: dict[str, Any] = {"requires": {"multi_device"}, "indices": 2}


@cases("device.count")
def constant(context: Context) -> None:
    """The count is constant, and is that of the indices which work."""
    count = counted(context)
    context.check(count >= 1, "there is a device", found=count)
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
    """`with` makes an index current and restores the previous one, also when nested and when it raises."""
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


# -- device.placement: tensors are where they say, and where they were requested


#: Every kind of factory, with a keyword argument ``device`` or none.
_FACTORIES: dict[str, Callable[..., torch.Tensor]] = {
    "empty": lambda **named: torch.empty(2, 3, **named),
    "zeros": lambda **named: torch.zeros(2, 3, **named),
    "ones": lambda **named: torch.ones(2, 3, **named),
    "full": lambda **named: torch.full((2, 3), 7.0, **named),
    "tensor": lambda **named: torch.tensor([1.0, 2.0], **named),
    "as_tensor": lambda **named: torch.as_tensor([1.0, 2.0], **named),
    "arange": lambda **named: torch.arange(5, **named),
    "linspace": lambda **named: torch.linspace(0, 1, 5, **named),
    "eye": lambda **named: torch.eye(3, **named),
    "rand": lambda **named: torch.rand(3, **named),
    "randn": lambda **named: torch.randn(3, **named),
    "randint": lambda **named: torch.randint(0, 9, (3,), **named),
    "randperm": lambda **named: torch.randperm(5, **named),
    "tril_indices": lambda **named: torch.tril_indices(3, 3, **named),
}


def _where(made: dict[str, torch.Tensor], at: torch.device) -> dict[str, str]:
    """Those that are elsewhere."""
    return {name: str(tensor.device) for name, tensor in made.items() if tensor.device != at}


def _exactly(context: Context, index: int) -> torch.device:
    """How a tensor of that index names its device."""
    return context.device if context.kind == "cpu" else context.at(index)


@cases("device.placement")
def factories(context: Context) -> None:
    """A factory puts its tensor on the device that is named, not on the current index."""
    for index in context.indices:
        at = _exactly(context, index)
        made = {name: make(device=at) for name, make in _FACTORIES.items()}
        context.same(_where(made, at), {}, f"every factory makes its tensor on {at}")


@cases("device.placement")
def device_context(context: Context) -> None:
    """Inside `with torch.device(...)` factories make their tensors there, and not after it."""
    for index in context.indices:
        at = _exactly(context, index)
        with at:
            made = {name: make() for name, make in _FACTORIES.items()}
            elsewhere = torch.empty(2, device="cpu")
        context.same(_where(made, at), {}, f"inside `with torch.device` all tensors are on {at}")
        context.same(elsewhere.device.type, "cpu", "a named device overrides the context")
    context.same(torch.empty(2).device.type, "cpu", "after the block tensors are on the CPU")


@cases("device.placement")
def default_device(context: Context) -> None:
    """The default device takes what names none, until it is set back."""
    try:
        for index in context.indices:
            at = _exactly(context, index)
            torch.set_default_device(at)
            made = {name: make() for name, make in _FACTORIES.items()}
            context.same(_where(made, at), {}, f"with the default device {at} all are there")
    finally:
        torch.set_default_device(None)
    context.same(torch.empty(2).device.type, "cpu", "set back, tensors are on the CPU")


@cases("device.placement")
def alike(context: Context) -> None:
    """What is made like a tensor, or of it, is on its device."""
    for index in context.indices:
        at = _exactly(context, index)
        x = torch.ones(2, 3, device=at)
        made: dict[str, torch.Tensor] = {
            "empty_like": torch.empty_like(x),
            "rand_like": torch.rand_like(x),
            "full_like": torch.full_like(x, 2.0),
            "new_zeros": x.new_zeros(2),
            "new_tensor": x.new_tensor([1.0, 2.0]),
            "clone": x.clone(),
            "view": x.view(-1),
            "sum": x.sum(),
            "add": x + 1,
            "mm": x.mm(x.t()),
            "cat": torch.cat([x, x]),
            "comparison": x > 0,
            "detach": x.detach(),
            "double": x.to(torch.float16),
        }
        context.same(_where(made, at), {}, f"what is made of a tensor on {at} is there")


@cases("device.placement", requires={"multi_device"}, indices=2)
def whatever_is_current(context: Context) -> None:
    """Results are where the operands are, not on the current index."""
    for here, current in ((1, 0), (0, 1)):
        at = context.at(here)
        x = torch.arange(6.0, device=at)
        with context.on(current):
            made = {"add": x + 1, "sort": x.sort()[0], "item": torch.ones(2, device=at)}
            made["moved"] = torch.ones(3).to(at)
        context.same(_where(made, at), {}, f"with index {current} current all are on {at}")
        context.equal(made["add"], torch.arange(6.0) + 1, "and their values are right")


@cases("device.placement", requires={"multi_device"}, indices=2)
def moved(context: Context) -> None:
    """to() puts a tensor on the named index, and returns the tensor itself if it is already there."""
    for index in (0, 1):
        at = context.at(index)
        for other in (torch.ones(3), torch.ones(3, device=context.at(1 - index))):
            context.same(other.to(at).device, at, f"to({at}) of a tensor on {other.device}")
        x = torch.ones(3, device=at)
        context.check(x.to(at) is x, f"to({at}) of a tensor that is there is the tensor itself")


@cases("device.placement", requires={"storage"})
def storages(context: Context) -> None:
    """A storage is on its tensor's device."""
    for index in context.indices:
        x = torch.ones(100, device=context.at(index))
        context.same(x.untyped_storage().device, x.device, "a storage is on its tensor's device")


@cases("device.placement", requires={"multi_device", "allocator_statistics"}, indices=2)
def memory_lies_there(context: Context) -> None:
    """A tensor's memory is taken from the index that it names, and from no other."""
    for index in (0, 1):
        before = [context.counters(each).allocated for each in (0, 1)]
        block: Any = context.bytes_of(100_000, index)
        rise = [context.counters(each).allocated - before[each] for each in (0, 1)]
        context.check(
            rise[index] >= 100_000, f"index {index} counts a block of its own", found=rise
        )
        context.same(rise[1 - index], 0, "the counters of the other index are unchanged")
        del block
