"""graphs.fork_join: side streams in a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import captured, counting, give, new_graph, replay, there, works

cases = Cases()


def _by_wait_stream(first: Any, second: Any) -> None:
    second.wait_stream(first)


def _by_event(first: Any, second: Any) -> None:
    second.wait_event(first.record_event())


#: Ways to let the second stream go on behind the first.
ORDERS: dict[str, Callable[[Any, Any], None]] = {
    "wait_stream": _by_wait_stream,
    "event": _by_event,
}


@cases("graphs.fork_join", over={f"captured_by_{name}": (name,) for name in ORDERS})
def side_stream(context: Context, order: str) -> None:
    """A stream that is forked from the capture and joined to it is captured with it, in its place."""
    x, y = there(context, counting(4)), there(context, counting(4, start=9))
    stream, side, then = context.stream(), context.stream(), ORDERS[order]
    context.must(stream != side, "the pool gave two streams")
    with captured(context, stream) as graph:
        x.add_(1)
        then(stream, side)
        with side:
            within = side.is_capturing()
            x.mul_(2)
        y.add_(5)
        then(side, stream)
        z = x + y
    context.settle()
    context.check(within, "the side stream says that it is capturing")
    context.equal(x, counting(4), "work of the side stream does not run at capture")
    for step in range(3):
        give(context, x, counting(4, start=step))
        give(context, y, counting(4))
        replay(context, graph)
        want = (counting(4, start=step) + 1) * 2
        context.equal(x, want, "what the side stream's work leaves")
        context.equal(z, want + counting(4) + 5, "what is behind the join sees both branches")


@cases("graphs.fork_join")
def order_is_kept(context: Context) -> None:
    """However long a branch takes, what comes behind it waits, replay after replay."""
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
    context.equal(x, counting(2**16) + 200, "four replays of fifty steps on a side stream")


@cases("graphs.fork_join")
def fork_of_a_fork(context: Context) -> None:
    """A stream that is forked from a side stream and joined to it is captured too."""
    x = there(context, counting(4))
    stream, one, two = (context.stream() for _ in range(3))
    context.must(len({each.stream_id for each in (stream, one, two)}) == 3, "three streams")
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
    context.equal(x, counting(4), "nothing runs at capture")
    replay(context, graph)
    context.equal(x, (counting(4) + 1) * 3 - 2, "the three branches, one behind the other")


@cases("graphs.fork_join")
def two_branches(context: Context) -> None:
    """Two branches of one fork both come before their join."""
    x, stream = there(context, counting(4)), context.stream()
    sides = [context.stream() for _ in range(2)]
    context.must(len({each.stream_id for each in (stream, *sides)}) == 3, "three streams")
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
    context.equal(total, values * (values + 1), "the product of both branches")


@cases("graphs.fork_join")
def unjoined(context: Context) -> None:
    """A fork that is not joined raises at the end of the capture, and both streams are free afterwards."""
    x, stream, side = there(context, counting(4)), context.stream(), context.stream()
    graph, raised = new_graph(context), None
    context.must(stream != side, "the pool gave two streams")
    try:
        with stream, graph:
            x.add_(1)
            side.wait_stream(stream)
            with side:
                x.mul_(2)
    except RuntimeError as error:
        raised = error
    context.check(raised is not None, "a fork that is not joined raises")
    context.same([stream.is_capturing(), side.is_capturing()], [False] * 2, "is_capturing")
    works(context, stream, "the capturing stream captures again")
    works(context, side, "the side stream captures")


@cases("graphs.fork_join")
def side_stream_is_free_again(context: Context) -> None:
    """After the capture a side stream runs its work at once."""
    x, stream, side = there(context, counting(4)), context.stream(), context.stream()
    with captured(context, stream):
        side.wait_stream(stream)
        with side:
            x.add_(1)
        stream.wait_stream(side)
    with side:
        y = x * 2
    context.settle()
    context.equal(y, counting(4) * 2, "eager work on the side stream")
