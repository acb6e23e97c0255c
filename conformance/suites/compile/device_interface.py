"""Checks of the Dynamo device interface: what it reports must agree with torch.accelerator and with the device's
module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from conformance.checks.behaviour.compiler import device_interface
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.STATE)

CLAUSE = "compile.device_interface"


def _interface(context: CaseContext, name: str = "") -> Any:
    """Returns the Dynamo device interface that is registered for the device's type or, with ``name``, for a device such
    as "cuda:1"."""
    name = name or context.kind
    found = device_interface(name)
    text = "no Dynamo device interface is registered for the device"
    context.check(found is not None, text, expected="an interface", found=f"none for {name!r}")
    return found


@contextmanager
def _current(context: CaseContext, index: int) -> Iterator[None]:
    """Makes a device index the current one within the block, if the device has several."""
    with context.on(index) if context.has("multi_device") else nullcontext():
        yield


@cases(CLAUSE)
def registered(context: CaseContext) -> None:
    """A Dynamo device interface is registered for the device's type, and reports that the device is available."""
    interface = _interface(context)
    unavailable = "is_available() does not return True"
    context.same(interface.is_available(), True, unavailable)
    if context.has("multi_device"):
        for index in context.indices:
            at = f"index {index}"
            with context.on(index):
                context.same(interface.is_available(), True, unavailable, at=at)
            found = _interface(context, f"{context.kind}:{index}")
            context.same(
                found,
                interface,
                ("the interface that is registered for an index is not that of the device type"),
                at=at,
            )


@cases(CLAUSE, requires={"multi_device"})
def counts(context: CaseContext) -> None:
    """device_count() of the interface must be the number of devices that torch reports."""
    interface, count = _interface(context), context.descriptor.device_count()
    if context.accelerated:
        count = torch.accelerator.device_count()
    for index in sorted({context.indices[0], context.indices[-1]}):
        with _current(context, index):
            found = interface.device_count()
        text = "device_count() differs from the number of devices"
        context.same(found, count, text, Kind.COUNT, f"current index {index}")


@cases(CLAUSE)
def current_device(context: CaseContext) -> None:
    """current_device() of the interface is the index that the program has made current, and the interface can change
    it."""
    interface = _interface(context)
    if not context.has("multi_device"):
        context.same(
            interface.current_device(),
            0,
            ("current_device() is not 0 although there is only one index"),
        )
        return
    last = context.indices[-1]
    for index in (last, 0):
        with context.on(index):
            text = "current_device() is not the index that was made current"
            context.same(interface.current_device(), index, text)
            text = "Worker.current_device() is not the index that was made current"
            context.same(interface.Worker.current_device(), index, text)
    if last == 0:
        return
    for before, index in ((0, last), (last, 0), (last, last)):
        at = f"from index {before} to {index}"
        with context.on(before):
            interface.set_device(index)
            text = "set_device() does not change the current device"
            context.same(torch.accelerator.current_device_index(), index, text, at=at)
        for name in ("exchange_device", "maybe_exchange_device"):
            with context.on(before):
                text = f"{name}() does not return the device that was current"
                context.same(getattr(interface, name)(index), before, text, at=at)
                text = f"{name}() does not change the current device"
                context.same(torch.accelerator.current_device_index(), index, text, at=at)
                text = "maybe_exchange_device(-1) changes the current device"
                interface.maybe_exchange_device(-1)
                context.same(torch.accelerator.current_device_index(), index, text, at=at)
        with context.on(before):
            with interface.device(index):
                text = "the interface's context manager does not make a device current"
                context.same(torch.accelerator.current_device_index(), index, text, at=at)
            text = "the interface's context manager does not restore the current device"
            context.same(torch.accelerator.current_device_index(), before, text, at=at)


@cases(CLAUSE, requires={"streams"})
def streams(context: CaseContext) -> None:
    """The interface can make a stream of the first and of the last index current, and its current_stream() is that of
    torch.accelerator."""
    interface, side = _interface(context), context.stream()
    text = "the interface's class Stream does not derive from torch.Stream"
    context.check(issubclass(interface.Stream, torch.Stream), text, found=interface.Stream)
    default = context.current_stream()
    text = "current_stream() does not return the current stream"
    context.same(interface.current_stream(), default, text)
    for each in (side, context.stream(context.indices[-1])):
        with each:
            context.same(interface.current_stream(), each, text)
    for index in sorted({context.indices[0], context.indices[-1]}):
        with context.on(index):
            for made in (context.stream(index), context.stream(index)):
                _make_current(context, interface, made, f"index {index}")


def _make_current(context: CaseContext, interface: Any, made: torch.Stream, at: str) -> None:
    """Checks that the interface makes a stream of the current index current in each of three ways."""
    default = torch.accelerator.current_stream()
    with interface.stream(made):
        text = "stream() does not make a stream current"
        context.same(torch.accelerator.current_stream(), made, text, at=at)
    text = "stream() does not restore the current stream"
    context.same(torch.accelerator.current_stream(), default, text, at=at)
    try:
        interface.set_stream(made)
        text = "set_stream() does not make a stream current"
        context.same(torch.accelerator.current_stream(), made, text, at=at)
        torch.accelerator.set_stream(default)
        interface._set_stream_by_id(made.stream_id, made.device_index, made.device_type)
        text = "_set_stream_by_id() does not make a stream current"
        context.same(torch.accelerator.current_stream(), made, text, at=at)
    finally:
        torch.accelerator.set_stream(default)


