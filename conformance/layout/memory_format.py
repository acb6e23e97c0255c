"""layout.memory_format: ops that take ``memory_format`` honour it
(https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-memory-format)."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from conformance.layout import directed
from conformance.layout.context import ItemContext

CLAUSE = "layout.memory_format"

#: (size, memory order of the input): dense, so that preserve_format has one right answer.
_INPUTS_4D = ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3))
_INPUTS_5D = ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0))


def check(ctx: ItemContext) -> None:
    """Every format on every dense input order of rank 4, and the 3d format on rank 5."""
    if not ctx.wants(CLAUSE):
        return
    families = ctx.traits.families
    extras: list[tuple[Any, ...]] = [()]
    if "memory_format.needs_value" in families:
        extras = [(1,)]
    elif "memory_format.needs_dtype" in families:
        # Its own dtype, where nothing needs converting, and another, where something does.
        other = torch.float64 if ctx.dtype != "float64" else torch.float32
        extras = [(getattr(torch, ctx.dtype),), (other,)]
    copies = "memory_format.no_values" not in families
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        for extra, (number, order) in product(extras, enumerate(_INPUTS_4D)):
            formats = ["contiguous_format", "channels_last"]
            if "memory_format.no_preserve" not in families:
                formats.append("preserve_format")
            for name in formats:
                label = "channels_last_format" if name == "channels_last" else name
                directed.run(
                    ctx,
                    record,
                    label,
                    honours,
                    number,
                    size=(2, 3, 4, 5),
                    order=order,
                    name=name,
                    dtype=ctx.dtype,
                    extra=extra,
                    copies=copies,
                )
        for extra, (number, order_5d) in product(extras, enumerate(_INPUTS_5D)):
            directed.run(
                ctx,
                record,
                "channels_last_3d_format",
                honours,
                number,
                size=(2, 3, 2, 4, 5),
                order=order_5d,
                name="channels_last_3d",
                dtype=ctx.dtype,
                extra=extra,
                copies=copies,
            )


def honours(
    op: Any,
    move: Any,
    back: Any,
    size: Any,
    order: Any,
    name: Any,
    dtype: Any,
    extra: Any,
    copies: Any,
) -> str | None:
    values = (torch.arange(2 * 3 * 4 * 5 * (2 if len(size) == 5 else 1)) % 2).reshape(size)
    values = values.to(getattr(torch, dtype))
    stride, step = [0] * len(size), 1
    for dim in reversed(order):
        stride[dim] = step
        step *= size[dim]
    given = torch.empty_strided(size, stride, dtype=values.dtype).copy_(values)
    given = move(given)
    got = op(given, *extra, memory_format=getattr(torch, name))
    if name == "preserve_format":
        if tuple(got.stride()) != tuple(given.stride()):
            return f"preserve_format: input strides {tuple(given.stride())}, output {tuple(got.stride())}"
    elif not got.is_contiguous(memory_format=getattr(torch, name)):
        return f"{name} asked for an input of strides {tuple(given.stride())}, got {tuple(got.stride())}"
    if copies and not torch.equal(
        back(got).to(torch.complex64), values.to(got.dtype).to(torch.complex64)
    ):
        return f"{name} changed the values"
    return None
