"""Cases about the identity of streams, about the current stream, and about streams of several device indices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from conformance.checks.behaviour.queued_work import (
    filled,
    hold_stream,
    learnt,
    leaves,
    priorities,
    queue,
    recorded,
    two,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import value_behind
from devices.failure import Kind

cases = Cases(Kind.ORDER)


@cases("streams.current")
def round_trip(context: CaseContext) -> None:
    """torch.accelerator.current_stream returns the stream that was passed to torch.accelerator.set_stream."""
    before, (first, second) = context.current_stream(), two(context)
    for stream in (first, second, before):
        torch.accelerator.set_stream(stream)
        context.same(
            context.current_stream(),
            stream,
            "current_stream() differs from the stream that was set",
        )


@cases("streams.current", over={"restored": (False,), "restored_on_an_exception": (True,)})
def restored(context: CaseContext, raises: bool) -> None:
    """`with stream:` makes a stream current and restores the previous stream at the end of the block, also if
    the block raises an exception."""
    before, (stream, _) = context.current_stream(), two(context)
    with suppress(LookupError), stream:
        context.same(
            context.current_stream(), stream, "the stream is not current inside its `with` block"
        )
        if raises:
            raise LookupError("an exception that this case raises itself")
    context.same(
        context.current_stream(),
        before,
        "the previous stream is not current after the `with` block",
    )


@cases("streams.current")
def nested(context: CaseContext) -> None:
    """Each of two nested `with stream:` blocks restores the stream that was current before it."""
    before, (outer, inner) = context.current_stream(), two(context)
    with outer:
        with inner:
            context.same(
                context.current_stream(),
                inner,
                "the inner stream is not current inside its `with` block",
            )
        context.same(
            context.current_stream(),
            outer,
            "the outer stream is not current after the inner `with` block",
        )
    context.same(
        context.current_stream(),
        before,
        "the previous stream is not current after both `with` blocks",
    )


@cases("streams.current")
def entered_again(context: CaseContext) -> None:
    """A stream can be entered with `with stream:` again inside its own block, directly or inside a block of
    another stream. Each block restores the stream that was current before it."""
    before, (stream, other) = context.current_stream(), two(context)
    with stream, other, stream:
        context.same(
            context.current_stream(),
            stream,
            "the stream of the innermost `with` block is not current",
        )
    context.same(
        context.current_stream(),
        before,
        "the previous stream is not current after the `with` blocks",
    )
    with stream:
        with stream:
            pass
        context.same(
            context.current_stream(),
            stream,
            "the stream is not current after the inner of two `with` blocks of the same stream",
        )
    context.same(
        context.current_stream(),
        before,
        "the previous stream is not current after the `with` blocks",
    )


@cases("streams.current", indices=2)
def across_indices(context: CaseContext) -> None:
    """Each device index has its own current stream. `with stream:` for a stream of one index does not change
    the current stream of the other index."""
    before = context.current_stream(0), context.current_stream(1)
    (here, _), (there, _) = two(context, 0), two(context, 1)
    with here:
        with there:
            context.same(
                context.current_stream(1),
                there,
                "the stream is not current on its device index inside its `with` block",
            )
            context.same(
                context.current_stream(0),
                here,
                "a `with` block for a stream of index 1 changed the current stream of index 0",
            )
        context.same(
            context.current_stream(1),
            before[1],
            "the previous stream of index 1 is not current after the `with` block",
        )
        context.same(
            context.current_stream(0),
            here,
            "leaving a `with` block for a stream of index 1 changed the current stream of index 0",
        )
    context.same(
        (context.current_stream(0), context.current_stream(1)),
        before,
        "the previous streams of the two indices are not current after the `with` blocks",
    )


@cases("streams.current")
def of_the_thread(context: CaseContext) -> None:
    """A new thread starts with the default stream as its current stream. set_stream in the new thread does not
    change the current stream of other threads."""
    before, (mine, its) = context.current_stream(), two(context)

    def other_thread() -> tuple[Any, Any]:
        first = context.current_stream()
        torch.accelerator.set_stream(its)
        return first, context.current_stream()

    with mine:
        [(first, then)] = context.together(other_thread)
        context.same(first, before, "the current stream of a new thread is not the default stream")
        context.same(
            then, its, "current_stream() in a thread differs from the stream that the thread set"
        )
        context.same(
            context.current_stream(),
            mine,
            "set_stream in one thread changed the current stream of another thread",
        )


@cases("streams.current")
def takes_the_work(context: CaseContext) -> None:
    """Work is queued on the current stream: inside a `with stream:` block on that stream, and after the block
    on the previous stream."""
    stream, other = two(context)
    with other, context.hold(stream) as hold:
        with stream:
            inside = context.event()
            inside.record()
        later = context.event()
        later.record()
        context.check(
            context.ends(later),
            "work that was queued after the `with` block did not run on the previous stream",
        )
        hold.pending(
            "work that was queued inside the `with` block did not run on the stream of the block",
            inside,
        )
    stream.synchronize()


def _named(stream: Any) -> tuple[int, int]:
    """Returns what a stream of the device's own class and one of torch.Stream have in common: the id and the index."""
    return stream.stream_id, stream.device_index


