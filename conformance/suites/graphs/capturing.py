"""What the cases of graphs share: making graphs, capturing a block, replaying, calls that a capture refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.checks.cases.context import Context


class OwnGraph:
    """A graph of the device's own module, with the interface of ``torch.accelerator.Graph``: ``wants`` are its
    ``pool`` and ``capture_error_mode``."""

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
    """``torch.accelerator.Graph``. Where it does not serve the device: None, or its error if it is ``required``."""
    general: Any = getattr(torch.accelerator, "Graph", None)  # older torch has none
    try:
        return general and general(*given, **wants)
    except RuntimeError:  # nothing is registered for the device
        if required:
            raise
    return None


def new_graph(context: Context, *, keep_graph: bool = False, **wants: Any) -> Any:
    """``torch.accelerator.Graph``; where it does not serve the device, the class of the device's own module that
    the descriptor names."""
    general = general_graph("graph" not in context.descriptor.functions, keep_graph, **wants)
    return OwnGraph(context.own("graph")(keep_graph), **wants) if general is None else general


@contextmanager
def captured(context: Context, stream: Any = None, graph: Any = None) -> Iterator[Any]:
    """What the block queues on a stream, of its own where none is given, as a graph."""
    made = new_graph(context) if graph is None else graph
    with context.stream() if stream is None else stream, made:
        yield made


def broken(stream: Any, graph: Any, work: Callable[[], Any]) -> Exception | None:
    """What capturing this work raises."""
    try:
        with stream, graph:
            work()
    except Exception as error:
        return error
    return None


def refusal(stream: Any, graph: Any, call: Callable[[], Any]) -> tuple[Any, Any]:
    """What a call raises inside a capture, and the RuntimeError with which the capture then ends: whether it
    survives the refusal is the backend's choice."""
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


def replay(context: Context, graph: Any, times: int = 1, stream: Any = None) -> None:
    """Replay on a stream, and wait."""
    with context.stream() if stream is None else stream:
        for _ in range(times):
            graph.replay()
    context.settle()


def counting(*shape: int, start: int = 0) -> torch.Tensor:
    """start, start + 1, ... as float32 on the CPU."""
    return torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def there(context: Context, values: torch.Tensor, index: int = 0) -> torch.Tensor:
    """The values on the device, when nothing is queued any more: as a capture finds them."""
    made = context.to_device(values, index)
    context.settle()
    return made


def give(context: Context, target: torch.Tensor, values: torch.Tensor) -> None:
    """New contents for a static input, when nothing is queued any more."""
    target.copy_(context.to_device(values, target.device.index))
    context.settle()


def works(context: Context, stream: Any, text: str) -> None:
    """A check that a stream captures and replays: after something went wrong there."""
    x = there(context, counting(4))
    with captured(context, stream) as graph:
        y = x * 2
    give(context, x, counting(4, start=5))
    replay(context, graph, stream=stream)
    context.equal(y, counting(4, start=5) * 2, text)


def chain(error: BaseException | None) -> list[BaseException]:
    """An exception and what caused it: ``__context__`` and ``__cause__``."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


#: Calls that wait for work of the capturing stream, which does not run.
WAITING: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "item": lambda x, stream: x.sum().item(),
    "copy_to_the_host": lambda x, stream: x.cpu(),
    "truth": lambda x, stream: bool(x[0] > 0),
    "shape_of_values": lambda x, stream: x.nonzero(),
    "synchronize_stream": lambda x, stream: stream.synchronize(),
    "synchronize_device": lambda x, stream: torch.accelerator.synchronize(x.device),
    "synchronize_event": lambda x, stream: stream.record_event().synchronize(),
}
