"""dispatch.cross_device: operands on two devices raise; what is documented to be legal works.

Every tensor of a call in turn is put on the CPU, and on the next index where there is one. Legal, and so not tried,
are 0-d operands on the CPU; which ops take operands of other devices by design is in ``opinfo/exceptions.toml``.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.dispatch import calls, tables
from conformance.layout.context import ItemContext
from devices.descriptor import Descriptor
from opinfo.samples import Sample
from opinfo.traits import Traits

CLAUSE = "dispatch.cross_device"

#: Ops whose operands may lie on any device; those that take indices of the CPU; those whose first operand says where
#: the result is made.
_ANY, _INDICES, _FIRST = "cross_device.any", "cross_device.indices", "cross_device.first_decides"
#: What indices and masks are.
_INDEX = (torch.int64, torch.int32, torch.bool, torch.uint8)


def applies(traits: Traits) -> bool:
    """Ops of two tensors or more, in every dtype: kernels read a scalar of the CPU by its dtype."""
    return traits.two_operands and _ANY not in traits.families


def untried(descriptor: Descriptor, op: str) -> str:
    """The CPU has no second device to be mixed with."""
    if tables.key_of(descriptor.torch_type) == "CPU":
        return "by declaration: the device is the CPU, and the other device of every mixed call"
    return ""


def check(ctx: ItemContext) -> None:
    """One call, with each of its operands elsewhere; and a scalar of the CPU where the op is a binary one."""
    with ctx.running(CLAUSE) as (record,):
        if record is None:
            return
        sample = _telling(calls.dense_samples(ctx))
        index = ctx.device.torch_device.index or 0
        others, count = ["cpu"], ctx.device.descriptor.device_count()
        if "multi_device" in ctx.device.descriptor.capabilities and count > 1:
            others.append(f"{ctx.device.torch_device.type}:{(index + 1) % count}")
        for place, tensor in enumerate(sample.tensors if sample is not None else ()):
            for other in others:
                indexes = place > 0 and tensor.dtype in _INDEX
                design = indexes and _INDICES in ctx.traits.families
                if other == "cpu" and (tensor.dim() == 0 or design):
                    continue
                calls.judge(ctx, record, refuses, sample, place=place, other=other)
        if ctx.traits.ufunc == "binary":
            for first in (False,) if _FIRST in ctx.traits.families else (False, True):
                calls.judge(ctx, record, takes_scalar, dtype=ctx.dtype, first=first)


def _telling(samples: list[Sample]) -> Sample | None:
    """The sample with the most tensors, of those that have elements, of those that have dimensions."""
    found = [s for s in samples if len(s.tensors) > 1]
    return max(
        found,
        key=lambda s: (
            min(t.dim() for t in s.tensors) > 0,
            all(t.numel() for t in s.tensors),
            len(s.tensors),
            -s.index,
        ),
        default=None,
    )


def refuses(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, place: Any, other: Any
) -> str | None:
    placed = [move(tensor) for tensor in tensors]
    args, kwargs = arguments(placed)
    try:
        op(*args, **kwargs)
    except NotImplementedError:
        raise
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return f"with every operand on the device it raises {type(error).__name__}: {line}"
    placed = [
        tensor.to(other, copy=True) if number == place else move(tensor)
        for number, tensor in enumerate(tensors)
    ]
    args, kwargs = arguments(placed)
    try:
        result = op(*args, **kwargs)
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor):
                back(each)  # a device that works later raises here at the latest
    except (
        Exception
    ):  # refused, which is the contract; with which type is dispatch.error_inputs' question
        return None
    return f"operand {place} on {other}, the others on {placed[place - 1].device}, were accepted"


def takes_scalar(op: Any, move: Any, back: Any, dtype: Any, first: Any) -> str | None:
    whole = torch.tensor([1, 1, 0, 1]).to(getattr(torch, dtype))
    numbers = torch.tensor([1, 0, 0, 2, 1]).to(getattr(torch, dtype))
    scalar = numbers[3]  # not where its storage begins
    try:
        want = op(scalar, whole) if first else op(whole, scalar)
    except Exception:
        return "not applicable"  # the CPU refuses the pair
    got = back(op(scalar, move(whole)) if first else op(move(whole), scalar))
    if got.dtype != want.dtype or not torch.allclose(
        got.to(torch.complex128), want.to(torch.complex128), rtol=1e-2, atol=1e-3, equal_nan=True
    ):
        where = "first" if first else "second"
        return f"with a 0-d CPU tensor as {where} operand: expected {want.tolist()}, got {got.tolist()}"
    return None
