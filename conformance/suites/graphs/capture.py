"""What a capture takes and refuses, and how graphs live and die."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.allocator.memory import fresh
from conformance.suites.graphs.capturing import (
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
from devices.failure import Kind

cases = Cases(Kind.VALUES)

WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in_place": lambda x: x.add_(1),
    "out": lambda x: torch.add(x, 1, out=x),
    "copy": lambda x: x.copy_(torch.full_like(x, 9.0)),
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
    said = [context.is_capturing(stream)]
    with stream, graph:
        x.add_(1)
        said.append(context.is_capturing(stream))
        said.append(context.is_capturing(context.current_stream()))
    said.append(context.is_capturing(stream))
    context.same(said, [False, True, True, False], "is_capturing before, twice during and after")


@cases("graphs.capture_defers")
def is_capturing_elsewhere(context: Context) -> None:
    """A stream outside of a capture does not say that it is capturing."""
    x, (stream, other) = there(context, counting(4)), context.streams()
    with captured(context, stream):
        x.add_(1)
        said = context.is_capturing(other)
    context.same(said, False, "is_capturing of another stream")


@cases("graphs.nesting", over={"second_capture": (False,), "same_graph": (True,)})
def nested(context: Context, same: bool) -> None:
    """A second capture_begin on the capturing stream raises, and the stream captures again afterwards."""
    x, stream, outer = there(context, counting(4)), context.stream(), new_graph(context)
    inner = outer if same else new_graph(context)
    began = []

    def begin() -> None:
        x.add_(1)
        inner.capture_begin()
        began.append(inner)
        inner.capture_end()

    refusal(stream, outer, begin)
    context.check(not began, "capture_begin on a capturing stream raises")
    works(context, stream, "the stream captures again")


@cases("graphs.devices")
def empty_capture(context: Context) -> None:
    """A capture that recorded nothing warns."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
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
    graph = new_graph(context)
    refused, ended = refusal(context.stream(), graph, lambda: (x.add_(1), other.add_(10)))
    raised = refused or ended
    if raised is not None and not isinstance(raised, RuntimeError):
        raise raised
    context.settle()
    want = counting(4) if raised is not None else counting(4) + 10
    context.equal(other, want, "work for another index raises and does nothing, or is done")


@cases("graphs.devices", indices=2)
def capture_on_another_index(context: Context) -> None:
    """A graph that is captured on the second index holds that index's work, wherever it is replayed."""
    x = there(context, counting(4), 1)
    with context.on(1), captured(context, context.stream(1)) as graph:
        y = x * 3
    context.same(y.device, context.at(1), "the result's device")
    with context.on(1):
        replay(context, graph, stream=context.stream(1))
    context.equal(y, counting(4) * 3, "the replay's result")


@cases("graphs.devices", indices=2, over={"second_from_first": (1, 0), "first_from_second": (0, 1)})
def replayed_from_another_index(context: Context, own: int, other: int) -> None:
    """A replay while another index is current is part of the current stream of the graph's own index, in its order."""
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
    context.same(y.device, context.at(own), "the result's device")
    want = (counting(2**12) + 1) * 3
    context.equal(y, want, "the replay sees the work before it, and not the work after it")
    context.equal(z, want + 1, "the work after the replay sees its result")


# The state after a refused call is undefined on some devices, so this runs in a subprocess.
@cases("graphs.errors", own_process=True)
def waiting_is_refused(context: Context) -> None:
    """Every call that would wait for recorded work raises while capturing."""
    x = there(context, counting(4))
    for name, call in WAITING.items():
        stream = context.stream()
        refused, _ = refusal(stream, new_graph(context), partial(_waits, call, x, stream))
        right = isinstance(refused, RuntimeError)
        context.check(right, f"{name} raises RuntimeError", found=refused)


def _waits(call: Callable[..., Any], x: torch.Tensor, stream: Any) -> None:
    """Queue work, and call what waits for it."""
    call(x.add_(1), stream)


@cases("graphs.errors")
def out_of_memory(context: Context) -> None:
    """A request that cannot be met raises OutOfMemoryError while capturing, as it does elsewhere."""
    x, stream = there(context, counting(4)), context.stream()
    refused, _ = refusal(stream, new_graph(context), lambda: (x.add_(1), context.bytes_of(2**50)))
    right = isinstance(refused, torch.OutOfMemoryError)
    context.check(right, "it raises OutOfMemoryError", found=refused)
    works(context, stream, "the stream captures again")