@cases("streams.current")
def by_the_module(context: CaseContext) -> None:
    """The functions of torch.<device> about the current stream agree with those of torch.accelerator: set_stream,
    current_stream and default_stream. `with torch.<device>.stream(...)` makes a stream current and restores the previous
    one, also if an exception leaves the block. So does a block of a stream of the device's own class. A function that the
    module does not have is left out."""
    module, (first, second) = context.module, _of_the_module(context)
    default = _named(context.current_stream())
    own = context.functions_of_the_module(
        "set_stream", "current_stream", "default_stream", "stream"
    )
    for stream in (first, second):
        if "set_stream" in own:
            module.set_stream(stream)
            text = "set_stream of the device's module did not change the current stream"
            context.same(_named(context.current_stream()), _named(stream), text)
        else:
            torch.accelerator.set_stream(stream)
        if "current_stream" in own:
            text = "current_stream of the device's module differs from the current stream"
            context.same(_named(module.current_stream()), _named(stream), text)
    if "default_stream" in own:
        text = "default_stream of the device's module differs from the first current stream"
        context.same(_named(module.default_stream()), default, text)
    if "stream" in own:
        with module.stream(first):
            text = "the stream is not current inside `with torch.<device>.stream(...)`"
            context.same(_named(context.current_stream()), _named(first), text)
            with module.stream(None):
                context.same(
                    _named(context.current_stream()),
                    _named(first),
                    "stream(None) of the device's module changed the current stream",
                )
        text = "the previous stream is not current after `with torch.<device>.stream(...)`"
        context.same(_named(context.current_stream()), _named(second), text)
        _left_by_an_exception(context, second, lambda: module.stream(first), "stream(...)")
    if isinstance(first, torch.Stream):  # another class need not be a context manager
        _left_by_an_exception(context, second, lambda: first, "Stream(...)")


def _left_by_an_exception(
    context: CaseContext, before: Any, block: Callable[[], Any], name: str
) -> None:
    """Checks that a `with` block that an exception leaves restores the stream that was current before it, which is not the
    default stream."""
    with suppress(LookupError), block():
        raise LookupError("an exception that this case raises itself")
    text = (
        f"the previous stream is not current after an exception left `with torch.<device>.{name}`"
    )
    context.same(_named(context.current_stream()), _named(before), text)


def _of_the_module(context: CaseContext) -> tuple[Any, Any]:
    """Returns two streams of the device's own class if the descriptor names it, otherwise of torch.Stream."""
    if "stream" not in context.descriptor.functions:
        return two(context)
    made = context.own("stream")
    return two(context, make=lambda index: made(device=context.at(index)))


def _triple(stream: Any) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _from_triple(stream: Any) -> Any:
    number, index, kind = _triple(stream)
    return torch.Stream(stream_id=number, device_index=index, device_type=kind)


@cases("streams.identity")
def made_from_its_triple(context: CaseContext) -> None:
    """A torch.Stream made from the stream_id, device_index and device_type of another stream equals that stream
    and has the same hash."""
    for stream in (context.stream(), context.current_stream()):
        same = _from_triple(stream)
        context.same(
            _triple(same),
            _triple(stream),
            "the stream_id, device_index or device_type of the stream differ from the values it was made from",
        )
        context.same(same, stream, "the stream does not equal the stream that it was made from")
        context.same(
            hash(same),
            hash(stream),
            "the hash of the stream differs from that of the stream it was made from",
        )


@cases("streams.identity")
def differs(context: CaseContext) -> None:
    """Two new streams are not equal, and differ in stream_id, device_index or device_type."""
    first, second = context.stream(), context.stream()
    context.check(first != second, "two new streams are equal", found=(first, second))
    context.check(
        _triple(first) != _triple(second),
        "two new streams have the same stream_id, device_index and device_type",
    )


@cases("streams.identity")
def read_again(context: CaseContext) -> None:
    """current_stream() returns equal streams with equal hashes at every call, so the returned stream can be used as a
    dictionary key."""
    stream = context.stream()
    with stream:
        seen = [context.current_stream() for _ in range(3)]
        context.same(
            [hash(each) for each in seen],
            [hash(stream)] * 3,
            "the hash of current_stream() differs from that of the stream that was made current",
        )
        context.check(
            all(each == stream for each in seen),
            "current_stream() does not equal the stream that was made current",
            found=seen,
        )
        context.same(
            {stream: "here"}.get(seen[-1]),
            "here",
            "a dictionary with the stream as a key did not find current_stream()",
        )


