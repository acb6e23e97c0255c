"""Cases about the calls that a capture accepts or refuses, and about errors during a capture."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import fresh
from conformance.checks.behaviour.graph_capture import (
    WAITING,
    broken,
    captured,
    chain,
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


WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in_place": lambda x: x.add_(1),
    "out": lambda x: torch.add(x, 1, out=x),
    "copy": lambda x: x.copy_(torch.full_like(x, 9.0)),
}


@cases("graphs.capture_defers", over={f"sentinel_{name}": (name,) for name in WRITES})
def sentinel(context: CaseContext, name: str) -> None:
    """Work that changes a buffer in place is captured. The buffer is unchanged after the capture, and changed
    after a replay."""
    write, x = WRITES[name], there(context, counting(8))
    with captured(context) as graph:
        write(x)
    context.settle()
    context.equal(x, counting(8), "captured work ran during the capture")
    replay(context, graph)
    context.equal(x, write(counting(8)), "a replay did not run the captured work")


@cases("graphs.capture_defers")
def is_capturing(context: CaseContext) -> None:
    """is_capturing() of the capturing stream is False before a capture, True during the capture and False
    afterwards."""
    x, stream, graph = there(context, counting(4)), context.stream(), new_graph(context)
    said = [context.is_capturing(stream)]
    with stream, graph:
        x.add_(1)
        said.append(context.is_capturing(stream))
        said.append(context.is_capturing(context.current_stream()))
    said.append(context.is_capturing(stream))
    context.same(
        said,
        [False, True, True, False],
        "is_capturing() returned a wrong value; it was called before the capture, twice during it, and after it",
    )


@cases("graphs.capture_defers")
def is_capturing_elsewhere(context: CaseContext) -> None:
    """is_capturing() of a stream that takes no part in a capture is False during the capture."""
    x, (stream, other) = there(context, counting(4)), context.streams()
    with captured(context, stream):
        x.add_(1)
        said = context.is_capturing(other)
    context.same(said, False, "is_capturing() of a stream outside the capture is True")


@cases("graphs.nesting", over={"second_capture": (False,), "same_graph": (True,)})
def nested(context: CaseContext, same: bool) -> None:
    """A second capture_begin on a capturing stream raises an error, and the stream can capture again
    afterwards."""
    x, stream, outer = there(context, counting(4)), context.stream(), new_graph(context)
    inner = outer if same else new_graph(context)
    began = []

    def begin() -> None:
        x.add_(1)
        inner.capture_begin()
        began.append(inner)
        inner.capture_end()

    refusal(stream, outer, begin)
    context.check(not began, "a second capture_begin on a capturing stream did not raise an error")
    works(context, stream, "the stream could not capture after the second capture_begin")


#: The length of the tensors of captures that overlap: their blocks come from large segments.
_LONG = 2**19


@cases("graphs.nesting", requires={"streams"}, over={"overlapping_first_deleted": (0,), "overlapping_second_deleted": (1,)})  # fmt: skip
def overlapping(context: CaseContext, deleted: int) -> None:
    """A second capture begins on another stream while the first one is under way. It raises RuntimeError, and the device
    can capture afterwards; or each graph has its own work and its own memory, also once the other graph was deleted."""
    xs, streams = (
        [there(context, torch.full((1,), value)) for value in (1.0, 2.0)],
        context.streams(),
    )
    graphs = [new_graph(context) for _ in streams]
    sums: list[Any] = [None, None]
    fresh(context)
    try:
        for stream, graph in zip(streams, graphs):
            with stream:
                graph.capture_begin()
        for place in (0, 1, 0, 1):  # a block of each capture is freed while both go on
            with streams[place]:
                sums[place] = (xs[place].expand(_LONG) + place).sum()
        for stream, graph in zip(streams, graphs):
            with stream:
                graph.capture_end()
    except RuntimeError:
        for stream, graph in zip(streams, graphs):
            with suppress(RuntimeError), stream:
                graph.capture_end()
        text = (
            "the device could not capture after the second of two overlapping captures was refused"
        )
        works(context, context.stream(), text)
        return
    context.settle()
    wanted = [torch.tensor(1.0 * _LONG), torch.tensor(3.0 * _LONG)]
    for place in (1, 0):
        for each in sums:
            each.fill_(-1)
        context.settle()
        replay(context, graphs[place], stream=streams[place])
        context.equal(sums[place], wanted[place], "the replay of an overlapping capture is wrong")
        text = "the replay of an overlapping capture did the work of the other capture, too"
        context.equal(sums[1 - place], torch.tensor(-1.0), text)
    graphs[deleted].reset()
    sums[deleted] = None
    fresh(context)
    kept = 1 - deleted
    noise = []
    for stream in streams:
        with stream:
            noise += [torch.zeros(_LONG, device=context.device) for _ in range(4)]
    replay(context, graphs[kept], stream=streams[kept])
    context.equal(
        sums[kept],
        wanted[kept],
        "the replay is wrong after the graph of an overlapping capture was deleted",
    )
    text = "after the graph of an overlapping capture was deleted, a replay overwrote a tensor outside of the graph"
    for each in noise:
        context.equal(each, torch.zeros(_LONG), text)


@cases("graphs.nesting", requires={"streams", "graph_pools"})
def overlapping_in_one_pool(context: CaseContext) -> None:
    """While a capture is under way, a second one begins on another stream in the same memory pool. It may raise RuntimeError.
    Afterwards neither stream is capturing, and both can capture."""
    x, streams = there(context, counting(4)), context.streams()
    with captured(context, streams[0]) as first:
        x.add_(1)
    graphs = [new_graph(context, pool=first.pool()) for _ in streams]
    with suppress(RuntimeError):
        for stream, graph in zip(streams, graphs):
            with stream:
                graph.capture_begin()
                x.add_(1)
    for stream, graph in zip(streams, graphs):
        with suppress(RuntimeError), stream:
            graph.capture_end()
    found = [context.is_capturing(stream) for stream in streams]
    text = "is_capturing() of a stream is True after two captures in one memory pool have ended"
    context.same(found, [False, False], text)
    for stream in streams:
        works(context, stream, "a stream could not capture after two captures in one memory pool")


@cases("graphs.devices")
def empty_capture(context: CaseContext) -> None:
    """Capturing no work gives a warning, and the empty graph can be replayed. Capturing work gives no such warning."""
    x = there(context, counting(4))
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            with captured(context) as graph:
                pass
        with warnings.catch_warnings(record=True) as others:
            warnings.simplefilter("always")
            with captured(context):
                x.add_(1)
    finally:
        torch.set_warn_always(always)
    context.check(given, "an empty capture gave no warning")
    said = [str(each.message) for each in others if "empty" in str(each.message).lower()]
    context.same(said, [], "a capture of work gave a warning that it is empty")
    replay(context, graph)
    context.check(True, "an empty graph could not be replayed")


@cases("graphs.devices", indices=2)
def work_for_another_index(context: CaseContext) -> None:
    """Work on another device index during a capture either raises RuntimeError or runs immediately. The work is
    never lost."""
    x, other = there(context, counting(4)), there(context, counting(4), 1)
    graph = new_graph(context)
    refused, ended = refusal(context.stream(), graph, lambda: (x.add_(1), other.add_(10)))
    raised = refused or ended
    if raised is not None and not isinstance(raised, RuntimeError):
        raise raised
    context.settle()
    want = counting(4) if raised is not None else counting(4) + 10
    context.equal(
        other,
        want,
        "work on another device index was lost, or ran although the call raised an exception",
    )


@cases("graphs.devices", indices=2)
def capture_on_another_index(context: CaseContext) -> None:
    """A graph that was captured on the second device index runs on that index when it is replayed."""
    x = there(context, counting(4), 1)
    with context.on(1), captured(context, context.stream(1)) as graph:
        y = x * 3
    context.same(y.device, context.at(1), "the result is on the wrong device")
    with context.on(1):
        replay(context, graph, stream=context.stream(1))
    context.equal(y, counting(4) * 3, "the replay gave a wrong result")


@cases("graphs.devices", indices=2, over={"second_from_first": (1, 0), "first_from_second": (0, 1)})
def replayed_from_another_index(context: CaseContext, own: int, other: int) -> None:
    """A graph is replayed while another device index is current. The replay runs on the current stream of the
    graph's own index, in order with the work that was queued on that stream before and after the replay."""
    x, stream = there(context, counting(2**12), own), context.stream(own)
    with context.on(own), captured(context, stream) as graph:
        y = x * 3
    context.settle()
    with context.hold(stream, needed=False), stream:
        x.add_(1)
        with context.on(other):
            graph.replay()
        z = y + 1
        x.zero_()
    context.settle()
    context.same(y.device, context.at(own), "the result is on the wrong device")
    want = (counting(2**12) + 1) * 3
    context.equal(
        y, want, "the replay did not run in the order of the stream of its own device index"
    )
    context.equal(
        z, want + 1, "work that was queued after the replay did not see the replay's result"
    )


