"""Checks of the Dynamo device interface: what it says of the device must be what the device says of itself."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.behaviour.compiler import device_interface
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.STATE)

CLAUSE = "compile.device_interface"


def _interface(context: CaseContext, name: str = "") -> Any:
    """Returns the interface that is registered for the device's type, or for a device such as "cuda:1"."""
    name = name or context.kind
    found = device_interface(name)
    text = "no Dynamo device interface is registered for the device"
    context.check(found is not None, text, expected="an interface", found=f"none for {name!r}")
    return found


@cases(CLAUSE)
def registered(context: CaseContext) -> None:
    """An interface is registered for the device's type, and says that the device is available."""
    interface = _interface(context)
    context.same(interface.is_available(), True, "is_available() does not return True")
    if context.has("multi_device"):
        for index in context.indices:
            at = f"index {index}"
            found = _interface(context, f"{context.kind}:{index}")
            context.same(found, interface, "an index has another interface than the type", at=at)


@cases(CLAUSE, requires={"multi_device"})
def counts(context: CaseContext) -> None:
    """The number of devices is the one that torch reports."""
    found, count = _interface(context).device_count(), context.descriptor.device_count()
    if context.accelerated:
        count = torch.accelerator.device_count()
    context.same(found, count, "device_count() differs from the number of devices", Kind.COUNT)


@cases(CLAUSE)
def current_device(context: CaseContext) -> None:
    """The current device is the one that the program has made current, and the interface can change it."""
    interface = _interface(context)
    if not context.has("multi_device"):
        context.same(interface.current_device(), 0, "current_device() is not the only index")
        return
    last = context.indices[-1]
    for index in (last, 0):
        with context.on(index):
            text = "current_device() is not the index that was made current"
            context.same(interface.current_device(), index, text)
            text = "the workers of the compiler see another current device"
            context.same(interface.Worker.current_device(), index, text)
    if last == 0:
        return
    with context.on(0):
        interface.set_device(last)
        text = "set_device() does not change the current device"
        context.same(torch.accelerator.current_device_index(), last, text)
        text = "exchange_device() does not return the device that was current"
        context.same(interface.exchange_device(0), last, text)
        text = "exchange_device() does not change the current device"
        context.same(torch.accelerator.current_device_index(), 0, text)
        text = "maybe_exchange_device(-1) changes the current device"
        interface.maybe_exchange_device(-1)
        context.same(torch.accelerator.current_device_index(), 0, text)
        with interface.device(last):
            text = "the interface's context manager does not make a device current"
            context.same(torch.accelerator.current_device_index(), last, text)
        text = "the interface's context manager does not restore the current device"
        context.same(torch.accelerator.current_device_index(), 0, text)


@cases(CLAUSE, requires={"streams"})
def streams(context: CaseContext) -> None:
    """The interface makes streams current, and its current stream is that of torch.accelerator."""
    interface, side = _interface(context), context.stream()
    text = "the interface's class of streams does not derive from torch.Stream"
    context.check(issubclass(interface.Stream, torch.Stream), text, found=interface.Stream)
    default = context.current_stream()
    text = "current_stream() is not the stream that is current"
    context.same(interface.current_stream(), default, text)
    with side:
        context.same(interface.current_stream(), side, text)
    with interface.stream(side):
        text = "stream() does not make a stream current"
        context.same(context.current_stream(), side, text)
    context.same(context.current_stream(), default, "stream() does not restore the current stream")
    interface.set_stream(side)
    text = "set_stream() does not make a stream current"
    try:
        context.same(context.current_stream(), side, text)
    finally:
        torch.accelerator.set_stream(default)
    text = "_set_stream_by_id() does not make a stream current"
    interface._set_stream_by_id(side.stream_id, side.device_index, side.device_type)
    try:
        context.same(context.current_stream(), side, text)
    finally:
        torch.accelerator.set_stream(default)