@cases("streams.identity", indices=2)
def of_its_index(context: CaseContext) -> None:
    """A stream reports the device index on which it was made, and streams of two device indices are not equal."""
    here, there = context.stream(0), context.stream(1)
    context.same(
        (here.device_index, there.device_index), (0, 1), "a stream reports the wrong device_index"
    )
    context.same(
        (here.device, there.device),
        (context.at(0), context.at(1)),
        "a stream reports the wrong device",
    )
    context.check(here != there, "streams of two device indices are equal")


@cases("streams.identity")
def pool(context: CaseContext) -> None:
    """Consecutive new streams are distinct. The number of streams made is the descriptor's stream_pool_size, or
    two if the descriptor declares none."""
    size = context.descriptor.stream_pool_size or 2
    made = [context.stream() for _ in range(size)]
    context.same(
        len({_triple(each) for each in made}),
        size,
        "some consecutive new streams have the same stream_id, device_index and device_type: fewer streams are distinct than were made",
    )
    context.same(
        len(set(made)),
        size,
        "some consecutive new streams are equal: fewer streams are distinct than were made",
    )


@cases("streams.priority")
def kept(context: CaseContext) -> None:
    """The priority that a stream reports is the priority with which the stream was made, on each device index."""
    make = context.own("stream")
    for index in context.indices:
        for priority in priorities(context):
            made = make(device=context.at(index), priority=priority)
            text = "the priority of a stream differs from the priority with which it was made"
            context.same(made.priority, priority, text, at=f"index {index}")


@cases("streams.priority", over={"too_high": (5,), "too_low": (-5,)})
def out_of_range(context: CaseContext, beyond: int) -> None:
    """A priority out of range is clamped to the nearest valid priority, or raises ValueError or RuntimeError."""
    # On every known device a lower number means a higher priority. Only the distance from the range is used
    # here.
    nearest = (max if beyond > 0 else min)(priorities(context))
    try:
        made = context.own("stream")(device=context.device, priority=nearest + beyond)
    except (ValueError, RuntimeError):
        context.check(True, "a priority out of range was accepted")
        return
    context.same(
        made.priority,
        nearest,
        "a priority out of range was not clamped to the nearest valid priority",
    )


@cases("streams.priority")
def works(context: CaseContext) -> None:
    """Streams of the least and of the greatest priority, made with torch.Stream, execute their work."""
    for priority in priorities(context):
        stream, tensor = context.stream(priority=priority), filled(context, 2)
        queue(stream, tensor, 1)
        leaves(
            context, stream, tensor, 7, f"work on a stream of priority {priority} gave wrong values"
        )


@cases("streams.native_handle")
def stable(context: CaseContext) -> None:
    """native_handle of a stream returns the same value at every read, also through another torch.Stream object
    of the same stream."""
    stream = context.stream()
    seen = {stream.native_handle, stream.native_handle, _from_triple(stream).native_handle}
    context.same(len(seen), 1, "the number of distinct native handles of one stream is not 1")


@cases("streams.native_handle")
def distinct(context: CaseContext) -> None:
    """native_handle of a stream that is not the default stream is not null, and differs between streams."""
    first, second = two(context)
    handles = first.native_handle, second.native_handle
    context.check(all(handles), "the native handle of a new stream is null", found=handles)
    context.check(
        handles[0] != handles[1], "two streams have the same native handle", found=handles
    )


_ORDERS = "orders_with_its_owner"


@cases("streams.external", requires={"native_handle"}, over={_ORDERS: (0,)})
@cases("streams.external", requires={"native_handle"}, over={f"{_ORDERS}_on_another_index": (1,)}, indices=2)  # fmt: skip
def orders_with_its_owner(context: CaseContext, index: int) -> None:
    """A stream is wrapped as an external stream, which has its device index. Work that is queued through the wrapper and
    work that is queued on the stream itself run in the order of the calls."""
    owner, _ = two(context, index)
    wrapped = context.own("external_stream")(owner.native_handle, index)
    text = "the external stream has another device index than the stream that it wraps"
    context.same(wrapped.device_index, index, text)
    tensor = filled(context, 0, index)
    with hold_stream(context, owner) as hold:
        with owner:
            tensor.add_(2)
        with wrapped:
            tensor.mul_(3)
        with owner:
            tensor.add_(1)
        hold.waits(
            wrapped, "work on the external stream did not wait for the blocked stream that it wraps"
        )
    leaves(
        context,
        wrapped,
        tensor,
        7,
        "work on the stream and its external wrapper did not run in the order of the calls",
    )


