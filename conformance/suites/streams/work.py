"""What the cases of streams and events share: pairs of streams, and work whose order shows in its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from conformance.checks.cases.context import Context

#: Elements of a tensor that work is done on: a launch, not a computation.
SIZE = 64


def two(context: Context, index: int = 0) -> tuple[Any, Any]:
    """Two streams that are not one."""
    first, second = context.stream(index), context.stream(index)
    context.must(first != second, "two new streams differ")
    return first, second


def filled(context: Context, value: int, index: int = 0) -> torch.Tensor:
    """A tensor that every stream may use, as nothing of it is in flight."""
    made = torch.full((SIZE,), value, dtype=torch.int32, device=context.at(index))
    context.settle()
    return made


def same_everywhere(value: int) -> torch.Tensor:
    """What ``filled`` must read as, on the CPU."""
    return torch.full((SIZE,), value, dtype=torch.int32)


def step(tensor: torch.Tensor, number: int) -> None:
    """Two kernels. Steps with other numbers, or in another order, give another result."""
    tensor.mul_(3).add_(number)


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
