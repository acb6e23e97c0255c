"""layout.beta_zero and layout.fp32_precision: what the matrix products promise."""

from __future__ import annotations

from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import directed, repro
from conformance.layout.context import ItemContext
from conformance.layout.targets import contiguous_inputs
from opinfo.reference import value_answer
from opinfo.samples import Sample
from opinfo.structure import tensors_of

BETA_ZERO, PRECISION = "layout.beta_zero", "layout.fp32_precision"

#: Shapes of (input, first, second) by the name of the op's family.
_SHAPES = {
    "beta_zero.mm": ((4, 5), (4, 3), (3, 5)),
    "beta_zero.mv": ((4,), (4, 3), (3,)),
    "beta_zero.outer": ((4, 5), (4,), (5,)),
    "beta_zero.bmm": ((2, 4, 5), (2, 4, 3), (2, 3, 5)),
    "beta_zero.sum_bmm": ((4, 5), (2, 4, 3), (2, 3, 5)),
}

#: Largest relative error (Frobenius norm) that float32 arithmetic leaves: measured errors lie near 1e-7;
#: TF32 leaves 3e-4, bfloat16 3e-3.
_FLOAT32_LEVEL = 1e-5


def check(ctx: ItemContext) -> None:
    """Both clauses, where the op's family says that they apply."""
    if ctx.wants(BETA_ZERO):
        with ctx.running(BETA_ZERO) as (record,):
            assert record is not None
            _beta_zero(ctx, record)
    if ctx.wants(PRECISION):
        with ctx.running(PRECISION) as (record,):
            assert record is not None
            for sample in ctx.samples:
                _precision(ctx, sample, record)


def _beta_zero(ctx: ItemContext, record: CellRecord) -> None:
    for family, shapes in _SHAPES.items():
        if family not in ctx.traits.families:
            continue
        for number, poison in enumerate((float("nan"), float("inf"))):
            directed.run(
                ctx,
                record,
                "beta_zero",
                ignores_input,
                number,
                shapes=shapes,
                dtype=ctx.dtype,
                poison=poison,
            )
        if family != "beta_zero.outer":
            directed.run(ctx, record, "k_zero", overwrites, shapes=shapes, dtype=ctx.dtype)


def ignores_input(
    op: Any, move: Any, back: Any, shapes: Any, dtype: Any, poison: Any
) -> str | None:
    kind = getattr(torch, dtype)
    if not (kind.is_floating_point or kind.is_complex):
        # no NaN: beta = 0 must still leave it out
        poison = True if kind == torch.bool else torch.iinfo(kind).max
    first = (torch.arange(torch.Size(shapes[1]).numel()) % 3).reshape(shapes[1]).to(kind)
    second = (torch.arange(torch.Size(shapes[2]).numel()) % 2).reshape(shapes[2]).to(kind)
    want = op(torch.zeros(shapes[0], dtype=kind), first, second, beta=0)
    got = back(
        op(move(torch.full(shapes[0], poison, dtype=kind)), move(first), move(second), beta=0)
    )
    if not torch.allclose(got, want):
        return (
            f"beta = 0 and an input full of {poison}: expected {want.tolist()}, got {got.tolist()}"
        )
    return None


def overwrites(op: Any, move: Any, back: Any, shapes: Any, dtype: Any) -> str | None:
    kind = getattr(torch, dtype)
    inner = [list(shapes[1]), list(shapes[2])]
    inner[0][-1] = 0
    inner[1][-2 if len(inner[1]) > 1 else 0] = 0
    stale = 7 if not kind.is_floating_point and not kind.is_complex else float("nan")
    out = move(torch.full(shapes[0], stale, dtype=kind))
    given = move(torch.ones(shapes[0], dtype=kind))
    op(
        given,
        move(torch.zeros(inner[0], dtype=kind)),
        move(torch.zeros(inner[1], dtype=kind)),
        beta=0,
        out=out,
    )
    if not torch.equal(back(out), torch.zeros(shapes[0], dtype=kind)):
        return f"a product over K = 0 with beta = 0 left {back(out).tolist()} in out"
    return None


def _precision(ctx: ItemContext, sample: Sample, record: CellRecord) -> None:
    """Compare with the CPU in float64, at matmul precision "highest"."""
    wide = [t.double() if t.is_floating_point() else t for t in sample.tensors]
    answer = value_answer(ctx.op.function, sample.call, wide, mutates=True)
    laid = contiguous_inputs(ctx, sample)
    if answer.raises is not None or ctx.expected(laid).raises is not None:
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        result = ctx.fetch(ctx.run(ctx.op.function, laid))
    except NotImplementedError as exc:
        record.refuse(exc)
        return
    except Exception:  # the values clause judges it
        return
    finally:
        torch.set_float32_matmul_precision(before)
    for got, want in zip(tensors_of(result), tensors_of(answer.result), strict=True):
        if not want.is_floating_point():
            continue
        record.check(sample.index, "highest")
        norm = float(want.norm())
        error = float((got.double() - want).norm()) / norm if norm else float(got.double().norm())
        if not error <= _FLOAT32_LEVEL:
            record.fail(
                Failure(
                    "highest",
                    f"relative error {error:.3g} against float64; float32 arithmetic leaves less than "
                    f"{_FLOAT32_LEVEL:g}",
                    error=error,
                    size=sample.numel,
                    repro=repro.for_call(ctx, laid, "fp32_precision", LIMIT=_FLOAT32_LEVEL),
                )
            )
