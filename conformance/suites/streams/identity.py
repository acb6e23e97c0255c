"""Which stream is which, which one is current, and streams of several indices."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.streams.work import (
    filled,
    held,
    learnt,
    leaves,
    priorities,
    queue,
    recorded,
    two,
)
from devices.failure import Kind

cases = Cases(Kind.ORDER)


@cases("streams.current")
def round_trip(context: Context) -> None:
    """set_stream makes a stream current, and current_stream gives it back."""
    before, (first, second) = context.current_stream(), two(context)
    for stream in (first, second, before):
        torch.accelerator.set_stream(stream)
        context.same(context.current_stream(), stream, "the current stream is the one that was set")


@cases("streams.current", over={"restored": (False,), "restored_on_an_exception": (True,)})
def restored(context: Context, raises: bool) -> None:
    """`with stream:` restores the stream before it on exit, also when an exception leaves the block."""
    before, (stream, _) = context.current_stream(), two(context)
    with suppress(LookupError), stream:
        context.same(context.current_stream(), stream, "inside, the stream is current")
        if raises:
            raise LookupError("planned")
    context.same(context.current_stream(), before, "the previous stream is current again")


@cases("streams.current")
def nested(context: Context) -> None:
    """Nested blocks restore one after the other, to the default stream at last."""
    before, (outer, inner) = context.current_stream(), two(context)
    with outer:
        with inner:
            context.same(context.current_stream(), inner, "the inner stream is current")
        context.same(context.current_stream(), outer, "after the inner block, the outer stream is")
    context.same(context.current_stream(), before, "after both, the previous stream is")


@cases("streams.current")
def entered_again(context: Context) -> None:
    """One stream may be entered inside its own block, and in a second one."""
    before, (stream, other) = context.current_stream(), two(context)
    with stream, other, stream:
        context.same(context.current_stream(), stream, "the innermost block counts")
    context.same(context.current_stream(), before, "the previous stream is current again")
    with stream:
        with stream:
            pass
        context.same(context.current_stream(), stream, "the inner of two equal blocks restores it")
    context.same(context.current_stream(), before, "the previous stream is current again")


@cases("streams.current", indices=2)
def across_indices(context: Context) -> None:
    """Each index has its own current stream; a block of another index leaves it, and restores."""
    before = context.current_stream(0), context.current_stream(1)
    (here, _), (there, _) = two(context, 0), two(context, 1)
    with here:
        with there:
            context.same(context.current_stream(1), there, "the other index has its stream")
            context.same(context.current_stream(0), here, "this index keeps its own")
        context.same(context.current_stream(1), before[1], "the other index's stream is restored")
        context.same(context.current_stream(0), here, "this index keeps its own")
    context.same(
        (context.current_stream(0), context.current_stream(1)), before, "everything is as before"
    )


@cases("streams.current")
def of_the_thread(context: Context) -> None:
    """A thread begins with the default stream, and what it sets is its own."""
    before, (mine, its) = context.current_stream(), two(context)

    def other_thread() -> tuple[Any, Any]:
        first = context.current_stream()
        torch.accelerator.set_stream(its)
        return first, context.current_stream()

    with mine:
        [(first, then)] = context.together(other_thread)
        context.same(first, before, "a new thread has the default stream")
        context.same(then, its, "it sees what it has set")
        context.same(context.current_stream(), mine, "this thread keeps its own")


@cases("streams.current")
def takes_the_work(context: Context) -> None:
    """Work is queued on the current stream: inside a block, and after it."""
    stream, other = two(context)
    with other, context.hold(stream) as hold:
        with stream:
            inside = context.event()
            inside.record()
        later = context.event()
        later.record()
        context.check(
            context.ends(later), "what is queued after the block is on the previous stream"
        )
        hold.pending("what is queued inside the block waits with its stream", inside)
    stream.synchronize()


def _triple(stream: Any) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _again(stream: Any) -> Any:
    number, index, kind = _triple(stream)
    return torch.Stream(stream_id=number, device_index=index, device_type=kind)


@cases("streams.identity")
def made_from_its_triple(context: Context) -> None:
    """A stream made from the triple of another equals it, and has its hash."""
    for stream in (context.stream(), context.current_stream()):
        same = _again(stream)
        context.same(_triple(same), _triple(stream), "its triple is the one it was made from")
        context.same(same, stream, "it equals the other")
        context.same(hash(same), hash(stream), "it has the other's hash")


@cases("streams.identity")
def differs(context: Context) -> None:
    """Streams that are not equal have different triples."""
    first, second = context.stream(), context.stream()
    context.check(first != second, "a new stream is not the one before it", found=(first, second))
    context.check(_triple(first) != _triple(second), "nor has it that one's triple")


@cases("streams.identity")
def read_again(context: Context) -> None:
    """The current stream is equal, and has one hash, however often it is read."""
    stream = context.stream()
    with stream:
        seen = [context.current_stream() for _ in range(3)]
        context.same([hash(each) for each in seen], [hash(stream)] * 3, "the hash is the stream's")
        context.check(all(each == stream for each in seen), "it equals the stream", found=seen)
        context.same({stream: "here"}.get(seen[-1]), "here", "it is found as a key")


@cases("streams.identity", indices=2)
def of_its_index(context: Context) -> None:
    """A stream says the index that it was made on; streams of two indices differ."""
    here, there = context.stream(0), context.stream(1)
    context.same((here.device_index, there.device_index), (0, 1), "each says its index")
    context.same((here.device, there.device), (context.at(0), context.at(1)), "and its device")
    context.check(here != there, "they differ")


@cases("streams.identity")
def pool(context: Context) -> None:
    """As many successive new streams as are declared are distinct (two where no number is)."""
    size = context.descriptor.stream_pool_size or 2
    made = [context.stream() for _ in range(size)]
    context.same(len({_triple(each) for each in made}), size, "successive new streams are distinct")
    context.same(len(set(made)), size, "so are their hashes and equality")


@cases("streams.priority")
def kept(context: Context) -> None:
    """A stream has the priority that it was made with."""
    make = context.own("stream")
    for priority in priorities(context):
        made = make(device=context.device, priority=priority)
        context.same(made.priority, priority, "the priority is kept")


@cases("streams.priority", over={"too_high": (5,), "too_low": (-5,)})
def out_of_range(context: Context, beyond: int) -> None:
    """A priority out of range is clamped, or raises ValueError or RuntimeError."""
    # Lower numbers come first on every device that is known; only the distance is used here.
    nearest = (max if beyond > 0 else min)(priorities(context))
    try:
        made = context.own("stream")(device=context.device, priority=nearest + beyond)
    except (ValueError, RuntimeError):
        context.check(True, "a priority out of range is refused")
        return
    context.same(made.priority, nearest, "a priority out of range is clamped")


@cases("streams.priority")
def works(context: Context) -> None:
    """Work on streams of either priority, made by the generic class, is done and in order."""
    for priority in priorities(context):
        stream, tensor = context.stream(priority=priority), filled(context, 2)
        queue(stream, tensor, 1)
        leaves(context, stream, tensor, 7, f"work of priority {priority} is done")


@cases("streams.native_handle")
def stable(context: Context) -> None:
    """A stream has one handle, at every call and through any of its objects."""
    stream = context.stream()
    seen = {stream.native_handle, stream.native_handle, _again(stream).native_handle}
    context.same(len(seen), 1, "one stream has one handle")


@cases("streams.native_handle")
def distinct(context: Context) -> None:
    """Handles of streams that are not the default are not null, and distinct."""
    first, second = two(context)
    handles = first.native_handle, second.native_handle
    context.check(all(handles), "a new stream's handle is not null", found=handles)
    context.check(handles[0] != handles[1], "two streams have two handles", found=handles)


@cases("streams.external", requires={"native_handle"})
def orders_with_its_owner(context: Context) -> None:
    """Work on a wrapped stream and on its owner is one queue."""
    owner, _ = two(context)
    wrapped = context.own("external_stream")(owner.native_handle, 0)
    tensor = filled(context, 0)
    with held(context, owner) as hold:
        with owner:
            tensor.add_(2)
        with wrapped:
            tensor.mul_(3)
        with owner:
            tensor.add_(1)
        hold.waits(wrapped, "the wrapped stream waits with its owner")
    leaves(context, wrapped, tensor, 7, "the work of both is done in the order of the calls")


@cases("streams.external", requires={"native_handle"})
def does_not_own(context: Context) -> None:
    """The owner works on when the wrapped stream is gone."""
    owner, _ = two(context)
    wrapped = context.own("external_stream")(owner.native_handle, 0)
    context.same(wrapped.native_handle, owner.native_handle, "it wraps that handle")
    del wrapped
    tensor = filled(context, 2)
    queue(owner, tensor, 1)
    leaves(context, owner, tensor, 7, "the owner's work is done")


@cases(
    "streams.cross_device", indices=2, over={"target_forth": (0, True), "target_back": (1, True)}
)
@cases("streams.cross_device", indices=2, over={"forth": (0, False), "back": (1, False)})
def copied_in_order(context: Context, mine: int, target_held: bool) -> None:
    """A copy between indices sees the work of the source's current stream, and runs after that of the target's."""
    giving, taking = context.stream(mine), context.stream(1 - mine)
    source, target = filled(context, 1, mine), filled(context, 0, 1 - mine)
    learnt(context)
    target.copy_(source)
    context.settle()
    with held(context, taking if target_held else giving) as hold:
        with giving, taking:
            source.add_(6)
            target.add_(90)
            target.copy_(source, non_blocking=True)
            target.add_(1)
        hold.waits(taking, "the taking stream's work waits")
    giving.synchronize()
    leaves(context, taking, target, 8, "the copy runs between the work before and after it")


@cases("streams.cross_device", indices=2)
def block_switches(context: Context) -> None:
    """`with stream:` makes the stream's index current, and restores the one before."""
    for start, other in ((0, 1), (1, 0)):
        torch.accelerator.set_device_index(start)
        with context.stream(other):
            now = torch.accelerator.current_device_index()
            context.same(now, other, "inside, the stream's index is current")
        now = torch.accelerator.current_device_index()
        context.same(now, start, "after the block, the previous index is current again")


@cases("streams.cross_device", indices=2)
def set_stream_switches(context: Context) -> None:
    """set_stream makes the stream's index current."""
    for index in (1, 0, 1):
        torch.accelerator.set_stream(context.stream(index))
        now = torch.accelerator.current_device_index()
        context.same(now, index, "the index of the stream is current")


@cases("streams.cross_device", indices=2)
def record_elsewhere(context: Context) -> None:
    """Recording an event on a stream of another index than its own raises."""
    event, there = context.event(0), context.stream(1)
    event.record(context.stream(0))
    event.synchronize()
    text = "an event of index 0 is not recorded on index 1"
    context.raises((RuntimeError, ValueError), event.record, there, text=text)
    context.check(event.query(), "and stays as it was")


@cases("streams.cross_device", indices=2)
def waits_across(context: Context) -> None:
    """A stream waits for an event of another index."""
    first, second = context.stream(0), context.stream(1)
    tensor = filled(context, 1, 1)
    with context.hold(first) as hold:
        second.wait_event(recorded(context, first))
        queue(second, tensor, 4)
        hold.waits(second, "it waits while the other index is busy")
    leaves(context, second, tensor, 7, "and continues after it")
