"""layout.empty_reduce: reductions over nothing give the identity, or raise as the CPU does."""

from __future__ import annotations

from typing import Any

import torch

from conformance.layout import directed
from conformance.layout.context import ItemContext

CLAUSE = "layout.empty_reduce"


def check(ctx: ItemContext) -> None:
    """Over a dimension of size 0, and over all of an empty tensor."""
    if not ctx.wants(CLAUSE):
        return
    identity = ctx.op.identity
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        extra = (2.0,) if "reduce.needs_order" in ctx.traits.families else ()
        own = ctx.device.fake_only
        parameters: dict[str, Any] = {
            "dtype": ctx.dtype,
            "identity": identity,
            "own": own,
            "extra": extra,
        }
        directed.run(ctx, record, "dim", over_dim, 0, **parameters)
        directed.run(ctx, record, "all", over_all, 1, **parameters)


def over_dim(
    op: Any, move: Any, back: Any, dtype: Any, identity: Any, own: Any, extra: Any
) -> str | None:
    empty = torch.zeros((2, 0, 3), dtype=getattr(torch, dtype))
    try:
        want, refused = op(empty, *extra, dim=1), None
    except Exception as exc:
        want, refused = None, exc
    try:
        got = back(op(move(empty), *extra, dim=1))
    except (RuntimeError, IndexError, ValueError) as exc:
        if identity is not None:
            return f"has the identity {identity}, raised {type(exc).__name__}: {str(exc)[:200]}"
        return None if own or refused else f"raised {type(exc).__name__}; the CPU gives {want}"
    if tuple(got.shape) != (2, 3):
        return f"shape (2, 3) expected, {tuple(got.shape)} came"
    if identity is not None:
        ok = bool((got == identity).all())
        return None if ok else f"the identity is {identity}, got {got.tolist()}"
    if own:  # no identity is declared: a finite number would be made up; NaN and inf say that there is none
        made_up = got.is_floating_point() and bool(got.isfinite().any())
        return f"has no identity, gave {got.tolist()}" if made_up else None
    if refused:
        return f"gave {got.tolist()} where the CPU raises {type(refused).__name__}"
    return (
        None
        if torch.allclose(got, want, equal_nan=True)
        else f"{want.tolist()} expected, {got.tolist()} came"
    )


def over_all(
    op: Any, move: Any, back: Any, dtype: Any, identity: Any, own: Any, extra: Any
) -> str | None:
    empty = torch.zeros((0,), dtype=getattr(torch, dtype))
    try:
        want, refused = op(empty, *extra), None
    except Exception as exc:
        want, refused = None, exc
    if isinstance(refused, TypeError):
        return "not applicable"  # needs a dimension
    try:
        got = back(op(move(empty), *extra))
    except (RuntimeError, IndexError, ValueError) as exc:
        if identity is not None:
            return f"has the identity {identity}, raised {type(exc).__name__}: {str(exc)[:200]}"
        return None if own or refused else f"raised {type(exc).__name__}; the CPU gives {want}"
    if identity is not None:
        ok = bool((got == identity).all())
        return None if ok else f"the identity is {identity}, got {got.tolist()}"
    if own:
        made_up = got.is_floating_point() and bool(got.isfinite().any())
        return f"has no identity, gave {got.tolist()}" if made_up else None
    if refused:
        return f"gave {got.tolist()} where the CPU raises {type(refused).__name__}"
    return (
        None
        if torch.allclose(got, want, equal_nan=True)
        else f"{want.tolist()} expected, {got.tolist()} came"
    )
