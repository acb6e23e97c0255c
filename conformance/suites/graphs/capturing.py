"""What the cases of graphs share: making graphs, capturing a block, replaying, calls that a capture refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from conformance.checks.cases.context import Context


class OwnGraph:
    """A graph of the device's own module, with the interface of ``torch.accelerator.Graph``."""

    def __init__(
        self,
        made: Any,
        *,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "default",
    ) -> None:
        self._made = made
        self._wants = {} if pool is None else {"pool": pool}
        if capture_error_mode != "default":
            self._wants["capture_error_mode"] = capture_error_mode  # type: ignore[assignment]

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


def new_graph(context: Context, *, keep_graph: bool = False, **wants: Any) -> Any:
    """``torch.accelerator.Graph``; where it does not serve the device, the class of the device's own module that
    the descriptor names."""
    general: Any = getattr(torch.accelerator, "Graph", None)  # older torch has none
    own = "graph" in context.descriptor.functions
    if general is not None:
        try:
            return general(keep_graph, **wants)
        except RuntimeError:  # nothing is registered for the device
            if not own:
                raise
    return OwnGraph(context.own("graph")(keep_graph), **wants)


@contextmanager
def captured(context: Context, stream: Any = None, graph: Any = None) -> Iterator[Any]:
    """What the block queues on a stream, of its own where none is given, as a graph."""
    made = new_graph(context) if graph is None else graph
    with context.stream() if stream is None else stream, made:
        yield made


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


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First address, and the one after the last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlaps(one: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether an address range shares a byte with any of the others."""
    return any(one[0] < end and start < one[1] for start, end in others)


def works(context: Context, stream: Any, text: str) -> None:
    """A check that a stream captures and replays: after something went wrong there."""
    x = there(context, counting(4))
    graph = new_graph(context)
    with stream, graph:
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


def _event(ask: Callable[[Any], Any]) -> Callable[[Context, torch.Tensor, Any], Any]:
    return lambda context, x, stream: ask(stream.record_event())


#: Calls that wait for work of the capturing stream, which does not run.
WAITING: dict[str, Callable[[Context, torch.Tensor, Any], Any]] = {
    "item": lambda context, x, stream: x.sum().item(),
    "copy_to_the_host": lambda context, x, stream: x.cpu(),
    "truth": lambda context, x, stream: bool(x[0] > 0),
    "shape_of_values": lambda context, x, stream: x.nonzero(),
    "synchronize_stream": lambda context, x, stream: stream.synchronize(),
    "synchronize_device": lambda context, x, stream: torch.accelerator.synchronize(x.device),
    "synchronize_event": _event(lambda event: event.synchronize()),
}