# This case runs in a subprocess, because on some devices the state after a refused call is undefined.
@cases("graphs.errors", own_process=True)
def waiting_is_refused(context: CaseContext) -> None:
    """During a capture, every call that would have to wait for captured work raises RuntimeError: item(),
    cpu(), bool(), nonzero() and all kinds of synchronize()."""
    x = there(context, counting(4))
    for name, call in WAITING.items():
        stream = context.stream()
        refused, _ = refusal(stream, new_graph(context), partial(_waits, call, x, stream))
        right = isinstance(refused, RuntimeError)
        context.check(right, f"{name} inside a capture did not raise RuntimeError", found=refused)


def _waits(call: Callable[..., Any], x: torch.Tensor, stream: Any) -> None:
    """Queues work that changes ``x``, and makes a call that waits for this work."""
    call(x.add_(1), stream)


@cases("graphs.errors")
def out_of_memory(context: CaseContext) -> None:
    """A request for too much memory during a capture raises torch.OutOfMemoryError, and the stream can capture
    again afterwards."""
    x, stream = there(context, counting(4)), context.stream()
    refused, _ = refusal(stream, new_graph(context), lambda: (x.add_(1), context.bytes_of(2**50)))
    right = isinstance(refused, torch.OutOfMemoryError)
    context.check(
        right,
        "a request for too much memory inside a capture did not raise torch.OutOfMemoryError",
        found=refused,
    )
    works(context, stream, "the stream could not capture after the request for too much memory")


