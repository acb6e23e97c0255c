"""Functions that run a module forward and backward on the device and compare results and gradients with the CPU in
float64.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from conformance.checks.behaviour.guarded_tensors import GuardedTensors
from conformance.checks.cases.closeness import largest
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import DENSE
from devices.failure import Kind
from opinfo.compare import Tolerances

#: (rtol, atol) by dtype. Larger than those of ``torch.testing`` for one op, because a module is a chain of ops whose
#: rounding errors add up.
CHAINED: Tolerances = {"float32": (5e-5, 1e-5)}

#: Accepted error of a chain of sums, in roundings of the largest element.
ROUNDINGS = 4.0

#: Layouts of cotangents. ``sum().backward()`` gives an expanded one.
EXPANDED, SCALAR = "contiguous+expand_first", "scalar"


@dataclass(frozen=True, slots=True)
class Way:
    """The conditions of one run of a module: the layouts of inputs and cotangents, the tensors that require gradients,
    and the memory format of the parameters."""

    inputs: str = DENSE  # the layout of floating-point inputs
    cotangent: str = DENSE  # the layout of the cotangents
    needs: str = "all"  # the tensors that require gradients: all, inputs, parameters
    channels_last: bool = False  # True: the module's parameters are in channels_last

    def __str__(self) -> str:
        words = [
            f"inputs {self.inputs}",
            f"cotangent {self.cotangent}",
            f"gradients of {self.needs}",
        ]
        return ", ".join(words + ["module in channels_last"] * self.channels_last)


#: A module with few samples is run with several of these ways for each sample, one with many samples with one way each.
WAYS: tuple[Way, ...] = (
    Way(DENSE, SCALAR),
    Way("transposed+step_inner+offset", "transposed"),
    Way("channels_last", "channels_last", channels_last=True),
    Way("contiguous+offset", "contiguous+step_inner", needs="parameters"),
    Way("channels_last", EXPANDED, needs="inputs"),
    Way("contiguous+step_outer", "reversed+offset"),
    Way("transposed", DENSE),
)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or results, in order. For a packed sequence, they are its data, batch sizes and
    indices."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):  # a packed sequence is a tuple
        for each in value:
            yield from tensors_in(each)


def replaced(value: Any, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the same nested arguments with each tensor replaced by ``swap(tensor)``."""
    if isinstance(value, torch.Tensor):
        return swap(value)
    if isinstance(value, PackedSequence):
        # Sizes of batches are on the CPU, whatever the device.
        rest = (None if each is None else swap(each) for each in value[2:])
        return PackedSequence(swap(value.data), value.batch_sizes, *rest)
    if isinstance(value, dict):
        return {key: replaced(each, swap) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(each, swap) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(each, swap) for each in value)
    return value


def wide(value: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64 or complex128 as a new leaf. Integer tensors keep their dtype."""
    kind = torch.complex128 if value.is_complex() else torch.float64
    one = value.detach().clone()
    one = one.to(kind) if value.is_floating_point() or value.is_complex() else one
    return one.requires_grad_(value.requires_grad)


def assert_equals_cpu(
    context: CaseContext,
    found: torch.Tensor,
    expected: torch.Tensor,
    text: str,
    at: str,
    roundings: float = ROUNDINGS,
    size: float = 0.0,
) -> None:
    """Check that a device tensor equals a float64 CPU tensor up to rounding. Rounding errors may be as large as those
    of the largest element, or of ``size`` if terms of that magnitude may cancel."""
    context.same(tuple(found.shape), tuple(expected.shape), text, Kind.SHAPE, at)
    want = expected.detach().to(found.dtype)
    rtol, atol = tolerance(context, found.dtype)
    atol = max(atol, roundings * rtol * max(largest(want), size))
    context.assert_close(found, want, text, at, rtol=rtol, atol=atol, equal_nan=True)


def tolerance(context: CaseContext, dtype: torch.dtype) -> tuple[float, float]:
    """Return (rtol, atol) for a dtype. The descriptor's values are used, but with an rtol of at least that in
    ``CHAINED``; if the descriptor has none, the values in ``CHAINED`` are used. For a dtype in neither, both numbers
    are 0, so elements must be equal."""
    name = str(dtype).removeprefix("torch.")
    rtol, atol = CHAINED.get(name, (0.0, 0.0))
    own = context.descriptor.tolerances.get(name)
    return (rtol, atol) if own is None else (max(own.rtol, rtol), own.atol)


def cotangents(
    laid: GuardedTensors, outputs: list[torch.Tensor], layout: str, generator: torch.Generator
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return cotangents for the given outputs of the reference: a list on the device in the given layout, and a list on
    the CPU in the dtypes of the outputs."""
    there, here = [], []
    for out in outputs:
        if layout == SCALAR:
            one = torch.tensor(1.25)
            there.append(laid.put(one, DENSE, "the cotangent").view.expand(out.shape))
            here.append(one.to(out.dtype).expand(out.shape))
            continue
        values = torch.randn(out.shape, generator=generator)
        if out.is_complex():
            values = torch.complex(values, torch.randn(out.shape, generator=generator))
        made = laid.put(values, layout, "the cotangent")
        there.append(made.view)
        here.append(made.values.to(out.dtype))
    return there, here


@dataclass(frozen=True, slots=True)
class Trained:
    """The outputs and gradients of a forward and backward pass."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]


def differentiable(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a result that require a gradient."""
    return [each for each in tensors_in(result) if each.requires_grad]
