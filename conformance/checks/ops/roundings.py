"""How far a result may be from the reference's where no algorithm can be blamed for it: where a rounding of the operands, or
the CPU's own error, makes as much of a difference.

Repro scripts contain these functions, which need only torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from opinfo.compare import tensors_of, turned
from opinfo.reference import value_answer

#: Draws of a perturbation, and how many times its largest effect a result may be off by.
DRAWS, FACTOR = 3, 16.0
#: What an error of rounding is at most, of the size of what is computed.
ROUNDING = 2.0**-10
#: A rounding of relative size in a number of float32, up to which the operands are known.
_EPSILON = 2.0**-24


def allowance(
    function: Callable[..., Any],
    arguments: Callable[[list[torch.Tensor], torch.device], Any],
    values: Sequence[torch.Tensor],
    process: Callable[[Any], Any] | None = None,
) -> list[torch.Tensor]:
    """How much each tensor of a result, or of what is unique about it, may be off by, element by element: some times the
    largest change where each operand changes by one rounding, and some times the largest error that the CPU makes in the
    dtype of the operands, as far as that is one of rounding. Of operands that are all integers, the difference that the order
    of their dimensions in memory makes. Empty if the CPU does not say."""

    def found(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        answer = value_answer(function, arguments, given, mutates=True)
        if answer.raises is not None:
            return []
        return tensors_of(answer.result if process is None else process(answer.result))

    source = torch.Generator().manual_seed(0)
    # Integers have no roundings: the CPU in another order says what they are.
    better = list(map(wider if any(map(floats, values)) else turned, values))
    exact, narrow = found(better), found(values)
    moved = [found([jolted(each, _EPSILON, source) for each in better]) for _ in range(DRAWS)]
    if any(len(each) != len(exact) for each in (narrow, *moved)):
        return []
    slack = []
    for place, want in enumerate(exact):
        error, most = off(narrow[place], want), torch.zeros_like(want.abs())
        for each in moved:
            most = torch.maximum(most, off(each[place], want))
        size = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()) if want.numel() else 0.0
        own = float(error.max()) if want.numel() else 0.0
        slack.append(most * FACTOR + min(FACTOR * own, ROUNDING * size))
    return slack


def within(read: Any, want: Any, slack: Sequence[torch.Tensor]) -> bool:
    """Whether each element is as near to the reference's as its allowance says. What is not finite is the same."""
    got, wanted = tensors_of(read), tensors_of(want)
    if not len(got) == len(wanted) == len(slack):
        return False
    for mine, theirs, allowed in zip(got, wanted, slack, strict=True):
        if (
            mine.shape != theirs.shape
            or theirs.shape != allowed.shape
            or mine.dtype != theirs.dtype
        ):
            return False
        same = torch.isclose(mine, theirs, rtol=0.0, atol=0.0, equal_nan=True)
        near = (wider(mine) - wider(theirs)).abs() <= allowed  # False for NaN
        if not bool((same | (near & mine.isfinite() & theirs.isfinite())).all()):
            return False
    return True


def off(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    return (got - want).abs().nan_to_num(0.0, 0.0, 0.0)


def jolted(tensor: torch.Tensor, epsilon: float, source: torch.Generator) -> torch.Tensor:
    """A tensor whose elements are changed by one rounding, up or down."""
    if not floats(tensor):
        return tensor
    signs = torch.randint(0, 2, tensor.shape, generator=source) * 2 - 1
    return tensor * (1 + epsilon * signs)


def wider(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the widest dtype of its kind."""
    kind = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(kind, copy=True) if floats(tensor) else tensor.detach().clone()


def floats(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