@cases(CLAUSE, requires={"streams", "native_handle"})
def raw_stream(context: CaseContext) -> None:
    """The raw stream that generated code uses is the native handle of the current stream."""
    interface, side = _interface(context), context.stream()
    with side:
        found = interface.get_raw_stream(context.indices[0])
        text = "get_raw_stream() is not the native handle of the current stream"
        context.same(int(found), int(side.native_handle or 0), text)


@cases(CLAUSE, requires={"events"})
def events(context: CaseContext) -> None:
    """Events of the interface mark a point in a stream's work."""
    interface = _interface(context)
    text = "the interface's class of events does not derive from torch.Event"
    context.check(issubclass(interface.Event, torch.Event), text, found=interface.Event)
    event, stream = interface.Event(), context.stream()
    with context.hold(stream):
        event.record(stream)
        context.same(event.query(), False, "an event is complete before the work in front of it")
    stream.synchronize()
    context.same(
        event.query(), True, "an event is not complete although its stream has no work left"
    )


@cases(CLAUSE)
def synchronises(context: CaseContext) -> None:
    """synchronize() waits for the work that is queued."""
    interface = _interface(context)
    x = context.to_device(torch.ones(1000))
    if not context.has("events"):
        y = x * 2
        interface.synchronize()
        context.equal(y, torch.full((1000,), 2.0), "a result is wrong after synchronize()")
        return
    event = context.event()
    if context.descriptor.busy is not None:
        context.descriptor.busy(50.0)
    y = x * 2
    event.record()
    interface.synchronize()
    context.same(event.query(), True, "work is queued after synchronize() has returned")
    context.equal(y, torch.full((1000,), 2.0), "a result is wrong after synchronize()")


@cases(CLAUSE)
def supported_dtypes(context: CaseContext) -> None:
    """A dtype is supported by what the interface says if the device computes in it."""
    interface = _interface(context)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        try:
            x = context.to_device(torch.ones(3)).to(dtype)
            computes = context.from_device((x + x).to(torch.float32)).tolist() == [2.0, 2.0, 2.0]
        except (RuntimeError, TypeError):  # the device has no such dtype
            computes = False
        text = "is_dtype_supported() does not say what the device does"
        found = bool(interface.is_dtype_supported(dtype))
        context.same(found, computes, text, at=str(dtype))
    text = "is_bf16_supported() and is_dtype_supported(torch.bfloat16) differ"
    context.same(
        bool(interface.is_bf16_supported()),
        bool(interface.is_dtype_supported(torch.bfloat16)),
        text,
    )


@cases(CLAUSE, requires={"allocator_statistics"})
def allocated_memory(context: CaseContext) -> None:
    """memory_allocated() is the number of allocated bytes that the allocator counts."""
    interface = _interface(context)
    text = "memory_allocated() differs from the allocator's counter"
    context.same(interface.memory_allocated(context.at(0)), context.counters().allocated, text)
    block = context.bytes_of(100_000)
    context.same(interface.memory_allocated(context.at(0)), context.counters().allocated, text)
    context.must(block.numel() == 100_000, "the block has another size")


@cases(CLAUSE, requires={"properties"})
def properties(context: CaseContext) -> None:
    """The properties of each index are those that the device's module returns, in the process and for the compiler's
    workers."""
    interface, read = _interface(context), context.own("properties")
    for index in context.indices:
        at, want = f"index {index}", read(index)
        for ask in (interface.get_device_properties, interface.Worker.get_device_properties):
            for device in (index, context.at(index)):
                found = ask(device)
                for name in ("name", "total_memory"):
                    text = "a property differs from the one that the device's module returns"
                    values = getattr(found, name), getattr(want, name)
                    context.same(*values, text, at=f"{name}, {at}")


@cases(CLAUSE)
def compute_capability(context: CaseContext) -> None:
    """The compute capability, which is part of the keys of compiled code, is the same at each call."""
    interface = _interface(context)
    found = interface.get_compute_capability()
    text = "get_compute_capability() returns neither a number nor a string"
    context.check(isinstance(found, (int, str)), text, found=found)
    text = "get_compute_capability() differs at the second call"
    context.same(interface.get_compute_capability(), found, text)