@cases(
    "graphs.errors",
    over={"replay_before_capture": ("replay",), "end_without_begin": ("capture_end",)},
)
def before_capture(context: Context, call: str) -> None:
    """A graph that holds nothing refuses to be replayed, and capture_end without capture_begin raises."""
    with context.stream():
        text = f"{call} before a capture raises"
        context.raises(RuntimeError, getattr(new_graph(context), call), text=text)


@cases("graphs.errors")
def default_stream(context: Context) -> None:
    """A capture on the default stream is refused if the descriptor says so, and works otherwise."""
    x, graph = there(context, counting(4)), new_graph(context)
    made: list[torch.Tensor] = []
    (default,) = context.together(context.current_stream)  # a new thread's current stream
    raised = broken(default, graph, lambda: made.append(x + 1))
    if context.descriptor.captures_default_stream:
        context.check(raised is None, "the default stream is captured", found=raised)
        replay(context, graph)
        context.equal(made[0], counting(4) + 1, "the replay's result")
    else:
        context.check(isinstance(raised, RuntimeError), "the default stream is refused")
        works(context, context.stream(), "another stream captures")


@cases("graphs.recovery")
def error_of_the_program(context: Context) -> None:
    """An exception inside a capture is raised, or is the cause of what is; then the device captures again."""
    x, stream, ours = there(context, counting(4)), context.stream(), KeyError("of the program")

    def work() -> None:
        x.add_(1)
        raise ours

    raised = broken(stream, new_graph(context), work)
    text = "the program's own exception is raised, or stands in its __context__"
    context.check(ours in chain(raised), text, found=raised)
    context.same(context.is_capturing(stream), False, "is_capturing afterwards")
    context.settle()
    context.equal(x, counting(4), "what was recorded did not run")
    works(context, stream, "the stream captures again")


@cases("graphs.recovery")
def error_of_an_op(context: Context) -> None:
    """The same of an op that refuses its arguments."""
    x, longer = there(context, counting(4)), there(context, counting(5))
    stream = context.stream()
    raised = broken(stream, new_graph(context), lambda: x.add_(1) + longer)
    said = [str(each) for each in chain(raised)]
    named = any("size" in each for each in said)
    context.check(named, "the op's own error is reported", found=said)
    works(context, stream, "the stream captures again")


@cases("graphs.recovery", own_process=True, requires={"generator"})
def random_numbers(context: Context) -> None:
    """After a refused call has ended a capture, the default generator gives what it gave before with the same seed."""
    x = there(context, counting(4))
    torch.manual_seed(5)
    want = torch.rand(8, device=context.device)
    for name, call in WAITING.items():
        stream = context.stream()
        raised = broken(stream, new_graph(context), partial(_waits, call, x, stream))
        context.must(raised is not None, f"{name} was refused")
        torch.manual_seed(5)
        context.equal(torch.rand(8, device=context.device), want, f"numbers drawn after {name}")


@cases("graphs.recovery", own_process=True)
def invalidated_capture(context: Context) -> None:
    """After a refused call has ended a capture the same stream captures, and so does another one."""
    x = there(context, counting(4))
    for name, call in WAITING.items():
        stream = context.stream()
        raised = broken(stream, new_graph(context), partial(_waits, call, x, stream))
        context.must(raised is not None, f"{name} was refused")
        context.same(context.is_capturing(stream), False, f"is_capturing after {name}")
        works(context, stream, f"after {name} the same stream captures again")
        works(context, context.stream(), f"after {name} another stream captures")
    if context.has("allocator_statistics"):
        fresh(context)
        before = context.counters().reserved
        context.bytes_of(48 * 2**20)
        fresh(context)
        text = "bytes that stay reserved when the cache is emptied afterwards"
        context.same(context.counters().reserved - before, 0, text)


MODES = ("default", "global", "thread_local", "relaxed")


def _asks_for_a_segment(context: Context) -> bool:
    """Whether a request that no cached memory can meet is met on a stream of this thread."""
    try:
        with context.stream():
            context.bytes_of(48 * 2**20)
    except RuntimeError:
        return False
    return True


