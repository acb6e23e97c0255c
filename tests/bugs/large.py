"""Bugs of large tensors: the case of plan core or full that makes such a tensor runs on the CPU, with a fault in front of its
function. These cases take some GiB and up to a minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from tests.planting.calls import Effect, KernelCall
from tests.size.planting import case_named, copy_that_wraps, tried


@dataclass(frozen=True)
class Large:
    """A case of ``layout.large``, and the fault of a function that it calls."""

    case: str
    function: str
    effect: Effect


def _last_is_wrong(holds: Callable[[KernelCall, torch.Tensor], bool]) -> Effect:
    """The last element of the result is wrong where that holds of the call and its result."""

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        if holds(call, result):
            result[tuple(size - 1 for size in result.shape)] += 1
        return result

    return effect


def _inputs_past(elements: int) -> Effect:
    return _last_is_wrong(lambda call, result: any(t.numel() > elements for t in call.inputs))


def _counts_are_lost(call: KernelCall) -> Any:
    """unique counts too few where half a million elements, and half of all, are equal."""
    result = call.honest()
    if call.first.numel() < 10**6 or len(result[1]) > 2:
        return result
    return (result[0], result[1] - 1)


#: By name: the case, the function and the fault.
LARGE: Final[dict[str, Large]] = {
    "product_of_more_than_4_gb": Large(
        "mm@2^32 bytes of the result",
        "mm",
        _last_is_wrong(lambda call, result: result.nbytes > 2**32),
    ),
    "linear_of_more_than_4e8_outputs": Large(
        "nn.functional.linear@2^32 bytes of the result",
        "linear",
        _last_is_wrong(lambda call, result: result.numel() > 4e8),
    ),
    "cat_of_more_than_2_31_elements": Large(
        "cat@2^31 elements",
        "cat",
        _last_is_wrong(lambda call, result: result.numel() > 2**31),
    ),
    "max_pool3d_of_more_than_2_31_elements": Large(
        "nn.functional.max_pool3d@2^31 elements of the input",
        "max_pool3d",
        _inputs_past(2**31),
    ),
    "avg_pool2d_of_more_than_2_30_elements": Large(
        "nn.functional.avg_pool2d@2^31 elements of the input",
        "avg_pool2d",
        _inputs_past(2**30),
    ),
    "argmax_of_more_than_2_31_bytes": Large(
        "argmax@2^31 elements", "argmax", _last_is_wrong(lambda call, result: call.first.nbytes > 2**31)
    ),
    "unique_of_a_million_of_two_values": Large("unique@2^24 elements", "unique", _counts_are_lost),
    "copy_into_steps_past_2_32_elements": Large(
        "copy_@2^32 bytes, into steps", "copy_", copy_that_wraps(2**32)
    ),
}  # fmt: skip


def is_noticed(name: str) -> bool:
    """Whether the case of a fault fails with it."""
    large = LARGE[name]
    return tried(case_named(large.case), large.function, large.effect)[0].failure is not None
