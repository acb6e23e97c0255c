"""streams.current: which stream work is queued on."""

from __future__ import annotations

from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import ends
from conformance.streams.judging import two

cases = Cases()


def _now(context: Context, index: int = 0) -> Any:
    return context.current_stream(index)


@cases("streams.current")
def round_trip(context: Context) -> None:
    """set_stream makes a stream current, and current_stream gives it back."""
    before, (first, second) = _now(context), two(context)
    for stream in (first, second, before):
        torch.accelerator.set_stream(stream)
        context.same(_now(context), stream, "the current stream is the one that was set")


@cases("streams.current")
def restored(context: Context) -> None:
    """`with stream:` restores the stream before it on exit."""
    before, (stream, _) = _now(context), two(context)
    with stream:
        context.same(_now(context), stream, "inside, the stream is current")
    context.same(_now(context), before, "the stream before is current again")


@cases("streams.current")
def restored_on_an_exception(context: Context) -> None:
    """`with stream:` restores the stream before it when an exception leaves the block."""
    before, (stream, _) = _now(context), two(context)
    try:
        with stream:
            raise LookupError("planned")
    except LookupError:
        pass
    context.same(_now(context), before, "the stream before is current again")


@cases("streams.current")
def nested(context: Context) -> None:
    """Nested blocks restore one after the other, to the default stream at last."""
    before, (outer, inner) = _now(context), two(context)
    with outer:
        with inner:
            context.same(_now(context), inner, "the inner stream is current")
        context.same(_now(context), outer, "behind the inner block, the outer stream is")
    context.same(_now(context), before, "behind both, the stream before is")


@cases("streams.current")
def entered_again(context: Context) -> None:
    """One stream may be entered inside its own block, and in a second one."""
    before, (stream, other) = _now(context), two(context)
    with stream, other, stream:
        context.same(_now(context), stream, "the innermost block counts")
    context.same(_now(context), before, "the stream before is current again")
    with stream:
        with stream:
            pass
        context.same(_now(context), stream, "the inner of two equal blocks restores it")
    context.same(_now(context), before, "the stream before is current again")


@cases("streams.current", indices=2)
def across_indices(context: Context) -> None:
    """Each index has its own current stream; a block of another index leaves it, and restores."""
    before = _now(context, 0), _now(context, 1)
    (here, _), (there, _) = two(context, 0), two(context, 1)
    with here:
        with there:
            context.same(_now(context, 1), there, "the other index has its stream")
            context.same(_now(context, 0), here, "this index keeps its own")
        context.same(_now(context, 1), before[1], "the other index's stream is restored")
        context.same(_now(context, 0), here, "this index keeps its own")
    context.same((_now(context, 0), _now(context, 1)), before, "all is as before")


@cases("streams.current")
def of_the_thread(context: Context) -> None:
    """A thread begins with the default stream, and what it sets is its own."""
    before, (mine, its) = _now(context), two(context)

    def other_thread() -> tuple[Any, Any]:
        first = _now(context)
        torch.accelerator.set_stream(its)
        return first, _now(context)

    with mine:
        [(first, then)] = context.together(other_thread)
        context.same(first, before, "a new thread has the default stream")
        context.same(then, its, "it sees what it has set")
        context.same(_now(context), mine, "this thread keeps its own")


@cases("streams.current")
def takes_the_work(context: Context) -> None:
    """Work is queued on the current stream: inside a block, and behind it."""
    stream, other = two(context)
    with other, context.hold(stream) as hold:
        with stream:
            inside = context.event()
            inside.record()
        behind = context.event()
        behind.record()
        context.check(ends(behind), "what is queued behind the block is on the stream before it")
        context.check(not inside.query(), "what is queued inside the block waits with its stream")
        hold.must_be_in_flight()
    stream.synchronize()