@cases("graphs.modes", over={f"{mode}_tolerates": (mode,) for mode in MODES[2:]})
def tolerated(context: Context, mode: str) -> None:
    """While another thread is given a fresh segment, the capture goes on."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, capture_error_mode=mode)) as graph:
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
    x, given = there(context, counting(4)), [True]

    def work() -> None:
        x.add_(1)
        given[:] = context.together(lambda: _asks_for_a_segment(context))

    raised = broken(context.stream(), new_graph(context, capture_error_mode="global"), work)
    ended = isinstance(raised, RuntimeError)
    context.check(given == [False] or ended, "the request, or the capture, fails", found=raised)


@cases("graphs.modes")
def unknown_mode(context: Context) -> None:
    """An unknown mode is refused."""

    def begin() -> None:
        new_graph(context, capture_error_mode="everything").capture_begin()

    errors, text = (ValueError, RuntimeError, TypeError), "capture_error_mode='everything' raises"
    with context.stream():
        context.raises(errors, begin, text=text)
    works(context, context.stream(), "the device captures afterwards")


@cases("graphs.modes", over={f"{mode}_alone": (mode,) for mode in MODES})
def alone(context: Context, mode: str) -> None:
    """Without other users of the device, every mode captures."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, capture_error_mode=mode)) as graph:
        y = x * 5
    replay(context, graph)
    context.equal(y, counting(4) * 5, "the replay's result")


@cases("graphs.lifecycle", over={"kept": (False,), "kept_and_instantiated": (True,)})
def keep_graph(context: Context, ask: bool) -> None:
    """A kept graph is instantiated on request, or by its first replay."""
    x = there(context, counting(4))
    with captured(context, graph=new_graph(context, keep_graph=True)) as graph:
        x.add_(1)
    if ask:
        graph.instantiate()
    replay(context, graph, times=2)
    context.equal(x, counting(4) + 2, "two replays")


@cases("graphs.lifecycle")
def reset(context: Context) -> None:
    """After reset a graph holds nothing, and refuses to be replayed."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
    graph.reset()
    with context.stream():
        context.raises(RuntimeError, graph.replay, text="replay after reset raises")
    context.settle()
    context.equal(x, counting(4), "nothing was done")


@cases("graphs.lifecycle")
def captured_again(context: Context) -> None:
    """After reset a graph is captured again, and replays only the new work."""
    x = there(context, counting(4))
    with captured(context) as graph:
        x.add_(1)
    replay(context, graph)
    graph.reset()
    with captured(context, graph=graph):
        x.mul_(3)
    replay(context, graph, times=2)
    context.equal(x, (counting(4) + 1) * 9, "the new work, twice")


@cases("graphs.lifecycle", over={"destroyed_while_queued": (False,)}, requires={"streams"})
@cases("graphs.lifecycle", over={"reset_while_queued": (True,)}, requires={"streams"})
def destroyed_while_queued(context: Context, reset: bool) -> None:
    """What is queued of a graph is done, though the graph is gone by then; its memory is not reused before."""
    x, stream = there(context, counting(4096)), context.stream()
    with captured(context, stream) as graph:
        y = x * 2
        x.add_(y)
    del y
    context.settle()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        if reset:
            graph.reset()
        del graph
        noise = [torch.zeros(4096, device=context.device) for _ in range(4)]
    context.settle()
    context.equal(x, counting(4096) * 3, "the queued replay")
    for each in noise:
        context.equal(each, torch.zeros(4096), "what was allocated in between")


@cases("graphs.lifecycle", requires={"streams"})
def random_while_queued(context: Context) -> None:
    """What is queued of a graph draws its random numbers, though the graph is gone by then."""
    x, stream = there(context, torch.zeros(4096)), context.stream()
    x.uniform_().zero_()
    with captured(context, stream) as graph:
        x.uniform_(1, 2)
    context.settle()
    with context.hold(stream, needed=False), stream:
        graph.replay()
        del graph
        noise = [torch.zeros(4096, device=context.device) for _ in range(4)]
    context.settle()
    drawn = context.from_device(x)
    text = "the queued replay has drawn numbers from 1 to 2"
    context.check(bool(((drawn >= 1) & (drawn <= 2)).all()), text, found=drawn[:4].tolist())
    for each in noise:
        context.equal(each, torch.zeros(4096), "what was allocated in between")


@cases("graphs.lifecycle")
def debug_dump(context: Context) -> None:
    """debug_dump writes a file where debugging was enabled before the capture."""
    x, graph = there(context, counting(4)), new_graph(context)
    graph.enable_debug_mode()
    with captured(context, graph=graph):
        x.add_(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        graph.debug_dump(str(path))
        context.check(path.is_file() and path.stat().st_size > 0, "debug_dump writes a file")
    replay(context, graph)
    context.equal(x, counting(4) + 1, "the graph can still be replayed")


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


#: Functions, and how many arguments they take.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "one_argument": (_square, 1),
    "two_of_each": (lambda x, y: (x * y, x - y), 2),
    "unused_input": (lambda x, y: x * 3, 2),
}


def _gradients(
    context: Context, function: Callable[..., Any], values: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The results, and the gradients of their sum, weighted differently."""
    given = [context.to_device(each).requires_grad_() for each in values]
    results = function(*given)
    several = results if isinstance(results, tuple) else (results,)
    total: Any = sum((each * (place + 2)).sum() for place, each in enumerate(several))
    total.backward()
    context.settle()
    return [*(each.detach() for each in several), *(each.grad for each in given)]


