"""Indices: how many there are, which one is current, and where tensors are placed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.clock import Clock
from conformance.suites.device.processes import computes, counted
from devices.failure import Kind

cases = Cases(Kind.STATE)

TWO: dict[str, Any] = {"requires": {"multi_device"}, "indices": 2}

current = torch.accelerator.current_device_index


@cases("device.count")
def constant(context: Context) -> None:
    """The count is constant, and is that of the indices which work."""
    count = counted(context)
    context.check(count >= 1, "there is a device", found=count)
    for index in range(count):
        context.same(computes(context.at(index)), [3.0, 5.0, 7.0], f"index {index} computes")
        context.same(counted(context), count, "device_count is constant")
    (there,) = context.together(lambda: counted(context))
    context.same(there, count, "device_count is that in a thread")


def _raise(context: Context, calls: dict[str, Callable[..., Any]], given: Any) -> None:
    for name, call in calls.items():
        context.raises(Exception, call, given, text=f"{name} of {given} raises")


@cases("device.count", over={"at_the_count": (0,), "far_above_it": (5,)})
def tensors_past_it(context: Context, more: int) -> None:
    """No tensor is made on an index at or above the count."""
    makers = {
        "torch.empty": lambda at: torch.empty(2, device=at),
        "torch.ones": lambda at: torch.ones(2, device=at),
        "tensor.to": lambda at: torch.ones(2).to(at),
    }
    _raise(context, makers, context.at(counted(context) + more))


@cases("device.count", requires={"streams"})
def streams_past_it(context: Context) -> None:
    """Streams of an index at the count raise."""
    calls: dict[str, Callable[..., Any]] = {
        "torch.Stream": lambda at: torch.Stream(device=at),
        "current_stream": torch.accelerator.current_stream,
        "synchronize": torch.accelerator.synchronize,
    }
    _raise(context, calls, context.at(counted(context)))


@cases("device.count", requires={"allocator_statistics"})
def statistics_past_it(context: Context) -> None:
    """Memory statistics of an index at the count raise."""
    names = ("memory_stats", "memory_allocated", "reset_peak_memory_stats")
    calls = {f"torch.accelerator.{name}": getattr(torch.accelerator.memory, name) for name in names}
    _raise(context, calls, context.at(counted(context)))


@cases("device.count", requires={"multi_device"})
def set_past_it(context: Context) -> None:
    """An index at the count cannot be made current."""
    before = current()
    _raise(context, {"set_device_index": torch.accelerator.set_device_index}, counted(context))
    context.same(current(), before, "the current index is as before")


@cases("device.count", **TWO)
def negative_sets_nothing(context: Context) -> None:
    """A negative index is documented to set nothing."""
    for index in (1, -1):
        torch.accelerator.set_device_index(index)
    context.same(current(), 1, "set_device_index(-1) sets nothing")


@cases("device.count", **TWO)
def set_is_current(context: Context) -> None:
    """What is set is current, and takes what names no index."""
    for index in (1, 0, 1):
        torch.accelerator.set_device_index(index)
        context.same(current(), index, "what is set is current")
        made = torch.empty(2, device=context.kind)
        context.same(made.device.index, index, "a tensor that names no index is on the current one")


@cases("device.count", **TWO)
def with_restores(context: Context) -> None:
    """`with` makes an index current and restores the previous one, also when nested and when it raises."""
    for first, second in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(first)
        with context.on(second):
            context.same(current(), second, "inside `with` the index is current")
            with context.on(first):
                context.same(current(), first, "it nests")
            context.same(current(), second, "the inner `with` restores")
            with torch.accelerator.device_index(None):
                context.same(current(), second, "None changes nothing")
        context.same(current(), first, "the outer `with` restores")
        with suppress(KeyError), context.on(second):
            raise KeyError("ours")
        context.same(current(), first, "a block that raises restores")


@cases("device.count", **TWO)
def of_the_thread(context: Context) -> None:
    """The current index belongs to the thread."""
    torch.accelerator.set_device_index(0)
    has_set, may_end = threading.Event(), threading.Event()

    def other() -> list[int]:
        torch.accelerator.set_device_index(1)
        first = current()
        has_set.set()
        Clock().wait(may_end.wait, 10.0)
        return [first, current()]

    def this() -> int:
        Clock().wait(has_set.wait, 10.0)
        seen = current()
        torch.accelerator.set_device_index(0)
        may_end.set()
        return seen

    seen, here = context.together(other, this)
    context.same(here, 0, "another thread's index is not current here")
    context.same(seen, [1, 1], "a thread keeps its own index whatever another sets")
    context.same(current(), 0, "the main thread's index is as before")


#: Every kind of factory, with a keyword argument ``device`` or none.
_FACTORIES: dict[str, Callable[..., torch.Tensor]] = {
    "empty": partial(torch.empty, 2, 3),
    "zeros": partial(torch.zeros, 2, 3),
    "ones": partial(torch.ones, 2, 3),
    "full": partial(torch.full, (2, 3), 7.0),
    "tensor": partial(torch.tensor, [1.0, 2.0]),
    "as_tensor": partial(torch.as_tensor, [1.0, 2.0]),
    "arange": partial(torch.arange, 5),
    "linspace": partial(torch.linspace, 0, 1, 5),
    "eye": partial(torch.eye, 3),
    "rand": partial(torch.rand, 3),
    "randn": partial(torch.randn, 3),
    "randint": partial(torch.randint, 0, 9, (3,)),
    "randperm": partial(torch.randperm, 5),
    "tril_indices": partial(torch.tril_indices, 3, 3),
}


def _all_on(context: Context, at: torch.device, text: str, made: dict[str, torch.Tensor]) -> None:
    elsewhere = {name: str(tensor.device) for name, tensor in made.items() if tensor.device != at}
    context.same(elsewhere, {}, text)


def _made(**named: Any) -> dict[str, torch.Tensor]:
    return {name: make(**named) for name, make in _FACTORIES.items()}


@cases("device.placement")
def factories(context: Context) -> None:
    """A factory puts its tensor on the device that is named, not on the current index."""
    for at in map(context.named, context.indices):
        _all_on(context, at, f"every factory makes its tensor on {at}", _made(device=at))


@cases("device.placement")
def device_context(context: Context) -> None:
    """Inside `with torch.device(...)` factories make their tensors there, and not after it."""
    for at in map(context.named, context.indices):
        with at:
            made, elsewhere = _made(), torch.empty(2, device="cpu")
        _all_on(context, at, f"inside `with torch.device` all tensors are on {at}", made)
        context.same(elsewhere.device.type, "cpu", "a named device overrides the context")
    context.same(torch.empty(2).device.type, "cpu", "after the block tensors are on the CPU")


@cases("device.placement")
def default_device(context: Context) -> None:
    """The default device takes what names none, until it is set back."""
    try:
        for at in map(context.named, context.indices):
            torch.set_default_device(at)
            _all_on(context, at, f"with the default device {at} all are there", _made())
    finally:
        torch.set_default_device(None)
    context.same(torch.empty(2).device.type, "cpu", "set back, tensors are on the CPU")


@cases("device.placement")
def alike(context: Context) -> None:
    """What is made like a tensor, or of it, is on its device."""
    for at in map(context.named, context.indices):
        made = _alike(torch.ones(2, 3, device=at))
        _all_on(context, at, f"what is made of a tensor on {at} is there", made)


def _alike(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is made like a tensor, or of it, by name."""
    return {
        "empty_like": torch.empty_like(x),
        "zeros_like": torch.zeros_like(x),
        "ones_like": torch.ones_like(x),
        "rand_like": torch.rand_like(x),
        "full_like": torch.full_like(x, 2.0),
        "new_empty": x.new_empty(2),
        "new_zeros": x.new_zeros(2),
        "new_full": x.new_full((2,), 3.0),
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


@cases("device.placement", **TWO)
def whatever_is_current(context: Context) -> None:
    """Results are where the operands are, not on the current index."""
    for here, other in ((1, 0), (0, 1)):
        at = context.at(here)
        x = torch.arange(6.0, device=at)
        with context.on(other):
            made = {"add": x + 1, "sort": x.sort()[0], "item": torch.ones(2, device=at)}
            made["moved"] = torch.ones(3).to(at)
        _all_on(context, at, f"with index {other} current all are on {at}", made)
        context.equal(made["add"], torch.arange(6.0) + 1, "and their values are right")


@cases("device.placement", **TWO)
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
    """A storage is on its tensor's device, whatever made the tensor."""
    for at in map(context.named, context.indices):
        made = {**_made(device=at), **_alike(torch.ones(2, 3, device=at))}
        elsewhere = {
            name: str(where)
            for name, tensor in made.items()
            if (where := tensor.untyped_storage().device) != tensor.device
        }
        context.same(elsewhere, {}, "a storage is on its tensor's device")


@cases("device.placement", requires={"multi_device", "allocator_statistics"}, indices=2)
def memory_lies_there(context: Context) -> None:
    """A tensor's memory is taken from the index that it names, and from no other."""
    for index in (0, 1):
        before = [context.counters(each).allocated for each in (0, 1)]
        block: Any = context.bytes_of(100_000, index)
        rise = [context.counters(each).allocated - before[each] for each in (0, 1)]
        own = rise[index] >= 100_000
        context.check(own, f"index {index} counts a block of its own", found=rise)
        context.same(rise[1 - index], 0, "the counters of the other index are unchanged")
        del block
