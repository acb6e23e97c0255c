"""Cases about device indices: the number of devices, the current index, and the index on which tensors are
placed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.clock import Clock
from conformance.suites.device.processes import computes, counted
from devices.failure import Kind

cases = Cases(Kind.STATE)

TWO: dict[str, Any] = {"requires": {"multi_device"}, "indices": 2}

current = torch.accelerator.current_device_index


@cases("device.count")
def constant(context: CaseContext) -> None:
    """device_count returns the same number at every call and in another thread, and every device index below
    that number can compute."""
    count = counted(context)
    context.check(count >= 1, "device_count is less than 1", found=count)
    for index in range(count):
        context.same(
            computes(context.at(index)),
            [3.0, 5.0, 7.0],
            f"device index {index} computed a wrong result",
        )
        context.same(counted(context), count, "device_count changed between two calls")
    (there,) = context.together(lambda: counted(context))
    context.same(there, count, "device_count differs in another thread")


def _raise(context: CaseContext, calls: dict[str, Callable[..., Any]], given: Any) -> None:
    for name, call in calls.items():
        context.raises(
            Exception,
            call,
            given,
            text=f"{name} did not raise an exception for the device {given}, which does not exist",
        )


@cases("device.count", over={"at_the_count": (0,), "far_above_it": (5,)})
def tensors_past_it(context: CaseContext, more: int) -> None:
    """Creating a tensor on a device index that is equal to or greater than the number of devices raises an error,
    and so does moving a tensor to such an index."""
    makers = {
        "torch.empty": lambda at: torch.empty(2, device=at),
        "torch.ones": lambda at: torch.ones(2, device=at),
        "tensor.to": lambda at: torch.ones(2).to(at),
    }
    _raise(context, makers, context.at(counted(context) + more))


@cases("device.count", requires={"streams"})
def streams_past_it(context: CaseContext) -> None:
    """torch.Stream, current_stream and synchronize raise an error for a device index that is equal to the
    number of devices."""
    calls: dict[str, Callable[..., Any]] = {
        "torch.Stream": lambda at: torch.Stream(device=at),
        "current_stream": torch.accelerator.current_stream,
        "synchronize": torch.accelerator.synchronize,
    }
    _raise(context, calls, context.at(counted(context)))


@cases("device.count", requires={"allocator_statistics"})
def statistics_past_it(context: CaseContext) -> None:
    """Functions that read or reset memory statistics raise an error for a device index that is equal to the
    number of devices: those of torch.accelerator and those that torch.<device> has of the same names."""
    names = ["memory_stats", "memory_allocated", "memory_reserved"]
    names += ["max_memory_allocated", "max_memory_reserved"]
    names += ["reset_peak_memory_stats", "reset_accumulated_memory_stats"]
    if context.has("allocator_memory_info"):
        names.append("get_memory_info")
    memory, module = torch.accelerator.memory, context.module
    calls = {f"torch.accelerator.{name}": getattr(memory, name) for name in names}
    own = {"get_memory_info": "mem_get_info"}
    for name in (own.get(name, name) for name in names):
        if hasattr(module, name):
            calls[f"torch.{context.kind}.{name}"] = getattr(module, name)
    _raise(context, calls, context.at(counted(context)))


@cases("device.count", requires={"properties"})
def properties_past_it(context: CaseContext) -> None:
    """The functions of the device's module that tell properties raise an error for a device index that is equal to the number
    of devices, and so do a generator of that index and `with torch.<device>.device(...)`."""
    module, past = context.module, counted(context)
    names = ("get_device_properties", "get_device_name", "get_device_capability")
    calls = {f"torch.{context.kind}.{n}": getattr(module, n) for n in names if hasattr(module, n)}

    def draw(at: torch.device) -> torch.Tensor:
        return torch.rand(2, device=at, generator=torch.Generator(at))

    calls["torch.Generator"] = draw
    _raise(context, calls, context.at(past))


@cases("device.count", requires={"multi_device"})
def set_past_it(context: CaseContext) -> None:
    """torch.accelerator.set_device_index raises an error for an index that is equal to the number of devices,
    and the current index stays the same."""
    before = current()
    _raise(context, {"set_device_index": torch.accelerator.set_device_index}, counted(context))
    context.same(
        current(),
        before,
        "set_device_index with an invalid index raised an exception, but also changed the current index",
    )


@cases("device.count", **TWO)
def negative_sets_nothing(context: CaseContext) -> None:
    """torch.accelerator.set_device_index with a negative index leaves the current index unchanged, as
    documented."""
    for index in (1, -1):
        torch.accelerator.set_device_index(index)
    context.same(current(), 1, "set_device_index(-1) changed the current index")


@cases("device.count", **TWO)
def set_is_current(context: CaseContext) -> None:
    """set_device_index makes a device index current. A tensor created on the device without an index is placed
    on the current index."""
    for index in (1, 0, 1):
        torch.accelerator.set_device_index(index)
        context.same(current(), index, "the current index differs from the one that was set")
        made = torch.empty(2, device=context.kind)
        context.same(
            made.device.index,
            index,
            "a tensor created without an index is not on the current index",
        )


@cases("device.count", **TWO)
def by_the_module(context: CaseContext) -> None:
    """The functions of torch.<device> about indices agree with those of torch.accelerator: device_count, set_device,
    current_device, and the `with` blocks device and device_of, which restore the previous index. A function that the module
    does not have is left out."""
    module, here = context.module, torch.ones(2)
    names = ("set_device", "current_device", "device", "device_of")
    own = context.functions_of_the_module("is_available", "is_initialized", "device_count", *names)
    if "device_count" in own:
        text = "device_count of the device's module differs from torch.accelerator.device_count"
        context.same(module.device_count(), counted(context), text)
    for index in (1, 0, 1):
        (module.set_device if "set_device" in own else torch.accelerator.set_device_index)(index)
        context.same(current(), index, "set_device of the device's module set another index")
        if "current_device" in own:
            text = "current_device of the device's module differs from the current index"
            context.same(module.current_device(), index, text)
    there = {index: torch.ones(2, device=context.at(index)) for index in (0, 1)}
    for start, other in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(start)
        blocks = {
            "device": lambda index=other: module.device(index),
            "device_of": lambda index=other: module.device_of(there[index]),
        }
        for name in (name for name in blocks if name in own):
            with suppress(LookupError), blocks[name]():
                text = f"the index is not current inside `with torch.<device>.{name}(...)`"
                context.same(current(), other, text)
                raise LookupError("an exception that this case raises itself")
            text = f"the previous index is not current after `with torch.<device>.{name}(...)`"
            context.same(current(), start, text)
        if "device_of" in own:
            with module.device_of(here):
                context.same(current(), start, "device_of a tensor on the CPU changed the index")
    for name in ("is_available", "is_initialized"):
        if name in own:
            text = f"{name} of the device's module is False although the device was used"
            context.same(bool(getattr(module, name)()), True, text)


@cases("device.count", **TWO)
def with_restores(context: CaseContext) -> None:
    """`with torch.accelerator.device_index(...)` makes an index current and restores the previous index afterwards,
    also if the `with` blocks are nested or end with an exception."""
    for first, second in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(first)
        with context.on(second):
            context.same(current(), second, "the index is not current inside its `with` block")
            with context.on(first):
                context.same(
                    current(), first, "the index is not current inside the nested `with` block"
                )
            context.same(
                current(),
                second,
                "leaving the inner `with` block did not restore the current index",
            )
            with torch.accelerator.device_index(None):
                context.same(current(), second, "device_index(None) changed the current index")
        context.same(
            current(), first, "leaving the outer `with` block did not restore the current index"
        )
        with suppress(KeyError), context.on(second):
            raise KeyError("an exception that this case raises itself")
        context.same(
            current(),
            first,
            "a `with` block that ended with an exception did not restore the current index",
        )


@cases("device.count", **TWO)
def of_the_thread(context: CaseContext) -> None:
    """Each thread has its own current device index: set_device_index in one thread does not change the current
    index of another thread."""
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
    context.same(
        here, 0, "set_device_index in one thread changed the current index of another thread"
    )
    context.same(
        seen, [1, 1], "the current index of a thread changed when another thread set its own"
    )
    context.same(current(), 0, "threads changed the current index of the main thread")


#: Factory functions of every kind; each takes an optional keyword argument ``device``.
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


def _all_on(
    context: CaseContext, at: torch.device, text: str, made: dict[str, torch.Tensor]
) -> None:
    elsewhere = {name: str(tensor.device) for name, tensor in made.items() if tensor.device != at}
    context.same(elsewhere, {}, text)


def _factory_tensors(**named: Any) -> dict[str, torch.Tensor]:
    return {name: make(**named) for name, make in _FACTORIES.items()}


@cases("device.placement")
def factories(context: CaseContext) -> None:
    """Factory functions with device= create the tensor on the named device index, not on the current index."""
    for at in map(context.named, context.indices):
        _all_on(
            context,
            at,
            f"factory functions with device={at} created tensors on the wrong device",
            _factory_tensors(device=at),
        )


@cases("device.placement")
def device_context(context: CaseContext) -> None:
    """Inside `with torch.device(...)`, factory functions create tensors on that device unless another device is
    named. After the `with` block they use the CPU again."""
    for at in map(context.named, context.indices):
        with at:
            made, elsewhere = _factory_tensors(), torch.empty(2, device="cpu")
        _all_on(
            context,
            at,
            f"factory functions inside `with torch.device` created tensors on devices other than {at}",
            made,
        )
        context.same(
            elsewhere.device.type, "cpu", "device='cpu' inside `with torch.device` was ignored"
        )
    context.same(
        torch.empty(2).device.type,
        "cpu",
        "a tensor created after `with torch.device` is not on the CPU",
    )


@cases("device.placement")
def default_device(context: CaseContext) -> None:
    """After torch.set_default_device, factory functions without a device argument use that device until the
    default is reset."""
    try:
        for at in map(context.named, context.indices):
            torch.set_default_device(at)
            _all_on(
                context,
                at,
                f"factory functions ignored the default device {at}",
                _factory_tensors(),
            )
    finally:
        torch.set_default_device(None)
    context.same(
        torch.empty(2).device.type,
        "cpu",
        "a tensor created after resetting the default device is not on the CPU",
    )


@cases("device.placement")
def alike(context: CaseContext) -> None:
    """Tensors returned by *_like functions, new_* methods and ops are on the device of the input tensor."""
    for at in map(context.named, context.indices):
        made = _alike(torch.ones(2, 3, device=at))
        _all_on(
            context, at, f"results computed from a tensor on {at} are on the wrong device", made
        )


def _alike(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns tensors that are created like the given tensor or computed from it, keyed by the name of the
    function."""
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
def whatever_is_current(context: CaseContext) -> None:
    """Results of ops are on the device index of their operands, also if another index is current."""
    for here, other in ((1, 0), (0, 1)):
        at = context.at(here)
        x = torch.arange(6.0, device=at)
        with context.on(other):
            made = {"add": x + 1, "sort": x.sort()[0], "item": torch.ones(2, device=at)}
            made["moved"] = torch.ones(3).to(at)
        _all_on(
            context,
            at,
            f"results of ops on {at} are not on {at} while index {other} is current",
            made,
        )
        context.equal(
            made["add"],
            torch.arange(6.0) + 1,
            "ops on a device index that is not current gave wrong values",
        )