def _compared(
    context: Context,
    graphed: Callable[..., Any],
    eager: Callable[..., Any],
    values: list[torch.Tensor],
) -> None:
    """A check that both give the same results and gradients for these values."""
    got, want = (_gradients(context, function, values) for function in (graphed, eager))
    for place, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine is not None and theirs is not None:
            context.equal(mine, theirs, f"result or gradient {place}")
            continue
        zero = theirs is None or not context.from_device(theirs).any()
        context.check(mine is None and zero, f"result or gradient {place} is none, as eagerly")


@cases("graphs.callables", over={name: (name,) for name in FUNCTIONS})
def a_function(context: Context, name: str) -> None:
    """A graphed function gives the eager results and gradients, call after call."""
    function, count = FUNCTIONS[name]
    sample = tuple(context.to_device(counting(4, start=1)).requires_grad_() for _ in range(count))
    unused = name == "unused_input"
    graphed = context.own("graph_callables")(function, sample, allow_unused_input=unused)
    for step in range(3):
        values = [counting(4, start=step + place) for place in range(count)]
        _compared(context, graphed, function, values)


def _module(context: Context) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with torch.no_grad():
        for place, each in enumerate(made.parameters()):
            each.copy_((counting(*each.shape, start=place) % 5 - 2) / 4)
    return made.to(context.device)


@cases("graphs.callables")
def a_module(context: Context) -> None:
    """A graphed module trains as the eager one does."""
    eager, source = _module(context), _module(context)
    graphed = context.own("graph_callables")(source, (context.to_device(counting(2, 4)),))
    for step in range(3):
        x = context.to_device(counting(2, 4, start=step))
        for each in (eager, graphed):
            each.zero_grad()
            (each(x) * (step + 1)).sum().backward()
        context.settle()
        for (name, mine), theirs in zip(graphed.named_parameters(), eager.parameters()):
            got, want = mine.grad, theirs.grad
            context.check(got is not None and want is not None, f"{name} has a gradient")
            if got is not None and want is not None:
                context.equal(got, want, f"the gradient of {name}, step {step}")
        with torch.no_grad():
            for each in (*graphed.parameters(), *eager.parameters()):
                each.sub_(each.grad, alpha=0.125)


@cases("graphs.callables", requires={"autocast"})
def under_autocast(context: Context) -> None:
    """A module graphed under autocast, without its cache, gives what it gives eagerly there."""
    eager, source, x = _module(context), _module(context), context.to_device(counting(2, 4))
    with torch.autocast(context.kind, dtype=torch.bfloat16, cache_enabled=False):
        graphed = context.own("graph_callables")(source, (x,))
        for step in range(2):
            given = context.to_device(counting(2, 4, start=step))
            got, want = graphed(given), eager(given)
            context.settle()
            context.same(got.dtype, torch.bfloat16, "the dtype of the result")
            context.equal(got, want, f"the result of call {step}")


@cases("graphs.callables")
def several(context: Context) -> None:
    """Callables that are graphed together are called one after another, as they would be eagerly."""
    samples = tuple((context.to_device(counting(4)).requires_grad_(),) for _ in range(2))
    first, second = context.own("graph_callables")((_square, _square), samples)
    for step in range(2):
        values = [counting(4, start=step)]
        _compared(context, lambda x: second(first(x)), lambda x: _square(_square(x)), values)
