"""What the cases of streams and events share: pairs of streams, and work whose order shows in its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from conformance.checks.cases.context import Context
from conformance.checks.cases.in_flight import Hold

#: Elements of a tensor that work is done on: a launch, not a computation.
SIZE = 64
#: Ordinary work that takes longer than it takes to queue what follows it on another stream.
_ELEMENTS, _LAUNCHES, _SECONDS = 2**18, 300, 0.02


def two(
    context: Context, index: int = 0, make: Callable[[int], Any] | None = None
) -> tuple[Any, Any]:
    """Two streams that are not one, of the generic class if no other way to ``make`` one is given."""
    first, second = ((make or context.stream)(index) for _ in range(2))
    context.must(first != second, "two new streams differ", by="streams.identity")
    return first, second


def priorities(context: Context) -> tuple[int, int]:
    """The least and the greatest priority: as declared, or as the device's own class says."""
    least, greatest = context.descriptor.priorities or context.own("stream").priority_range()
    context.must(least != greatest, "there are two priorities at least")
    return int(least), int(greatest)


def special(context: Context, kind: str) -> Any:
    """The default stream of index 0, or a stream with the greatest ``priority`` or the ``least``."""
    if kind == "default":
        return context.current_stream()
    least, greatest = priorities(context)
    return context.stream(priority=greatest if kind == "priority" else least)


def filled(
    context: Context, value: int, index: int = 0, dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    """A tensor that every stream may use, as nothing of it is in flight."""
    made = torch.full((SIZE,), value, dtype=dtype, device=context.at(index))
    context.settle()
    return made


def same_everywhere(value: int) -> torch.Tensor:
    """What ``filled`` must read as, on the CPU."""
    return torch.full((SIZE,), value, dtype=torch.int32)


def leaves(context: Context, stream: Any, tensor: torch.Tensor, value: int, text: str) -> None:
    """A check that this is the value everywhere in a tensor when the stream's work is done."""
    stream.synchronize()
    context.equal(tensor, same_everywhere(value), text)


def step(tensor: torch.Tensor, number: int) -> None:
    """Two kernels. Steps with other numbers, or in another order, give another result."""
    tensor.mul_(3).add_(number)


def queue(stream: Any, tensor: torch.Tensor, *numbers: int) -> None:
    """Steps with these numbers, on a stream."""
    with stream:
        for number in numbers:
            step(tensor, number)


def held(context: Context, stream: Any) -> Hold:
    """A hold of a stream. Where the device has none, ordinary work that takes a while: a wait that is missing then shows
    in the values."""
    hold = context.hold(stream, needed=False)
    if not hold.holds:
        tensor = torch.zeros(_ELEMENTS, device=stream.device)
        context.settle()
        end = time.monotonic() + _SECONDS  # of a host that computes itself, and slowly
        with stream:
            for _ in range(_LAUNCHES):
                tensor.add_(1)
                if time.monotonic() > end:
                    break
    return hold


def recorded(context: Context, stream: Any) -> Any:
    event = context.event()
    event.record(stream)
    return event


def steps(start: int, numbers: Iterable[int]) -> int:
    """What these steps make of a number, as int32."""
    value = torch.tensor(start, dtype=torch.int32)
    for number in numbers:
        step(value, number)
    return int(value)


def learnt(context: Context) -> None:
    """Run every kind of work once: the first call of a kernel may do more than queue it."""
    tensor, other = filled(context, 1), filled(context, 1)
    step(tensor, 1)
    other.copy_(tensor)
    tensor.fill_(2)
    context.settle()
