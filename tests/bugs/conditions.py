"""Conditions on a whole call, under which an imitation of ``conformance/contract/bugs.toml`` strikes: "where", in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.planting.calls import KernelCall
from tests.planting.tensors import is_expanded


def argument(call: KernelCall, name: str, place: int, default: Any = None) -> Any:
    """The argument of a Python function, which is given by name or at its place."""
    return call.kwargs.get(name, call.args[place] if len(call.args) > place else default)


def _is_of_heads(call: KernelCall) -> bool:
    """A batch letter in the middle of the first operand: ``bij,ijk->bik``."""
    equation = next(each for each in call.args if isinstance(each, str))
    if equation.count(",") != 1:
        return False
    operands, _, result = equation.replace(" ", "").partition("->")
    one, other = operands.split(",")
    return other[:1] in one[1:] and other[:1] in result and other[:1].isalpha()


def _turns(call: KernelCall) -> bool:
    """One side of the image becomes smaller, and another one larger."""
    given, made = call.first.shape[2:], call.function(*call.args, **call.kwargs).shape[2:]
    pairs = list(zip(given, made, strict=True))
    return any(n > m for n, m in pairs) and any(n < m for n, m in pairs)


def _has_slices(call: KernelCall) -> bool:
    index = argument(call, "idx", 1)
    return isinstance(index, tuple) and sum(isinstance(each, slice) for each in index) >= 3


def _each(value: Any, count: int) -> list[int]:
    """A size that is given once for all dimensions, or for each of them."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    return [*value] * count if len(value) == 1 else [*value]


def _is_smaller_than_the_kernel(call: KernelCall) -> bool:
    kernel, dims = argument(call, "kernel_size", 1), call.first.dim() - 2
    padding = _each(argument(call, "padding", 3, 0), dims)
    sides = zip(call.first.shape[2:], padding, _each(kernel, dims), strict=False)
    return any(size + 2 * pad < window for size, pad, window in sides)


def _is_broadcast(call: KernelCall) -> bool:
    """Several matrices, and one right side for all of them."""
    matrices, right = call.inputs[:2]
    alike = right.dim() == matrices.dim() - 1 and right.shape == matrices.shape[:-1]
    return matrices.dim() > 2 and right.dim() < matrices.dim() and not alike


def _adds_fewer_dimensions(call: KernelCall) -> bool:
    indices, values = call.args[1:3]
    if not argument(call, "accumulate", 3, False):
        return False
    return bool(values.dim() < call.first[indices].dim())


#: By its words: whether the condition holds of a call.
CONDITIONS: Final[dict[str, Callable[[KernelCall], bool]]] = {
    "the head dimension is a multiple of 8": lambda call: call.first.shape[-1] % 8 == 0,
    "the second operand is expanded": lambda call: (
        len(call.inputs) > 1 and is_expanded(call.inputs[1])
    ),
    "there is no bias": lambda call: len(call.inputs) == 2,
    "each head has weights of its own": _is_of_heads,
    "it is in eval mode": lambda call: not argument(call, "training", 5, False),
    "count_include_pad and ceil_mode are both true": lambda call: (
        bool(argument(call, "ceil_mode", 4, False)) and bool(argument(call, "count_include_pad", 5, True))
    ),
    "the target is shorter than the index": lambda call: (
        call.first.dim() > 0
        and call.first.shape[call.args[1]] < call.args[2].shape[call.args[1]]
    ),
    "one side shrinks and the other one grows": _turns,
    "three dimensions are sliced": _has_slices,
    "it pads": lambda call: any(_each(argument(call, "padding", 3, 0), 2)),
    "there are groups": lambda call: argument(call, "groups", 6, 1) > 1,
    "it has a stride": lambda call: any(each != 1 for each in _each(argument(call, "stride", 3, 1), 2)),
    "no matrix product is to be used": lambda call: (
        argument(call, "compute_mode", 3, None) == "donot_use_mm_for_euclid_dist"
        and argument(call, "p", 2, 2.0) == 2
    ),
    "the input is smaller than the kernel": _is_smaller_than_the_kernel,
    "an operand is a slice that does not begin at a multiple of 64": lambda call: any(
        each.storage_offset() % 64 for each in call.inputs
    ),
    "it accumulates": lambda call: bool(argument(call, "accumulate", 3, False)),
    "it accumulates values of fewer dimensions": _adds_fewer_dimensions,
    "one right side is solved for all matrices": _is_broadcast,
    "it sums the losses": lambda call: argument(call, "reduction", 4, "mean") == "sum",
    "it is causal": lambda call: bool(argument(call, "is_causal", 5, False)),
    "it reduces a dimension": lambda call: argument(call, "dim", 1) is not None,
}  # fmt: skip
