"""layout.as_strided: gaps, overlap and offsets address the right elements; storage is large enough;
requests out of range raise. The reference is index arithmetic in Python."""

from __future__ import annotations

from typing import Any

import torch

from conformance.layout import directed
from conformance.layout.context import ItemContext

CLAUSE = "layout.as_strided"

#: (size, stride, offset): dense, gaps, transposed, overlapping, expanded, size 1, 0-d, size 0.
_VIEWS = (
    ((3, 4), (4, 1), 0),
    ((3, 4), (10, 2), 1),
    ((4, 3), (1, 5), 7),
    ((5, 3), (2, 1), 3),
    ((4, 3), (0, 1), 2),
    ((2, 1, 3), (9, 100, 2), 5),
    ((), (), 11),
    ((0, 3), (3, 1), 4),
)


def check(ctx: ItemContext) -> None:
    """Run what applies to the op's family."""
    if not ctx.wants(CLAUSE):
        return
    families = ctx.traits.families
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        for number, (size, stride, offset) in enumerate(_VIEWS):
            parameters: dict[str, Any] = {"size": size, "stride": stride, "dtype": ctx.dtype}
            if "as_strided.read" in families:
                directed.run(
                    ctx, record, "addresses", addresses, number, offset=offset, **parameters
                )
                directed.run(
                    ctx, record, "set_", set_addresses, number, offset=offset, **parameters
                )
            if "as_strided.scatter" in families and 0 not in stride and size != (5, 3):
                directed.run(
                    ctx, record, "addresses", scatters, number, offset=offset, **parameters
                )
            if "as_strided.allocate" in families:
                directed.run(ctx, record, "allocates", allocates, number, **parameters)
            if "as_strided.allocate_like" in families:
                directed.run(ctx, record, "allocates", allocates_like, number, **parameters)
        if "as_strided.read" in families:
            directed.run(ctx, record, "out_of_range", out_of_range, dtype=ctx.dtype)


def addresses(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> str | None:
    values = [n % 2 for n in range(60)] if dtype == "bool" else list(range(60))
    base = move(torch.tensor(values).to(getattr(torch, dtype)))
    got = back(op(base, size, stride, offset))
    index = torch.full(size, offset)
    for dim, (n, step) in enumerate(zip(size, stride)):
        index = index + (torch.arange(n) * step).view(
            [-1 if d == dim else 1 for d in range(len(size))]
        )
    want = [values[i] for i in index.reshape(-1).tolist()]
    if tuple(got.shape) != size:
        return f"shape {tuple(got.shape)}, {size} asked for"
    held = got.to(torch.complex64).real.reshape(-1).tolist()
    if held != [float(v) for v in want]:
        return f"size {size} stride {stride} offset {offset}: expected elements {want}, got {held}"
    return None


def set_addresses(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> str | None:
    values = [n % 2 for n in range(60)] if dtype == "bool" else list(range(60))
    base = move(torch.tensor(values).to(getattr(torch, dtype)))
    view = move(torch.empty(0, dtype=getattr(torch, dtype)))
    view.set_(base.untyped_storage(), offset, size, stride)
    if tuple(view.stride()) != stride or view.storage_offset() != offset:
        return f"set_ asked for strides {stride} at {offset}, got {view.stride()} at {view.storage_offset()}"
    index = torch.full(size, offset)
    for dim, (n, step) in enumerate(zip(size, stride)):
        index = index + (torch.arange(n) * step).view(
            [-1 if d == dim else 1 for d in range(len(size))]
        )
    want = [float(values[i]) for i in index.reshape(-1).tolist()]
    held = back(view).to(torch.complex64).real.reshape(-1).tolist()
    return None if held == want else f"set_: expected elements {want}, got {held}"


def scatters(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> str | None:
    values = [1.0 if dtype == "bool" else float(n % 50 + 60) for n in range(60)]
    base = torch.zeros(60).to(getattr(torch, dtype))
    index = torch.full(size, offset)
    for dim, (n, step) in enumerate(zip(size, stride)):
        index = index + (torch.arange(n) * step).view(
            [-1 if d == dim else 1 for d in range(len(size))]
        )
    flat = index.reshape(-1).tolist()
    source = torch.tensor(values[: len(flat)]).reshape(size).to(getattr(torch, dtype))
    got = back(op(move(base), move(source), size, stride, offset))
    want = [0.0] * 60
    for place, at in enumerate(flat):
        want[at] = values[place]
    held = got.to(torch.complex64).real.tolist()
    return None if held == want else f"expected {want}, got {held}"


def allocates(op: Any, move: Any, back: Any, size: Any, stride: Any, dtype: Any) -> str | None:
    device = move(torch.zeros(1)).device
    made = op(size, stride, dtype=getattr(torch, dtype), device=device)
    if tuple(made.shape) != size or tuple(made.stride()) != stride:
        return f"asked for {size} {stride}, got {tuple(made.shape)} {tuple(made.stride())}"
    last = sum((n - 1) * s for n, s in zip(size, stride)) + 1 if made.numel() else 0
    need = (made.storage_offset() + last) * made.element_size()
    if made.untyped_storage().nbytes() < need:
        return f"needs {need} bytes, the storage has {made.untyped_storage().nbytes()}"
    if made.numel() and 0 not in stride and size != (5, 3):
        values = (torch.arange(made.numel()) % 2).reshape(size).to(getattr(torch, dtype))
        made.copy_(move(values))
        if not torch.equal(back(made).to(torch.complex64), values.to(torch.complex64)):
            return "does not hold what was copied into it"
    return None


def allocates_like(op: Any, move: Any, back: Any, size: Any, stride: Any, dtype: Any) -> str | None:
    like = move(torch.zeros(2).to(getattr(torch, dtype)))
    made = op(like, size, stride)
    if made.dtype != like.dtype or made.device != like.device:
        return f"asked for {like.dtype} on {like.device}, got {made.dtype} on {made.device}"
    if tuple(made.shape) != size or tuple(made.stride()) != stride:
        return f"asked for {size} {stride}, got {tuple(made.shape)} {tuple(made.stride())}"
    last = sum((n - 1) * s for n, s in zip(size, stride)) + 1 if made.numel() else 0
    need = (made.storage_offset() + last) * made.element_size()
    if made.untyped_storage().nbytes() < need:
        return f"needs {need} bytes, the storage has {made.untyped_storage().nbytes()}"
    if made.numel() and 0 not in stride and size != (5, 3):
        values = (torch.arange(made.numel()) % 2).reshape(size).to(getattr(torch, dtype))
        made.copy_(move(values))
        if not torch.equal(back(made).to(torch.complex64), values.to(torch.complex64)):
            return "does not hold what was copied into it"
    return None


def out_of_range(op: Any, move: Any, back: Any, dtype: Any) -> str | None:
    base = move(torch.zeros(12).to(getattr(torch, dtype)))
    for size, stride, offset in (
        ((13,), (1,), 0),
        ((3, 4), (5, 1), 0),
        ((2,), (1,), 11),
        ((2,), (-1,), 5),
    ):
        try:
            op(base, size, stride, offset)
        except RuntimeError:
            continue
        return f"as_strided of 12 elements to size {size} stride {stride} offset {offset} did not raise"
    return None