@cases("device.placement", **TWO)
def moved(context: CaseContext) -> None:
    """Tensor.to moves a tensor to the named device index. If the tensor is already there, Tensor.to returns the
    same tensor object."""
    for index in (0, 1):
        at = context.at(index)
        for other in (torch.ones(3), torch.ones(3, device=context.at(1 - index))):
            context.same(
                other.to(at).device,
                at,
                f"to({at}) of a tensor on {other.device} gave the wrong device",
            )
        x = torch.ones(3, device=at)
        context.check(x.to(at) is x, f"to({at}) of a tensor on {at} returned a different tensor")


@cases("device.placement", requires={"storage"})
def storages(context: CaseContext) -> None:
    """untyped_storage().device equals the device of the tensor, for tensors from factory functions and from
    ops."""
    for at in map(context.named, context.indices):
        made = {**_factory_tensors(device=at), **_alike(torch.ones(2, 3, device=at))}
        elsewhere = {
            name: str(where)
            for name, tensor in made.items()
            if (where := tensor.untyped_storage().device) != tensor.device
        }
        context.same(
            elsewhere, {}, "the storages of some tensors are not on the device of the tensor"
        )


#: Attributes of a tensor that say whether it is on a device of a type, by the type.
_SAYS = {
    **{"cpu": "is_cpu", "cuda": "is_cuda", "ipu": "is_ipu", "maia": "is_maia", "meta": "is_meta", "mps": "is_mps"},
    **{"mtia": "is_mtia", "vulkan": "is_vulkan", "xla": "is_xla", "xpu": "is_xpu"},
}  # fmt: skip