@cases(
    "graphs.errors",
    over={"replay_before_capture": ("replay",), "end_without_begin": ("capture_end",)},
)
def before_capture(context: CaseContext, call: str) -> None:
    """replay() of a graph that has captured nothing raises RuntimeError, and so does capture_end() without
    capture_begin()."""
    with context.stream():
        text = f"{call}() before a capture did not raise RuntimeError"
        context.raises(RuntimeError, getattr(new_graph(context), call), text=text)


@cases("graphs.errors")
def default_stream(context: CaseContext) -> None:
    """If the descriptor declares captures_default_stream, capturing on the default stream works. If the descriptor does
    not declare it, capturing on the default stream raises RuntimeError."""
    x, graph = there(context, counting(4)), new_graph(context)
    made: list[torch.Tensor] = []
    (default,) = context.together(context.current_stream)  # the current stream of a new thread
    raised = broken(default, graph, lambda: made.append(x + 1))
    if context.descriptor.captures_default_stream:
        context.check(
            raised is None, "capturing on the default stream raised an exception", found=raised
        )
        replay(context, graph)
        context.equal(made[0], counting(4) + 1, "the replay gave a wrong result")
    else:
        context.check(
            isinstance(raised, RuntimeError),
            "capturing on the default stream did not raise RuntimeError",
        )
        works(
            context,
            context.stream(),
            "another stream could not capture after the attempt to capture on the default stream",
        )


@cases("graphs.recovery")
def error_of_the_program(context: CaseContext) -> None:
    """The user's code raises an exception inside a capture. The exception reaches the caller, directly or in
    the chain of another exception, and the stream can capture again afterwards."""
    x, stream, ours = (
        there(context, counting(4)),
        context.stream(),
        KeyError("an exception that this case raises itself"),
    )

    def work() -> None:
        x.add_(1)
        raise ours

    raised = broken(stream, new_graph(context), work)
    text = "the exception of the user's code was lost: it was neither raised nor in the chain of the raised exception"
    context.check(ours in chain(raised), text, found=raised)
    context.same(
        context.is_capturing(stream), False, "is_capturing() is True after a failed capture"
    )
    context.settle()
    context.equal(x, counting(4), "work of a failed capture ran")
    works(context, stream, "the stream could not capture after the exception of the user's code")


@cases("graphs.recovery")
def error_of_an_op(context: CaseContext) -> None:
    """An op with invalid arguments raises an exception inside a capture. The error message of the op reaches
    the caller, and the stream can capture again afterwards."""
    x, longer = there(context, counting(4)), there(context, counting(5))
    stream = context.stream()
    raised = broken(stream, new_graph(context), lambda: x.add_(1) + longer)
    said = [str(each) for each in chain(raised)]
    named = any("size" in each for each in said)
    context.check(named, "the error message of the op was lost", found=said)
    works(context, stream, "the stream could not capture after the exception of the op")


