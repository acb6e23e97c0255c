"""layout.special_values: documented rules only: NaN, infinities, and bool bytes other than 0 and 1."""

from __future__ import annotations

from typing import Any

import torch

from conformance.layout import directed
from conformance.layout.context import ItemContext, other_arguments

CLAUSE = "layout.special_values"


def check(ctx: ItemContext) -> None:
    """Run the rules that the op's families and flags name."""
    if not ctx.wants(CLAUSE):
        return
    families, dtype, policy = ctx.traits.families, ctx.dtype, ctx.op.nan_policy
    extra = (2.0,) if "reduce.needs_order" in families else ()
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        if dtype == "bool":
            binary = ctx.traits.ufunc == "binary"
            extra = () if binary else other_arguments(ctx)
            directed.run(ctx, record, "bool_bytes", bool_bytes, binary=binary, extra=extra)
            return
        for number, strided in enumerate((False, True)):
            name = "nan_strided" if strided else "nan"
            shared: dict[str, Any] = {"dtype": dtype, "strided": strided}
            if policy == "propagate" or "special.nan_reduce" in families:
                directed.run(
                    ctx, record, name, reduces_nan, number, omits=False, extra=extra, **shared
                )
            if policy == "omit" or "special.nan_omit" in families:
                directed.run(
                    ctx, record, name, reduces_nan, number, omits=True, extra=extra, **shared
                )
            if "special.nan_binary" in families:
                directed.run(ctx, record, name, binary_nan, number, ignores=False, **shared)
            if "special.nan_ignore" in families:
                directed.run(ctx, record, name, binary_nan, number, ignores=True, **shared)
            if "special.nan_clamp" in families:
                directed.run(ctx, record, name, clamps_nan, number, **shared)
            if "special.nan_scan" in families:
                directed.run(ctx, record, name, scans_nan, number, **shared)
            if "special.nan_last" in families:
                directed.run(ctx, record, "nan_last", sorts_nan_last, number, **shared)


def bool_bytes(op: Any, move: Any, back: Any, binary: Any, extra: Any) -> str | None:
    # c10/util/Load.h: a bool is loaded as "any byte that is not zero is true".
    odd = move(torch.tensor([0, 1, 2, 255, 0, 128], dtype=torch.uint8)).view(torch.bool)
    plain = torch.tensor([False, True, True, True, False, True])
    other = torch.tensor([True, False, True, True, False, False])
    try:
        want = op(plain, other) if binary else op(plain, *extra)
    except (RuntimeError, TypeError):
        return "not applicable"  # not defined for bool
    got = back(op(odd, move(other)) if binary else op(odd, *extra))
    if got.dtype == torch.bool:
        # Written bytes are normalised for the comparison: reading them is what is asked.
        got = got.view(torch.uint8).bool()
    if got.dtype == torch.complex32:  # has no comparison kernels
        got, want = got.to(torch.complex64), want.to(torch.complex64)
    if not torch.equal(got, want) and not torch.allclose(got, want, equal_nan=True):
        return f"bytes [0, 1, 2, 255, 0, 128] as bool: expected {want.tolist()}, got {got.tolist()}"
    return None


def reduces_nan(
    op: Any, move: Any, back: Any, dtype: Any, strided: Any, omits: Any, extra: Any
) -> str | None:
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, float("nan"), 3.0, 4.0]]).to(
        getattr(torch, dtype)
    )
    given = move(values.repeat_interleave(2, 1))[:, ::2] if strided else move(values)
    try:
        got = op(given, *extra, dim=1)
    except TypeError:
        got = op(given, *extra)
    got = got[0] if isinstance(got, (tuple, list)) else got
    got = back(got)
    last = bool(torch.isnan(got.reshape(-1)[-1]))
    if omits and last:
        return f"NaN is documented to be left out, got {got.tolist()}"
    if not omits and not last:
        return f"NaN is documented to propagate, got {got.tolist()}"
    if got.dim() and bool(torch.isnan(got[0])):
        return f"a row without NaN gave NaN: {got.tolist()}"
    return None


def binary_nan(op: Any, move: Any, back: Any, dtype: Any, strided: Any, ignores: Any) -> str | None:
    nan = float("nan")
    left = torch.tensor([nan, 1.0, nan, 2.0, float("inf")] * 4).to(getattr(torch, dtype))
    right = torch.tensor([1.0, nan, nan, 3.0, -float("inf")] * 4).to(getattr(torch, dtype))
    give = (lambda t: move(t.repeat_interleave(2))[::2]) if strided else move
    got = back(op(give(left), give(right))).isnan().tolist()
    want = ([False, False, True, False, False] if ignores else [True, True, True, False, False]) * 4
    return None if got == want else f"NaN expected where {want[:5]}, came where {got[:5]}"


def clamps_nan(op: Any, move: Any, back: Any, dtype: Any, strided: Any) -> str | None:
    values = torch.tensor([float("nan"), -1.0, 0.5, 2.0, float("inf")] * 4).to(
        getattr(torch, dtype)
    )
    given = move(values.repeat_interleave(2))[::2] if strided else move(values)
    bound = move(torch.full((20,), 0.25).to(getattr(torch, dtype)))
    got = back(op(given, bound)).isnan().tolist()
    want = [True, False, False, False, False] * 4
    return None if got == want else f"NaN expected where {want[:5]}, came where {got[:5]}"


def scans_nan(op: Any, move: Any, back: Any, dtype: Any, strided: Any) -> str | None:
    values = torch.tensor([1.0, 2.0, float("nan"), 4.0, 0.5]).to(getattr(torch, dtype))
    given = move(values.repeat_interleave(2))[::2] if strided else move(values)
    got = op(given, 0)
    got = back(got[0] if isinstance(got, (tuple, list)) else got).isnan().tolist()
    want = [False, False, True, True, True]
    return None if got == want else f"NaN expected from its place on, came where {got}"


def sorts_nan_last(op: Any, move: Any, back: Any, dtype: Any, strided: Any) -> str | None:
    nan = float("nan")
    values = torch.tensor([2.0, nan, -1.0, float("inf"), nan, 0.5]).to(getattr(torch, dtype))
    given = move(values.repeat_interleave(2))[::2] if strided else move(values)
    got = op(given)
    if isinstance(got, torch.Tensor) and got.dtype == torch.int64:  # argsort
        ordered = values[back(got)]
    else:
        ordered = back(got[0] if isinstance(got, (tuple, list)) else got)
    where = ordered.isnan().tolist()
    if where != [False] * 4 + [True] * 2:
        return f"NaN sorts last, got {ordered.tolist()}"
    if ordered[:4].tolist() != [-1.0, 0.5, 2.0, float("inf")]:
        return f"expected -1, 0.5, 2, inf, nan, nan; got {ordered.tolist()}"
    return None
