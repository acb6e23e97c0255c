"""allocator.record_stream, allocator.cross_stream: blocks and the streams that use them."""

from __future__ import annotations

from conformance.allocator.judging import KIB, MIB, fresh, inside, known, span
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

_SIZES = {"small": (64 * KIB,), "large": (MIB + 512 * KIB,)}


def _reused_at_once(context: Context, size: int) -> bool:
    """Whether the block that the current stream freed last is the next of its size."""
    block = context.bytes_of(size)
    place = span(block)
    del block
    return inside(context.bytes_of(size), [place])


@cases("allocator.record_stream", over=_SIZES)
def not_handed_out(context: Context, size: int) -> None:
    """A marked block is not handed out before the other stream has passed the point of its free."""
    mine, other = context.stream(), context.stream()
    context.must(mine != other, "the streams are two")
    with mine:
        context.must(_reused_at_once(context, size), "a freed block is the next of its size")
        block = context.bytes_of(size)
        place = span(block)
        with context.hold(other) as hold:
            block.record_stream(other)
            del block
            early = [context.bytes_of(size) for _ in range(3)]
            hold.must_be_in_flight()
            wrong = [span(each) for each in early if inside(each, [place])]
            context.same(wrong, [], "the block is not handed out while the other stream is busy")
        other.synchronize()
        del early
        later = [context.bytes_of(size) for _ in range(5)]
        context.check(
            any(inside(each, [place]) for each in later),
            "the block is handed out again when the other stream is done",
        )


@cases("allocator.record_stream", over={f"{name}_bytes": size for name, size in _SIZES.items()})
def bytes_stay(context: Context, size: int) -> None:
    """What another stream is about to read is not overwritten through a block of the same memory."""
    mine, other = context.stream(), context.stream()
    want = known(size, 11)
    with other:
        result = context.bytes_of(size).fill_(0)
    with mine:
        block = context.bytes_of(size).copy_(want)
        context.settle()
        with context.hold(other) as hold:
            with other:
                result.copy_(block)
            block.record_stream(other)
            del block
            for _ in range(3):
                context.bytes_of(size).fill_(255)
            mine.synchronize()
            hold.must_be_in_flight()
        other.synchronize()
    context.equal(result, want, "the other stream reads what was there when its work was queued")


@cases("allocator.cross_stream", over=_SIZES)
def own_stream_only(context: Context, size: int) -> None:
    """A freed block goes to requests on the stream that it was allocated on, and to no other."""
    mine, other = context.stream(), context.stream()
    context.must(mine != other, "the streams are two")
    fresh(context)
    with mine:
        block = context.bytes_of(size)
        place = span(block)
        del block
    with other:
        others = [context.bytes_of(size) for _ in range(4)]
    wrong = [span(each) for each in others if inside(each, [place])]
    context.same(wrong, [], "no request on another stream gets the block")
    with mine:
        again = [context.bytes_of(size) for _ in range(2)]
    context.check(
        any(inside(each, [place]) for each in again), "a request on its own stream gets it"
    )
    del others, again


@cases("allocator.cross_stream", requires={"allocator_statistics"})
def after_release(context: Context) -> None:
    """Once its segment is released, memory serves any stream."""
    mine, other = context.stream(), context.stream()
    fresh(context)
    reserved = context.counters().reserved
    with mine:
        context.bytes_of(6 * MIB)
    context.must(context.counters().reserved > reserved, "the block's segment is kept")
    fresh(context)
    context.same(context.counters().reserved, reserved, "its segment is released")
    with other:
        block = context.bytes_of(6 * MIB).fill_(3)
        context.same(int(block[-1]), 3, "another stream takes and uses memory")