@cases("device.placement")
def says_where(context: CaseContext) -> None:
    """A tensor says on which device it is: device, get_device(), and is_cpu, is_cuda and the like, also for a view and for a
    parameter. type(), type_as(), new() and new_tensor() give tensors on that device, or on the device that they
    name."""
    for index in context.indices:
        at = context.named(index)
        x = torch.arange(6.0, device=at)
        for what, each in (
            ("a tensor", x),
            ("a view", x[2:]),
            ("a parameter", torch.nn.Parameter(x)),
        ):
            text = f"{what} on {at} says that it is elsewhere"
            context.same(each.device, at, text, at="device")
            number = -1 if at.type == "cpu" else index
            context.same(each.get_device(), number, text, at="get_device()")
            said = {name: getattr(each, name) for name in _SAYS.values() if hasattr(each, name)}
            context.same(said, {name: name == _SAYS.get(at.type) for name in said}, text)
        whole, host = x.to(torch.int32), torch.ones(2, dtype=torch.int32)
        cast = {"type(torch.int32)": x.type(torch.int32), "type_as": x.type_as(whole)}
        text = f"a cast of a tensor on {at} has a wrong device or dtype"
        for name, made in cast.items():
            context.same((made.device, made.dtype), (at, torch.int32), text, at=name)
            context.equal(made, torch.arange(6, dtype=torch.int32), f"{name} gave wrong values")
        context.same(host.type_as(whole).device, at, f"type_as a tensor on {at} is not there")
        context.same(x.type_as(host).device.type, "cpu", "type_as a tensor on the CPU is not there")
        context.same(
            x.new_tensor([1, 2]).device, at, f"new_tensor of a tensor on {at} is not there"
        )
        moved = x.new_tensor([1.5], device="cpu")
        context.same(moved.device.type, "cpu", "new_tensor(…, device='cpu') is not on the CPU")


