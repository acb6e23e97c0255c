"""layout.type_promotion: result dtypes for mixed dtypes, 0-d tensors and Python scalars; 64-bit integers
keep all bits (https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).

The reference for the dtype is FakeTensor, and on every device but ``cpu`` eager CPU as well: a device that
gives either's dtype keeps the clause.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.layout import directed
from conformance.layout.context import ItemContext, other_arguments

CLAUSE = "layout.type_promotion"
_OTHERS = ("bool", "uint8", "int64", "bfloat16", "float32", "float64", "complex64")
_SCALARS: tuple[Any, ...] = (True, 2, 0.5, 0.5j)


def check(ctx: ItemContext) -> None:
    """Binary ops with every other dtype; unary ops that promote integers to floating point."""
    if not ctx.wants(CLAUSE):
        return
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        if ctx.traits.ufunc == "unary":
            extra = other_arguments(ctx)
            directed.run(ctx, record, "int_to_float", int_to_float, dtype=ctx.dtype, extra=extra)
            return
        number = 0
        for other in dict.fromkeys((ctx.dtype, *_OTHERS)):  # some ops take two of one dtype only
            for form in ("tensors", "0-d"):
                number += 1
                directed.run(
                    ctx,
                    record,
                    form,
                    mixed,
                    number,
                    dtype=ctx.dtype,
                    other=other,
                    form=form,
                    fake_only=ctx.device.fake_only,
                )
        if ctx.traits.takes_python_scalar:
            for scalar in _SCALARS:
                number += 1
                directed.run(
                    ctx,
                    record,
                    "python_scalar",
                    with_scalar,
                    number,
                    dtype=ctx.dtype,
                    scalar=scalar,
                    fake_only=ctx.device.fake_only,
                )
            if ctx.dtype == "int64":
                directed.run(ctx, record, "int64_bits", keeps_bits)


def mixed(
    op: Any, move: Any, back: Any, dtype: Any, other: Any, form: Any, fake_only: Any
) -> str | None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    left = torch.tensor([1, 1, 2, 3]).to(getattr(torch, dtype))
    right = torch.tensor([1, 1, 1, 2] if form == "tensors" else 1).to(getattr(torch, other))
    with FakeTensorMode():
        fake_left = torch.empty(left.shape, dtype=left.dtype)
        fake_right = torch.empty(right.shape, dtype=right.dtype)
        try:
            want = op(fake_left, fake_right).dtype
        except Exception:
            return "not applicable"  # FakeTensor refuses the pair: no reference
    try:
        got = back(op(move(left), move(right)))
    except (RuntimeError, TypeError) as exc:
        try:
            op(left, right)
        except Exception:
            return "not applicable"  # the CPU refuses the pair too: the clause is about results
        return f"{dtype} with {other} raised {type(exc).__name__}: {str(exc)[:200]}; FakeTensor gives {want}"
    if got.dtype != want and (fake_only or got.dtype != op(left, right).dtype):
        return f"{dtype} with {other} ({form}) gives {got.dtype}, the reference {want}"
    return None


def with_scalar(
    op: Any, move: Any, back: Any, dtype: Any, scalar: Any, fake_only: Any
) -> str | None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    left = torch.tensor([1, 1, 2, 3]).to(getattr(torch, dtype))
    with FakeTensorMode():
        fake_left = torch.empty(left.shape, dtype=left.dtype)
        try:
            want = op(fake_left, scalar).dtype
        except Exception:
            return "not applicable"  # FakeTensor refuses the pair: no reference
    try:
        got = back(op(move(left), scalar))
    except (RuntimeError, TypeError) as exc:
        try:
            op(left, scalar)
        except Exception:
            return "not applicable"  # the CPU refuses the pair too: the clause is about results
        return f"{dtype} with {scalar!r} raised {type(exc).__name__}: {str(exc)[:200]}; FakeTensor gives {want}"
    if got.dtype != want and (fake_only or got.dtype != op(left, scalar).dtype):
        return f"{dtype} with the Python scalar {scalar!r} gives {got.dtype}, the reference {want}"
    return None


def keeps_bits(op: Any, move: Any, back: Any) -> str | None:
    big = 2**53 + 1  # the first integer that float64 cannot hold
    left = torch.tensor([0, 1, 2**53, 2**53 + 1, -(2**53) - 1])
    try:
        # Asked with a small operand first: an op that computes in floating point may loop that often.
        if op(left, torch.ones_like(left)).dtype not in (torch.int64, torch.bool):
            return "not applicable"
        want = op(left, torch.full_like(left, big))
    except RuntimeError:
        return "not applicable"
    got = back(op(move(left), big))
    if not torch.equal(got, want):
        return f"with the Python scalar {big}: {got.tolist()}, with the same value as a tensor: {want.tolist()}"
    return None


def int_to_float(op: Any, move: Any, back: Any, dtype: Any, extra: Any) -> str | None:
    values = torch.tensor([0, 1, 1, 0] if dtype == "bool" else [1, 1, 2, 3]).to(
        getattr(torch, dtype)
    )
    try:
        want = op(values.to(torch.get_default_dtype()), *extra)
    except (RuntimeError, ValueError):
        return "not applicable"  # outside the op's domain
    got = back(op(move(values), *extra))
    if got.dtype != torch.get_default_dtype():
        return f"{dtype} input gives {got.dtype}, documented is {torch.get_default_dtype()}"
    if not torch.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True):
        return f"expected {want.tolist()}, got {got.tolist()}"
    return None
