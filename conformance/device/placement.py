"""device.placement: tensors are where they say, and were asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

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
    """A factory puts its tensor on the device that is named, whichever index is current."""
    for index in context.indices:
        at = _exactly(context, index)
        made = {name: make(device=at) for name, make in _FACTORIES.items()}
        context.same(_where(made, at), {}, f"every factory makes its tensor on {at}")


@cases("device.placement")
def device_context(context: Context) -> None:
    """Inside `with torch.device(...)` factories make their tensors there, and not behind it."""
    for index in context.indices:
        at = _exactly(context, index)
        with at:
            made = {name: make() for name, make in _FACTORIES.items()}
            elsewhere = torch.empty(2, device="cpu")
        context.same(_where(made, at), {}, f"inside `with torch.device` all are on {at}")
        context.same(elsewhere.device.type, "cpu", "a device that is named goes before the context")
    context.same(torch.empty(2).device.type, "cpu", "behind the block tensors are on the CPU")


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
    """to() puts a tensor on the index that it names, and leaves it where it is there already."""
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
        context.check(rise[index] >= 100_000, f"index {index} counts a block of its own", got=rise)
        context.same(rise[1 - index], 0, "the other index counts nothing")
        del block
