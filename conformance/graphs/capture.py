"""graphs.capture_defers, graphs.nesting, graphs.devices: what a capture records, and what it does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import captured, counting, new_graph, replay, there, works

cases = Cases()


def _in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def _out(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, 1, out=x)


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(torch.full_like(x, 9.0))


WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in_place": _in_place,
    "out": _out,
    "copy": _copy,
}


@cases("graphs.capture_defers", over={f"sentinel_{name}": (name,) for name in WRITES})
def sentinel(context: Context, name: str) -> None:
    """A buffer that recorded work writes to is unchanged after the capture, and written to by a replay."""
    write, x = WRITES[name], there(context, counting(8))
    with captured(context) as graph:
        write(x)
    context.settle()
    context.equal(x, counting(8), "recorded work does not run")
    replay(context, graph)
    context.equal(x, write(counting(8)), "a replay runs it")


@cases("graphs.capture_defers")
def is_capturing(context: Context) -> None:
    """is_capturing is False before a capture, True during it and False after it."""
    x, stream, graph = there(context, counting(4)), context.stream(), new_graph(context)
    said = [stream.is_capturing()]
    with stream, graph:
        x.add_(1)
        said.append(stream.is_capturing())
        said.append(context.current_stream().is_capturing())
    said.append(stream.is_capturing())
    context.same(said, [False, True, True, False], "is_capturing before, twice during and after")


@cases("graphs.capture_defers")
def is_capturing_elsewhere(context: Context) -> None:
    """A stream that is no part of a capture does not say that it is capturing."""
    x, stream, other = there(context, counting(4)), context.stream(), context.stream()
    context.must(stream != other, "the pool gave two streams")
    with captured(context, stream):
        x.add_(1)
        said = other.is_capturing()
    context.same(said, False, "is_capturing of another stream")


@cases("graphs.nesting")
def second_capture(context: Context) -> None:
    """A second capture_begin on the capturing stream raises, and the stream captures again afterwards."""
    x, stream = there(context, counting(4)), context.stream()
    outer, inner = new_graph(context), new_graph(context)
    began = False
    try:
        with stream, outer:
            x.add_(1)
            try:
                inner.capture_begin()
                began = True
                inner.capture_end()
            except RuntimeError:
                pass
    except RuntimeError:
        pass  # whether the outer capture survives is the backend's choice
    context.check(not began, "capture_begin on a capturing stream raises")
    works(context, stream, "the stream captures again")


@cases("graphs.nesting")
def same_graph(context: Context) -> None:
    """A second capture_begin of the graph that is capturing raises."""
    x, stream, graph = there(context, counting(4)), context.stream(), new_graph(context)
    raised = None
    try:
        with stream, graph:
            x.add_(1)
            try:
                graph.capture_begin()
            except RuntimeError as error:
                raised = error
    except RuntimeError:
        pass
    context.check(raised is not None, "capture_begin of a graph that is capturing raises")
    works(context, stream, "the stream captures again")


@cases("graphs.devices")
def empty_capture(context: Context) -> None:
    """A capture that recorded nothing warns."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with captured(context) as graph:
                pass
        finally:
            torch.set_warn_always(always)
    context.check(given, "a capture that recorded nothing warns")
    replay(context, graph)
    context.check(True, "an empty graph can be replayed")


@cases("graphs.devices", indices=2)
def work_for_another_index(context: Context) -> None:
    """Work for another index during a capture raises or runs at once, and never vanishes."""
    x, other = there(context, counting(4)), there(context, counting(4), 1)
    raised = None
    try:
        with captured(context):
            x.add_(1)
            try:
                other.add_(10)
            except RuntimeError as error:
                raised = error
    except RuntimeError as error:
        raised = raised or error
    context.settle()
    want = counting(4) if raised is not None else counting(4) + 10
    context.equal(other, want, "work for another index raises and does nothing, or is done")


@cases("graphs.devices", indices=2)
def capture_on_another_index(context: Context) -> None:
    """A graph that is captured on the second index holds that index's work, wherever it is replayed."""
    x = there(context, counting(4), 1)
    graph = new_graph(context)
    with context.on(1), context.stream(1), graph:
        y = x * 3
    context.same(y.device, context.at(1), "the result's device")
    with context.on(1), context.stream(1):
        graph.replay()
    context.settle()
    context.equal(y, counting(4) * 3, "the replay's result")