@cases("device.placement", requires={"storage"})
def of_a_storage(context: CaseContext) -> None:
    """An UntypedStorage says where its bytes are and how many. cpu(), to(), clone(), copy_(), fill_() and tolist() read and
    write these bytes, and a clone has memory of its own."""
    values = torch.tensor([1.5, -2.0, 3.25])
    raw = values.view(torch.uint8).tolist()
    for at in map(context.named, context.indices):
        x = context.from_device(values).to(at)
        storage = x.untyped_storage()
        said = storage.device, storage.get_device(), storage.element_size(), storage.is_sparse
        context.same(said, (at, at.index, 1, False), "a storage says wrong things of itself")
        sizes = {storage.nbytes(), storage.size(), len(storage)}
        context.same(sizes, {len(raw)}, "a storage says that it has another number of bytes")
        context.check(not storage.is_pinned(), "a storage on the device says that it is pinned")
        host = storage.cpu()
        context.same(host.device.type, "cpu", "cpu() of a storage is not on the CPU")
        context.same(host.tolist(), raw, "cpu() of a storage has other bytes")
        context.same(storage.tolist(), raw, "tolist() of a storage has other bytes")
        there = host.to(device=at)
        context.same((there.device, there.tolist()), (at, raw), "to() gave a wrong storage")
        copy = storage.clone()
        context.same((copy.device, copy.tolist()), (at, raw), "clone() gave a wrong storage")
        copy.fill_(7)
        context.same(copy.tolist(), [7] * len(raw), "fill_() of a storage gave wrong bytes")
        context.equal(x, values, "fill_() of a clone changed the original")
        copy.copy_(host)
        context.same(copy.tolist(), raw, "copy_() from a storage on the CPU gave wrong bytes")
        alias = torch.empty(0, device=at).set_(storage, 0, (3,), (1,))
        context.check(alias.is_set_to(x), "is_set_to is False for two tensors of one storage")
        context.check(not x.clone().is_set_to(x), "is_set_to is True for a tensor and its clone")
        alias.fill_(4)
        context.equal(
            x, torch.full((3,), 4.0), "a write through another tensor of the storage is lost"
        )


@cases("device.placement", requires={"multi_device", "allocator_statistics"}, indices=2)
def memory_lies_there(context: CaseContext) -> None:
    """Creating a tensor on one device index increases the allocated bytes of that index, and does not change
    those of the other index."""
    for index in (0, 1):
        before = [context.counters(each).allocated for each in (0, 1)]
        block: Any = context.bytes_of(100_000, index)
        rise = [context.counters(each).allocated - before[each] for each in (0, 1)]
        own = rise[index] >= 100_000
        context.check(
            own,
            f"`allocated` of index {index} did not rise by the size of a new block (found: the rise of each index in bytes)",
            found=rise,
        )
        context.same(rise[1 - index], 0, "`allocated` of the other index changed")
        del block