@cases(CLAUSE, requires={"streams", "native_handle"})
def raw_stream(context: CaseContext) -> None:
    """get_raw_stream(), which generated code calls, returns the native handle of the current stream."""
    interface = _interface(context)
    for index in sorted({context.indices[0], context.indices[-1]}):
        for number in range(2):
            side = context.stream(index)
            with side:
                found = interface.get_raw_stream(index)
                text = "get_raw_stream() is not the native handle of the current stream"
                want = int(side.native_handle or 0)
                context.same(int(found), want, text, at=f"stream {number} of index {index}")


@cases(CLAUSE, requires={"events"})
def events(context: CaseContext) -> None:
    """An event of the interface is complete only after the work that was queued in front of it."""
    interface = _interface(context)
    text = "the interface's class Event does not derive from torch.Event"
    context.check(issubclass(interface.Event, torch.Event), text, found=interface.Event)
    event, stream = interface.Event(), context.stream()
    with context.hold(stream):
        event.record(stream)
        context.same(
            event.query(),
            False,
            ("an event is complete before the work that was queued in front of it"),
        )
    stream.synchronize()
    context.same(
        event.query(), True, "an event is not complete although all work of its stream has finished"
    )


@cases(CLAUSE)
def synchronises(context: CaseContext) -> None:
    """synchronize() of the interface waits for all queued work."""
    interface = _interface(context)
    if not context.has("events"):
        y = context.to_device(torch.ones(1000)) * 2
        interface.synchronize()
        context.equal(y, torch.full((1000,), 2.0), "a result is wrong after synchronize()")
        return
    for index in sorted({context.indices[0], context.indices[-1]}):
        with _current(context, index):
            x = torch.ones(1000).to(context.named(index))
            event = context.event()
            if context.descriptor.busy is not None:
                context.descriptor.busy(50.0)
            y = x * 2
            event.record()
            interface.synchronize()
            text = "work was still queued when synchronize() returned"
            context.same(event.query(), True, text, at=f"index {index}")
        text = "a result is wrong after synchronize()"
        context.equal(y, torch.full((1000,), 2.0), text, f"index {index}")


@cases(CLAUSE)
def supported_dtypes(context: CaseContext) -> None:
    """is_dtype_supported() of the interface returns True exactly for the dtypes in which the device computes."""
    interface = _interface(context)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        try:
            x = context.to_device(torch.ones(3)).to(dtype)
            computes = context.from_device((x + x).to(torch.float32)).tolist() == [2.0, 2.0, 2.0]
        except (RuntimeError, TypeError):  # the device has no such dtype
            computes = False
        text = "is_dtype_supported() does not agree with whether the device computes in the dtype"
        for index in sorted({context.indices[0], context.indices[-1]}):
            with _current(context, index):
                found = bool(interface.is_dtype_supported(dtype))
            context.same(found, computes, text, at=f"{dtype}, index {index}")
    text = "is_bf16_supported() and is_dtype_supported(torch.bfloat16) differ"
    context.same(
        bool(interface.is_bf16_supported()),
        bool(interface.is_dtype_supported(torch.bfloat16)),
        text,
    )


@cases(CLAUSE, requires={"allocator_statistics"})
def allocated_memory(context: CaseContext) -> None:
    """memory_allocated() of the interface is the number of allocated bytes that the allocator counts."""
    interface = _interface(context)
    text = "memory_allocated() differs from the allocator's counter"
    blocks = []
    for index in context.indices:
        for current in sorted({context.indices[0], context.indices[-1]}):
            with _current(context, current):
                found = interface.memory_allocated(context.at(index))
            context.same(found, context.counters(index).allocated, text, at=f"index {index}")
            blocks.append(context.bytes_of(100_000, index))
        found = interface.memory_allocated(context.at(index))
        context.same(found, context.counters(index).allocated, text, at=f"index {index}")
    sizes = {block.numel() for block in blocks}
    context.must(sizes == {100_000}, "an allocated block does not have 100,000 elements")


@cases(CLAUSE, requires={"properties"})
def properties(context: CaseContext) -> None:
    """The interface returns the properties that the device's module returns for each index, also for the compiler's
    worker processes."""
    interface, read = _interface(context), context.own("properties")
    for index in context.indices:
        at, want = f"index {index}", read(index)
        names = _lasting(want, read(index))
        text = "the properties from the device's module have neither a name nor a total memory"
        context.must({"name", "total_memory"} & {*names}, text)
        asks = (interface.get_device_properties, interface.Worker.get_device_properties)
        text = "a property from the interface differs from the one that the device's module returns"
        for ask in asks:
            for current in sorted({context.indices[0], context.indices[-1]}):
                for device in (index, context.at(index)):
                    with _current(context, current):
                        found = ask(device)
                    for name in names:
                        values = getattr(found, name), getattr(want, name)
                        context.same(*values, text, at=f"{name}, {at}, current index {current}")


def _lasting(one: Any, other: Any) -> list[str]:
    """Returns the names of the properties that have the same value in two answers of a device."""
    names = [name for name in dir(one) if not name.startswith("_")]
    return [
        name
        for name in names
        if not callable(getattr(one, name)) and getattr(one, name) == getattr(other, name, None)
    ]


@cases(CLAUSE)
def compute_capability(context: CaseContext) -> None:
    """get_compute_capability(), which is part of the cache keys of compiled code, returns the same value at each
    call, on the first and on the last index."""
    interface = _interface(context)
    for index in sorted({context.indices[0], context.indices[-1]}):
        # A device with one index need not be an accelerator that torch can make current.
        with context.on(index) if len(context.indices) > 1 else nullcontext():
            found = interface.get_compute_capability()
            text = "get_compute_capability() returns neither a number nor a string"
            context.check(isinstance(found, (int, str)), text, found=found, at=f"index {index}")
            text = "get_compute_capability() returns another value at the second call"
            context.same(interface.get_compute_capability(), found, text, at=f"index {index}")
