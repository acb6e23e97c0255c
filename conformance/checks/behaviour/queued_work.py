"""Functions that the cases about streams and events share: they create pairs of streams, and queue work whose result
depends on the order in which it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import Hold

#: The number of elements of a tensor that work reads and writes. Small, so that a kernel is a launch and hardly a
#: computation.
SIZE = 64
#: Ordinary work that takes longer than queueing the work after it on another stream.
_ELEMENTS, _LAUNCHES, _SECONDS = 2**18, 300, 0.02


def two(
    context: CaseContext, index: int = 0, make: Callable[[int], Any] | None = None
) -> tuple[Any, Any]:
    """Returns two different streams of a device index. ``make(index)`` creates each stream; the default is
    torch.Stream."""
    first, second = ((make or context.stream)(index) for _ in range(2))
    context.must(first != second, "two new streams are the same", by="streams.identity")
    return first, second


def priorities(context: CaseContext) -> tuple[int, int]:
    """Returns the least and the greatest stream priority, as declared in the descriptor or as reported by the
    device's own stream class."""
    least, greatest = context.descriptor.priorities or context.own("stream").priority_range()
    context.must(least != greatest, "the device has only one stream priority")
    return int(least), int(greatest)


def special(context: CaseContext, kind: str) -> Any:
    """Returns a stream of the given kind on device index 0: its default stream for "default", a new stream with the
    greatest priority for "priority", and a new stream with the least priority for any other kind."""
    if kind == "default":
        return context.current_stream()
    least, greatest = priorities(context)
    return context.stream(priority=greatest if kind == "priority" else least)


def filled(
    context: CaseContext, value: int, index: int = 0, dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    """Returns a tensor whose elements all have the given value. No work on the tensor is in flight, so every
    stream may use it."""
    made = torch.full((SIZE,), value, dtype=dtype, device=context.at(index))
    context.settle()
    return made


def same_everywhere(value: int) -> torch.Tensor:
    """Returns a CPU tensor with the given value everywhere, to be compared with a tensor from ``filled``."""
    return torch.full((SIZE,), value, dtype=torch.int32)


def leaves(context: CaseContext, stream: Any, tensor: torch.Tensor, value: int, text: str) -> None:
    """Synchronizes a stream and checks that every element of a tensor has the given value."""
    stream.synchronize()
    context.equal(tensor, same_everywhere(value), text)


def step(tensor: torch.Tensor, number: int) -> None:
    """Runs two kernels that change the tensor. The result depends on ``number`` and on the order in which several steps
    run."""
    tensor.mul_(3).add_(number)


def queue(stream: Any, tensor: torch.Tensor, *numbers: int) -> None:
    """Queues steps with the given numbers on a stream. Each step changes the tensor."""
    with stream:
        for number in numbers:
            step(tensor, number)


def hold_stream(context: CaseContext, stream: Any) -> Hold:
    """Returns a hold, which blocks a stream until the hold is released. If the device cannot block a stream, the hold
    blocks nothing, but ordinary work that takes some time is queued on the stream. A missing wait then shows in the
    values."""
    hold = context.hold(stream, needed=False)
    if not hold.holds:
        tensor = torch.zeros(_ELEMENTS, device=stream.device)
        context.settle()
        end = time.monotonic() + _SECONDS  # for a device that computes on the host
        with stream:
            for _ in range(_LAUNCHES):
                tensor.add_(1)
                if time.monotonic() > end:
                    break
    return hold


def recorded(context: CaseContext, stream: Any) -> Any:
    event = context.event()
    event.record(stream)
    return event


def steps(start: int, numbers: Iterable[int]) -> int:
    """Returns the start value, as int32, after steps with the given numbers have been applied to it."""
    value = torch.tensor(start, dtype=torch.int32)
    for number in numbers:
        step(value, number)
    return int(value)


def learnt(context: CaseContext) -> None:
    """Runs each kind of work that ``queue`` uses once on the device and waits for it, because the first call of a
    kernel may do more than queue it, such as compile."""
    tensor, other = filled(context, 1), filled(context, 1)
    step(tensor, 1)
    other.copy_(tensor)
    tensor.fill_(2)
    context.settle()
