"""A dozen causes of failures, each in many ops: what the badly broken device has (``broken.py``).

No two causes share an op, so that a test can say of every failing cell which cause it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import overload_of
from tests.planting.tensors import as_dense, is_expanded, is_stepped
from tests.wrapped.faults import REGISTRY
from tests.wrapped.registry import Kernel


def out_in_a_row(call: KernelCall) -> Any:
    """A strided out= is written as if it were contiguous."""
    out = call.kwargs["out"]
    if out.is_contiguous() or is_expanded(out):
        return NOT_MET
    fresh = call.honest(out=torch.empty(out.shape, dtype=out.dtype))
    if fresh.shape == out.shape:
        as_dense(out).copy_(fresh)
    return out


def self_in_a_row(call: KernelCall) -> Any:
    """A stepped self is written as if it were contiguous."""
    target = call.first
    if not is_stepped(target):
        return NOT_MET
    result = call.honest(self=target.clone())
    if result.shape == target.shape:
        as_dense(target).copy_(result)
    return target


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong: what stands in front of the kernels, and the ids of the ops that have it."""

    name: str
    effect: Effect
    kernels: tuple[Kernel, ...]
    ops: tuple[str, ...]


def _cause(
    name: str, effect: Effect | str, overload: str, ops: str, ids: str | None = None
) -> Cause:
    """``ops`` are names in aten, ``ids`` those in torch's database where they differ."""
    if isinstance(effect, str):
        effect = REGISTRY[effect].effect
    kernels = tuple(overload_of(f"{op}.{overload}") for op in ops.split())
    return Cause(name, effect, kernels, tuple((ids or ops).split()))


CAUSES = (
    _cause(
        "steps are ignored", "values.ignore_strides", "default",
        "cos sin tan exp exp2 log sqrt tanh erf floor ceil cosh sinh acos asin",
    ),
    _cause(
        "the offset is ignored", "values.ignore_storage_offset", "default",
        "neg abs sign atan asinh expm1 log1p rsqrt reciprocal sgn frac trunc sigmoid erfc",
    ),
    _cause("stride 0 is ignored", "expand.read_as_dense", "Tensor", "mul xlogy fmod remainder eq ne lt le gt ge"),
    _cause(
        "the output is contiguous", "stride.always_contiguous", "default",
        "maximum minimum fmax fmin hypot atan2 logaddexp logaddexp2 nextafter",
    ),
    _cause("an offset is refused", "values.refuse_offset", "default", "amax amin flip roll"),
    _cause(
        "channels_last is read as contiguous", "values.treat_channels_last_as_contiguous", "default",
        "avg_pool2d", "nn.functional.avg_pool2d",
    ),
    _cause(
        "convolutions drop channels_last", "stride.ignore_channels_last", "default",
        "convolution", "nn.functional.conv2d nn.functional.conv_transpose2d",
    ),
    _cause("out= is written in a row", out_in_a_row, "out", "lgamma digamma i0 sinc log2 log10 acosh atanh"),
    _cause("writes go past the end of out=", "bounds.write_past_end", "out", "heaviside copysign cumsum cumprod"),
    _cause("self is written in a row", self_in_a_row, "default", "erfinv_ nan_to_num_", "erfinv nan_to_num"),
    _cause("views lose their offset", "views.wrong_offset", "int", "select"),
    _cause("the input is overwritten", "inputs.overwritten", "default", "logit clamp_max"),
    _cause("every second call is refused", "determinism.refuse_every_second_call", "default", "gather index_select"),
)  # fmt: skip

#: The cause of each op that has one.
CAUSE_OF = {op: cause for cause in CAUSES for op in cause.ops}
