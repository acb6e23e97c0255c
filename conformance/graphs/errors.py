"""graphs.errors, graphs.recovery, graphs.modes: what a capture refuses, and how the device goes on."""

from __future__ import annotations

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.graphs.capturing import (
    WAITING,
    captured,
    chain,
    counting,
    give,
    new_graph,
    replay,
    there,
    works,
)

cases = Cases()

MIB = 2**20


# What a refused call leaves behind is undefined on some devices: in a process of its own.
@cases("graphs.errors", own_process=True)
def waiting_is_refused(context: Context) -> None:
    """Every call that would wait for recorded work raises while capturing."""
    x = there(context, counting(4))
    for name, call in WAITING.items():
        stream, graph = context.stream(), new_graph(context)
        raised: Exception | None = None
        try:
            with stream, graph:
                x.add_(1)
                try:
                    call(context, x, stream)
                except Exception as error:
                    raised = error
        except RuntimeError:
            pass  # the capture did not survive
        context.check(isinstance(raised, RuntimeError), f"{name} raises RuntimeError", got=raised)


@cases("graphs.errors")
def out_of_memory(context: Context) -> None:
    """A request that cannot be met raises OutOfMemoryError while capturing, as it does elsewhere."""
    x, stream, graph = there(context, counting(4)), context.stream(), new_graph(context)
    raised: Exception | None = None
    try:
        with stream, graph:
            x.add_(1)
            try:
                context.bytes_of(2**50)
            except Exception as error:
                raised = error
    except RuntimeError:
        pass
    context.check(
        isinstance(raised, torch.OutOfMemoryError), "it raises OutOfMemoryError", got=raised
    )
    works(context, stream, "the stream captures again")


@cases("graphs.errors")
def replay_before_capture(context: Context) -> None:
    """A graph that holds nothing refuses to be replayed."""
    graph = new_graph(context)
    context.raises(RuntimeError, graph.replay, text="replay before a capture raises")


@cases("graphs.errors")
def end_without_begin(context: Context) -> None:
    """capture_end without capture_begin raises."""
    graph = new_graph(context)
    with context.stream():
        context.raises(RuntimeError, graph.capture_end, text="capture_end without a begin raises")


@cases("graphs.errors")
def default_stream(context: Context) -> None:
    """A capture on the default stream is refused where that is declared, and works where it is not."""
    x, graph = there(context, counting(4)), new_graph(context)
    raised: Exception | None = None
    (default,) = context.together(context.current_stream)  # a new thread's current stream
    try:
        with default, graph:
            y = x + 1
    except RuntimeError as error:
        raised = error
    if context.descriptor.captures_default_stream:
        context.check(raised is None, "the default stream is captured", got=raised)
        replay(context, graph)
        context.equal(y, counting(4) + 1, "the replay's result")
    else:
        context.check(raised is not None, "the default stream is refused")
        works(context, context.stream(), "another stream captures")


class OfTheProgram(Exception):
    """Raised inside a capture, by nobody else."""


@cases("graphs.recovery")
def error_of_the_program(context: Context) -> None:
    """An exception inside a capture is raised or stands behind what is; then the device captures again."""
    x, stream, graph = there(context, counting(4)), context.stream(), new_graph(context)
    raised: BaseException | None = None
    try:
        with stream, graph:
            x.add_(1)
            raise OfTheProgram
    except Exception as error:
        raised = error
    context.check(
        any(isinstance(each, OfTheProgram) for each in chain(raised)),
        "the program's own exception is raised, or stands in its __context__",
        got=raised,
    )
    context.same(stream.is_capturing(), False, "is_capturing afterwards")
    context.settle()
    context.equal(x, counting(4), "what was recorded did not run")
    works(context, stream, "the stream captures again")


@cases("graphs.recovery")
def error_of_an_op(context: Context) -> None:
    """The same of an op that refuses its arguments."""
    x, longer = there(context, counting(4)), there(context, counting(5))
    stream, graph = context.stream(), new_graph(context)
    raised: BaseException | None = None
    try:
        with stream, graph:
            x.add_(1)
            x + longer
    except Exception as error:
        raised = error
    said = [str(each) for each in chain(raised)]
    context.check(any("size" in each for each in said), "the op's own error is told", got=said)
    works(context, stream, "the stream captures again")


@cases("graphs.recovery", own_process=True)
def invalidated_capture(context: Context) -> None:
    """After a refused call has ended a capture the same stream captures, and so does another one."""
    x = there(context, counting(4))
    for name, call in WAITING.items():
        stream, graph = context.stream(), new_graph(context)
        raised: BaseException | None = None
        try:
            with stream, graph:
                x.add_(1)
                call(context, x, stream)
        except Exception as error:
            raised = error
        context.must(raised is not None, f"{name} was refused")
        context.same(stream.is_capturing(), False, f"is_capturing after {name}")
        works(context, stream, f"after {name} the same stream captures again")
        works(context, context.stream(), f"after {name} another stream captures")


# Modes


def _asks_for_a_segment(context: Context) -> bool:
    """Whether a request that no cached memory can meet is met on a stream of this thread."""
    try:
        with context.stream():
            context.bytes_of(48 * MIB)
    except RuntimeError:
        return False
    return True


@cases("graphs.modes", over={f"{mode}_tolerates": (mode,) for mode in ("thread_local", "relaxed")})
def tolerated(context: Context, mode: str) -> None:
    """While another thread is given a fresh segment, the capture goes on."""
    x, stream = there(context, counting(4)), context.stream()
    graph = new_graph(context, capture_error_mode=mode)
    with stream, graph:
        y = x + 1
        (given,) = context.together(lambda: _asks_for_a_segment(context))
        z = y * 2
    context.check(given, "another thread is given a segment")
    give(context, x, counting(4, start=3))
    replay(context, graph)
    context.equal(z, (counting(4, start=3) + 1) * 2, "the graph is whole")


@cases("graphs.modes", own_process=True)
def refused(context: Context) -> None:
    """In mode global another thread's request of a fresh segment is refused, or ends the capture."""
    x, stream = there(context, counting(4)), context.stream()
    graph, given, ended = new_graph(context, capture_error_mode="global"), True, False
    try:
        with stream, graph:
            x.add_(1)
            (given,) = context.together(lambda: _asks_for_a_segment(context))
    except RuntimeError:
        ended = True
    context.check(not given or ended, "the request, or the capture, fails")


@cases("graphs.modes")
def unknown_mode(context: Context) -> None:
    """A mode that is none is refused."""
    with context.stream():
        context.raises(
            (ValueError, RuntimeError, TypeError),
            lambda: new_graph(context, capture_error_mode="everything").capture_begin(),
            text="capture_error_mode='everything' raises",
        )
    works(context, context.stream(), "the device captures afterwards")


@cases(
    "graphs.modes",
    over={f"{mode}_alone": (mode,) for mode in ("default", "global", "thread_local", "relaxed")},
)
def alone(context: Context, mode: str) -> None:
    """With nobody else about, every mode captures."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, capture_error_mode=mode)) as graph:
        y = x * 5
    replay(context, graph)
    context.equal(y, counting(4) * 5, "the replay's result")
