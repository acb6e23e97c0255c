"""Cases about captures on several streams, which fork from and join the capturing stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from conformance.checks.behaviour.graph_capture import (
    broken,
    captured,
    counting,
    give,
    new_graph,
    refusal,
    replay,
    there,
    works,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)


#: Ways to make the second stream wait for the first.
ORDERS: dict[str, Callable[[Any, Any], None]] = {
    "wait_stream": lambda first, second: second.wait_stream(first),
    "event": lambda first, second: second.wait_event(first.record_event()),
}


@cases("graphs.fork_join", over={f"captured_by_{name}": (name,) for name in ORDERS})
def side_stream(context: CaseContext, order: str) -> None:
    """A side stream is forked from the capturing stream and joined to it. The work of the side stream is
    captured, does not run during the capture, and is replayed in the right order."""
    x, y = there(context, counting(4)), there(context, counting(4, start=9))
    (stream, side), then = context.streams(), ORDERS[order]
    with captured(context, stream) as graph:
        x.add_(1)
        then(stream, side)
        with side:
            within = context.is_capturing(side)
            x.mul_(2)
        y.add_(5)
        then(side, stream)
        z = x + y
    context.settle()
    context.check(within, "is_capturing() of the side stream is False during the capture")
    context.equal(x, counting(4), "work of the side stream ran during the capture")
    for step in range(3):
        give(context, x, counting(4, start=step))
        give(context, y, counting(4))
        replay(context, graph)
        want = (counting(4, start=step) + 1) * 2
        context.equal(x, want, "the replayed work of the side stream gave a wrong result")
        context.equal(z, want + counting(4) + 5, "work after the join did not see both branches")


@cases("graphs.fork_join")
def order_is_kept(context: CaseContext) -> None:
    """A graph with 50 kernels on a side stream is replayed four times. Work after the join waits for the side
    stream in each replay."""
    x, stream, side = there(context, counting(2**16)), context.stream(), context.stream()
    with captured(context, stream) as graph:
        side.wait_stream(stream)
        with side:
            y = x
            for _ in range(50):
                y = y + 1
        stream.wait_stream(side)
        x.copy_(y)
    for _ in range(4):
        replay(context, graph)
    context.equal(
        x, counting(2**16) + 200, "four replays of 50 kernels on a side stream left wrong values"
    )


@cases("graphs.fork_join")
def fork_of_a_fork(context: CaseContext) -> None:
    """A stream is forked from a side stream and joined to it. The work of the stream is captured and replayed
    in the right order."""
    x, (stream, one, two) = there(context, counting(4)), context.streams(3)
    with captured(context, stream) as graph:
        one.wait_stream(stream)
        with one:
            x.add_(1)
        two.wait_stream(one)
        with two:
            x.mul_(3)
        one.wait_stream(two)
        with one:
            x.sub_(2)
        stream.wait_stream(one)
    context.settle()
    context.equal(x, counting(4), "captured work ran during the capture")
    replay(context, graph)
    context.equal(
        x, (counting(4) + 1) * 3 - 2, "the replayed branches did not run one after the other"
    )


@cases("graphs.fork_join")
def two_branches(context: CaseContext) -> None:
    """Two side streams are forked from the capturing stream and joined to it. Work after the joins sees the
    results of both side streams."""
    x, (stream, *sides) = there(context, counting(4)), context.streams(3)
    with captured(context, stream) as graph:
        made = []
        for place, side in enumerate(sides):
            side.wait_stream(stream)
            with side:
                made.append(x + place)
        for side in sides:
            stream.wait_stream(side)
        total = made[0] * made[1]
    give(context, x, counting(4, start=2))
    replay(context, graph)
    values = counting(4, start=2)
    context.equal(total, values * (values + 1), "work after the joins did not see both branches")


@cases("graphs.fork_join")
def unjoined(context: CaseContext) -> None:
    """Ending a capture while a forked stream is not joined raises RuntimeError, and both streams can capture
    again afterwards."""
    x, (stream, side) = there(context, counting(4)), context.streams()

    def fork() -> None:
        x.add_(1)
        side.wait_stream(stream)
        with side:
            x.mul_(2)

    raised = broken(stream, new_graph(context), fork)
    context.check(
        isinstance(raised, RuntimeError),
        "a capture with a fork that is not joined did not raise RuntimeError",
    )
    context.same(
        [context.is_capturing(stream), context.is_capturing(side)],
        [False] * 2,
        "is_capturing() of the two streams after the failed capture is wrong",
    )
    works(context, stream, "the capturing stream could not capture after the failed capture")
    works(context, side, "the side stream could not capture after the failed capture")


@cases("graphs.fork_join", over={"event_of_before_the_capture": ("before",), "event_of_another_capture": ("other",)})  # fmt: skip
def foreign_event(context: CaseContext, kind: str) -> None:
    """During a capture, the capturing stream waits for an event that is not part of it: one that another stream recorded
    before the capture, or one of another capture. A graph cannot contain such a wait, so the wait or the end of the capture
    raises RuntimeError. Both streams can capture again afterwards."""
    x, y = there(context, counting(4)), there(context, counting(4))
    stream, other = context.streams()
    refusals: list[Any] = []

    def wait(event: Any) -> None:
        y.add_(1)
        stream.wait_event(event)

    if kind == "before":
        with other:
            x.add_(1)
        event = other.record_event()
        refusals.extend(refusal(stream, new_graph(context), lambda: wait(event)))
    else:
        first, second = new_graph(context), new_graph(context)
        with other:  # not `with graph`, which synchronizes the device
            first.capture_begin()
            x.add_(1)
            event = other.record_event()
        with stream:
            for step in (second.capture_begin, lambda: wait(event), second.capture_end):
                try:
                    step()
                except Exception as error:
                    refusals.append(error)
        with other, suppress(RuntimeError):
            first.capture_end()
    context.settle()
    text = "a capture whose stream waits for an event that is not part of the capture did not raise RuntimeError"
    raised = any(isinstance(each, RuntimeError) for each in refusals)
    context.check(raised, text, expected="RuntimeError", found=refusals, kind=Kind.NOT_RAISED)
    text = "is_capturing() of a stream is True after the captures have ended"
    found = [context.is_capturing(stream), context.is_capturing(other)]
    context.same(found, [False] * 2, text)
    works(context, stream, "the stream could not capture after the refused wait")
    works(context, other, "the stream of the event could not capture after the refused wait")


@cases("graphs.fork_join")
def event_of_an_ended_capture(context: CaseContext) -> None:
    """After a capture, another stream waits for an event whose last record is part of it. The wait may raise RuntimeError.
    If it does not, it is not part of any capture: the stream does not capture, and its work runs."""
    x, (stream, other) = there(context, counting(4)), context.streams()
    with captured(context, stream):
        x.add_(1)
        event = stream.record_event()
    with suppress(RuntimeError):
        other.wait_event(event)
    text = "a stream captures after it waited for an event of a capture that had ended"
    context.same(context.is_capturing(other), False, text)
    with other:
        y = x * 2
    context.settle()
    text = "work on a stream that waited for an event of an ended capture gave wrong values"
    context.equal(y, counting(4) * 2, text)


@cases("graphs.fork_join")
def side_stream_is_free_again(context: CaseContext) -> None:
    """A stream that was a side stream of a capture can execute eager work after the capture."""
    x, stream, side = there(context, counting(4)), context.stream(), context.stream()
    with captured(context, stream):
        side.wait_stream(stream)
        with side:
            x.add_(1)
        stream.wait_stream(side)
    with side:
        y = x * 2
    context.settle()
    context.equal(
        y,
        counting(4) * 2,
        "eager work on the stream that was the side stream of the capture gave wrong values",
    )