@cases("streams.external", requires={"native_handle"})
def does_not_own(context: CaseContext) -> None:
    """A stream keeps working after the external stream that wrapped it was deleted."""
    owner, _ = two(context)
    wrapped = context.own("external_stream")(owner.native_handle, 0)
    context.same(
        wrapped.native_handle,
        owner.native_handle,
        "the native handle of the external stream differs from the handle it was made from",
    )
    del wrapped
    tensor = filled(context, 2)
    queue(owner, tensor, 1)
    leaves(
        context,
        owner,
        tensor,
        7,
        "work on the stream gave wrong values after its external wrapper was deleted",
    )


@cases(
    "streams.cross_device", indices=2, over={"target_forth": (0, True), "target_back": (1, True)}
)
@cases("streams.cross_device", indices=2, over={"forth": (0, False), "back": (1, False)})
def copied_in_order(context: CaseContext, mine: int, target_held: bool) -> None:
    """A non-blocking copy between two device indices waits for the current stream of the source's index, and
    runs in order on the current stream of the target's index."""
    giving, taking = context.stream(mine), context.stream(1 - mine)
    source, target = filled(context, 1, mine), filled(context, 0, 1 - mine)
    learnt(context)
    target.copy_(source)
    context.settle()
    with hold_stream(context, taking if target_held else giving) as hold:
        with giving, taking:
            source.add_(6)
            target.add_(90)
            target.copy_(source, non_blocking=True)
            target.add_(1)
        hold.waits(taking, "the copy did not wait for the blocked stream")
    giving.synchronize()
    leaves(context, taking, target, 8, "the copy did not run between the work before and after it")


@cases("streams.cross_device", indices=2, over={"real_part_forth": (0,), "real_part_back": (1,)})
def converted_in_order(context: CaseContext, mine: int) -> None:
    """A copy between two device indices that drops the imaginary part, so that the values are converted, waits for the work
    that is queued on the source's stream."""
    giving = context.stream(mine)
    source = torch.full((1000,), 2.0, dtype=torch.complex64, device=context.at(mine))
    target = torch.zeros(1000, device=context.at(1 - mine))
    source.mul_(1)
    with _without_warning():
        target.copy_(source)
    context.settle()

    def copy() -> torch.Tensor:
        with giving, _without_warning():
            return target.copy_(source.mul_(3))

    made = value_behind(context.hold(giving, needed=False), copy)
    context.settle()
    text = "a copy to another index that converts did not wait for work on the source's stream"
    context.equal(made, torch.full((1000,), 6.0), text)


@contextmanager
def _without_warning() -> Iterator[None]:
    """Suppresses the warning that a conversion drops the imaginary part."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Casting complex values to real")
        yield


@cases("streams.cross_device", indices=2)
def block_switches(context: CaseContext) -> None:
    """`with stream:` makes the device index of the stream current, and restores the previous device index at
    the end of the block."""
    for start, other in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(start)
        with context.stream(other):
            now = torch.accelerator.current_device_index()
            context.same(
                now, other, "the stream's device index is not current inside its `with` block"
            )
        now = torch.accelerator.current_device_index()
        context.same(now, start, "the previous device index is not current after the `with` block")


@cases("streams.cross_device", indices=2)
def set_stream_switches(context: CaseContext) -> None:
    """torch.accelerator.set_stream makes the device index of the given stream current."""
    for index in (1, 0, 1):
        torch.accelerator.set_stream(context.stream(index))
        now = torch.accelerator.current_device_index()
        context.same(now, index, "the device index of the stream is not current after set_stream")


@cases("streams.cross_device", indices=2)
def record_elsewhere(context: CaseContext) -> None:
    """Recording an event of one device index on a stream of another device index raises RuntimeError or
    ValueError, and leaves the event as it was."""
    event, there = context.event(0), context.stream(1)
    event.record(context.stream(0))
    event.synchronize()
    text = "recording an event of index 0 on a stream of index 1 did not raise the documented exception"
    context.raises((RuntimeError, ValueError), event.record, there, text=text)
    context.check(
        event.query(), "record() raised an exception, but also changed the event: query() is False"
    )


@cases("streams.cross_device", indices=2)
def waits_across(context: CaseContext) -> None:
    """A stream of one device index waits for an event of another device index. Work that is queued after the wait
    runs after the work before the event."""
    first, second = context.stream(0), context.stream(1)
    tensor = filled(context, 1, 1)
    with context.hold(first) as hold:
        second.wait_event(recorded(context, first))
        queue(second, tensor, 4)
        hold.waits(second, "the stream did not wait for the event of the other device index")
    leaves(context, second, tensor, 7, "the work after the event gave wrong values")
