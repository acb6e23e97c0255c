"""Functions that the graph cases share: they make graphs, capture and replay work, and make calls that a
capture must refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.checks.cases.context import CaseContext


class OwnGraph:
    """Gives a graph class of the device's own module the interface of ``torch.accelerator.Graph``. ``wants`` are the
    arguments ``pool`` and ``capture_error_mode`` of the capture."""

    def __init__(self, made: Any, **wants: Any) -> None:
        self._made = made
        self._wants = {name: value for name, value in wants.items() if value != "default"}

    def capture_begin(self) -> None:
        self._made.capture_begin(**self._wants)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        self.capture_begin()

    def __exit__(self, *error: object) -> None:
        self._made.capture_end()


def general_graph(required: bool, *given: Any, **wants: Any) -> Any:
    """Returns a ``torch.accelerator.Graph``, created with the arguments ``given`` and ``wants``; None if torch has no
    graphs for the device. If ``required`` is True, raises torch's error instead of returning None."""
    general: Any = getattr(torch.accelerator, "Graph", None)  # missing in older versions of torch
    try:
        return general and general(*given, **wants)
    except RuntimeError:  # no graph implementation is registered for the device
        if required:
            raise
    return None


def new_graph(context: CaseContext, *, keep_graph: bool = False, **wants: Any) -> Any:
    """Returns a new ``torch.accelerator.Graph``. If torch has no graphs for the device, returns a graph of the
    class that the descriptor names."""
    general = general_graph("graph" not in context.descriptor.functions, keep_graph, **wants)
    return OwnGraph(context.own("graph")(keep_graph), **wants) if general is None else general


@contextmanager
def captured(context: CaseContext, stream: Any = None, graph: Any = None) -> Iterator[Any]:
    """Captures the work in the ``with`` block as a graph, on the given stream or on a new stream, and yields
    the graph."""
    made = new_graph(context) if graph is None else graph
    with context.stream() if stream is None else stream, made:
        yield made


def broken(stream: Any, graph: Any, work: Callable[[], Any]) -> Exception | None:
    """Captures the calls that ``work`` makes on a stream as a graph. Returns the exception that ``work`` or the capture
    raised, or None if there was none."""
    try:
        with stream, graph:
            work()
    except Exception as error:
        return error
    return None


def refusal(stream: Any, graph: Any, call: Callable[[], Any]) -> tuple[Any, Any]:
    """Makes a call during the capture of a graph on a stream. Returns two exceptions: the one that the call raised, and
    the RuntimeError with which the capture ended; None for an exception that did not occur. The backend may choose
    whether a capture continues after a refused call."""
    refused = None
    try:
        with stream, graph:
            try:
                call()
            except Exception as error:
                refused = error
    except RuntimeError as error:
        return refused, error
    return refused, None


def replay(context: CaseContext, graph: Any, times: int = 1, stream: Any = None) -> None:
    """Replays a graph on the given stream or on a new stream, and waits until the replays have finished."""
    with context.stream() if stream is None else stream:
        for _ in range(times):
            graph.replay()
    context.settle()


def counting(*shape: int, start: int = 0) -> torch.Tensor:
    """Returns a float32 CPU tensor with the values start, start + 1, ..."""
    return torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def there(context: CaseContext, values: torch.Tensor, index: int = 0) -> torch.Tensor:
    """Copies a tensor to the device and waits for the copy, so that no work is queued when a capture begins."""
    made = context.to_device(values, index)
    context.settle()
    return made


def give(context: CaseContext, target: torch.Tensor, values: torch.Tensor) -> None:
    """Copies new values into an input tensor of a graph and waits for the copy."""
    target.copy_(context.to_device(values, target.device.index))
    context.settle()


def works(context: CaseContext, stream: Any, text: str) -> None:
    """Checks that a stream can still capture a graph and replay it, after an error on the stream. ``text`` is the
    message of the failure."""
    x = there(context, counting(4))
    with captured(context, stream) as graph:
        y = x * 2
    give(context, x, counting(4, start=5))
    replay(context, graph, stream=stream)
    context.equal(y, counting(4, start=5) * 2, text)


def chain(error: BaseException | None) -> list[BaseException]:
    """Returns an exception and the exceptions in its chain of ``__cause__`` and ``__context__``."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


#: Calls that wait for work of the capturing stream, which does not run during the capture.
WAITING: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "item": lambda x, stream: x.sum().item(),
    "copy_to_the_host": lambda x, stream: x.cpu(),
    "truth": lambda x, stream: bool(x[0] > 0),
    "shape_of_values": lambda x, stream: x.nonzero(),
    "synchronize_stream": lambda x, stream: stream.synchronize(),
    "synchronize_device": lambda x, stream: torch.accelerator.synchronize(x.device),
    "synchronize_event": lambda x, stream: stream.record_event().synchronize(),
}