@cases("graphs.recovery", own_process=True, requires={"generator"})
def random_numbers(context: CaseContext) -> None:
    """A capture is ended by a call that is not allowed in captures. Afterwards the default generator draws the
    same numbers from a seed as before the capture."""
    x = there(context, counting(4))
    torch.manual_seed(5)
    want = torch.rand(8, device=context.device)
    for name, call in WAITING.items():
        stream = context.stream()
        raised = broken(stream, new_graph(context), partial(_waits, call, x, stream))
        context.must(raised is not None, f"{name} inside a capture did not raise an exception")
        torch.manual_seed(5)
        context.equal(
            torch.rand(8, device=context.device),
            want,
            f"after {name} ended a capture, the same seed gave different random numbers",
        )


@cases("graphs.recovery", own_process=True)
def invalidated_capture(context: CaseContext) -> None:
    """A capture is ended by a call that is not allowed in captures. Afterwards the same stream and another
    stream can capture, and no memory stays reserved."""
    x = there(context, counting(4))
    for name, call in WAITING.items():
        stream = context.stream()
        raised = broken(stream, new_graph(context), partial(_waits, call, x, stream))
        context.must(raised is not None, f"{name} inside a capture did not raise an exception")
        context.same(
            context.is_capturing(stream),
            False,
            f"is_capturing() is True after {name} ended the capture",
        )
        works(context, stream, f"the stream could not capture again after {name} ended a capture")
        works(
            context,
            context.stream(),
            f"another stream could not capture after {name} ended a capture",
        )
    if context.has("allocator_statistics"):
        fresh(context)
        before = context.counters().reserved
        context.bytes_of(48 * 2**20)
        fresh(context)
        text = "memory stayed reserved after empty_cache (in bytes)"
        context.same(context.counters().reserved - before, 0, text)


MODES = ("default", "global", "thread_local", "relaxed")


def _asks_for_a_segment(context: CaseContext) -> bool:
    """Returns True if a request that needs a new segment succeeds on a new stream of the calling thread."""
    try:
        with context.stream():
            context.bytes_of(48 * 2**20)
    except RuntimeError:
        return False
    return True


@cases("graphs.modes", over={f"{mode}_tolerates": (mode,) for mode in MODES[2:]})
def tolerated(context: CaseContext, mode: str) -> None:
    """In the capture modes thread_local and relaxed, another thread allocates a new segment during a capture.
    The allocation succeeds, and the capture continues."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, capture_error_mode=mode)) as graph:
        y = x + 1
        (given,) = context.together(lambda: _asks_for_a_segment(context))
        z = y * 2
    context.check(given, "another thread could not allocate during the capture")
    give(context, x, counting(4, start=3))
    replay(context, graph)
    context.equal(z, (counting(4, start=3) + 1) * 2, "the captured graph gave a wrong result")


@cases("graphs.modes", own_process=True)
def refused(context: CaseContext) -> None:
    """In the capture mode global, another thread allocates a new segment during a capture. The allocation or
    the capture fails."""
    x, given = there(context, counting(4)), [True]

    def work() -> None:
        x.add_(1)
        given[:] = context.together(lambda: _asks_for_a_segment(context))

    raised = broken(context.stream(), new_graph(context, capture_error_mode="global"), work)
    ended = isinstance(raised, RuntimeError)
    context.check(
        given == [False] or ended,
        "neither the allocation of the other thread nor the capture failed",
        found=raised,
    )


@cases("graphs.modes")
def unknown_mode(context: CaseContext) -> None:
    """capture_begin with an unknown capture_error_mode raises ValueError, RuntimeError or TypeError, and the
    device can capture afterwards."""

    def begin() -> None:
        new_graph(context, capture_error_mode="everything").capture_begin()

    errors, text = (
        (ValueError, RuntimeError, TypeError),
        "capture_error_mode='everything' did not raise the documented exception",
    )
    with context.stream():
        context.raises(errors, begin, text=text)
    works(
        context,
        context.stream(),
        "the device could not capture after capture_begin with an unknown capture_error_mode",
    )


@cases("graphs.modes", over={f"{mode}_alone": (mode,) for mode in MODES})
def alone(context: CaseContext, mode: str) -> None:
    """A capture works in each capture_error_mode if no other work uses the device."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, capture_error_mode=mode)) as graph:
        y = x * 5
    replay(context, graph)
    context.equal(y, counting(4) * 5, "the replay gave a wrong result")
