"""streams.identity, priority, native_handle, external: what a stream is, and what it is made from."""

from __future__ import annotations

from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import ends_early
from conformance.streams.judging import filled, same_everywhere, two

cases = Cases()


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
    context.check(first != second, "a new stream is not the one before it", got=(first, second))
    context.check(_triple(first) != _triple(second), "nor has it that one's triple")


@cases("streams.identity")
def read_again(context: Context) -> None:
    """The current stream is equal, and has one hash, however often it is read."""
    stream = context.stream()
    with stream:
        seen = [context.current_stream() for _ in range(3)]
        context.same([hash(each) for each in seen], [hash(stream)] * 3, "the hash is the stream's")
        context.check(all(each == stream for each in seen), "it equals the stream", got=seen)
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


# -- priority


def _range(context: Context) -> tuple[int, int]:
    """The least and the greatest priority: as declared, or as the device's own class says."""
    declared = context.descriptor.priorities
    least, greatest = declared or context.own("stream").priority_range()
    context.must(least != greatest, "there are two priorities at least")
    return int(least), int(greatest)


@cases("streams.priority")
def kept(context: Context) -> None:
    """A stream has the priority that it was made with."""
    make = context.own("stream")
    for priority in _range(context):
        made = make(device=context.device, priority=priority)
        context.same(made.priority, priority, "the priority is kept")


@cases("streams.priority", over={"too_high": (5,), "too_low": (-5,)})
def out_of_range(context: Context, beyond: int) -> None:
    """A priority out of range is clamped, or raises ValueError or RuntimeError."""
    least, greatest = _range(context)
    # Lower numbers come first on every device that is known; only the distance is used here.
    asked = (max if beyond > 0 else min)(least, greatest) + beyond
    nearest = (max if beyond > 0 else min)(least, greatest)
    try:
        made = context.own("stream")(device=context.device, priority=asked)
    except (ValueError, RuntimeError):
        context.check(True, "a priority out of range is refused")
        return
    context.same(made.priority, nearest, "a priority out of range is clamped")


@cases("streams.priority")
def works(context: Context) -> None:
    """Work on streams of either priority, made by the generic class, is done and in order."""
    for priority in _range(context):
        stream, tensor = context.stream(priority=priority), filled(context, 2)
        with stream:
            tensor.mul_(3).add_(1)
        stream.synchronize()
        context.equal(tensor, same_everywhere(7), f"work of priority {priority} is done")


# -- native handles


@cases("streams.native_handle")
def stable(context: Context) -> None:
    """A stream gives one handle, however often and through whichever object it is asked."""
    stream = context.stream()
    seen = {stream.native_handle, stream.native_handle, _again(stream).native_handle}
    context.same(len(seen), 1, "one stream has one handle")


@cases("streams.native_handle")
def distinct(context: Context) -> None:
    """Handles of streams that are not the default are not null, and distinct."""
    first, second = two(context)
    handles = first.native_handle, second.native_handle
    context.check(all(handles), "a new stream's handle is not null", got=handles)
    context.check(handles[0] != handles[1], "two streams have two handles", got=handles)


# -- streams of others


@cases("streams.external", requires={"native_handle"})
def orders_with_its_owner(context: Context) -> None:
    """Work on a wrapped stream and on its owner is one queue."""
    owner, _ = two(context)
    wrapped = context.own("external_stream")(owner.native_handle, 0)
    tensor = filled(context, 0)
    with context.hold(owner) as hold:
        with owner:
            tensor.add_(2)
        with wrapped:
            tensor.mul_(3)
        with owner:
            tensor.add_(1)
        context.check(not ends_early(wrapped, hold), "the wrapped stream waits with its owner")
    wrapped.synchronize()
    context.equal(tensor, same_everywhere(7), "the work of both is done in the order of the calls")


@cases("streams.external", requires={"native_handle"})
def does_not_own(context: Context) -> None:
    """The owner works on when the wrapped stream is gone."""
    owner, _ = two(context)
    wrapped = context.own("external_stream")(owner.native_handle, 0)
    context.same(wrapped.native_handle, owner.native_handle, "it wraps that handle")
    del wrapped
    tensor = filled(context, 2)
    with owner:
        tensor.mul_(3).add_(1)
    owner.synchronize()
    context.equal(tensor, same_everywhere(7), "the owner's work is done")
