"""layout.variants: function, method, operator, in-place and out variants agree, on contiguous inputs.

Layouts are the business of the other clauses: here the question is only whether the variants are one op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext
from conformance.layout.targets import (
    contiguous_inputs,
    outputs_of,
    prefill,
    takes_no_out,
    target_argument,
)
from opinfo.reference import on_device
from opinfo.samples import Sample
from opinfo.structure import tensors_of

CLAUSE = "layout.variants"


def check(ctx: ItemContext) -> None:
    """Compare every variant with the function, on copies of the same inputs."""
    if not ctx.wants(CLAUSE):
        return
    with ctx.running(CLAUSE) as (record,):
        assert record is not None
        for sample in ctx.samples:
            _one_sample(ctx, sample, record)


def _fresh(ctx: ItemContext, sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors = [ctx.place(t.clone()) for t in sample.tensors]
    args, kwargs = sample.call.bind(tensors)
    return args, on_device(kwargs, ctx.device.torch_device)


def _one_sample(ctx: ItemContext, sample: Sample, record: CellRecord) -> None:
    function = ctx.op.function
    args, kwargs = _fresh(ctx, sample)
    try:
        result = function(*args, **kwargs)
        ctx.device.settle(result)
        reference = ctx.fetch(result)
    except NotImplementedError as exc:
        record.refuse(exc)
        return
    except Exception as exc:  # the values clause judges whether the function may raise here
        _all_raise(ctx, sample, record, exc)
        return
    for name, call in _others(ctx, sample, result):
        try:
            args, kwargs = _fresh(ctx, sample)
            got = call(args, kwargs)
            ctx.device.settle(got)
            got = ctx.fetch(got)
        except NotImplementedError as exc:
            record.refuse(exc)
            continue
        except TypeError as exc:
            # Operators and methods do not take every argument of the function.
            other_form = "unexpected keyword" in str(exc) or takes_no_out(exc)
            if name in ("operator", "inplace_operator") or other_form:
                continue
            problem: str | None = f"raised TypeError: {exc}"
        except Exception as exc:  # judged
            if takes_no_out(exc) or (
                name.startswith("inplace") and _reference_refuses(ctx, sample)
            ):
                continue
            problem = f"raised {type(exc).__name__}: {(str(exc).splitlines() or [''])[0][:300]}"
        else:
            found = ctx.differs_there(got, _as_variant(name, reference, sample), sample)
            problem = found.text if found is not None else None
        record.check(sample.index, name)
        if problem is not None:
            laid = contiguous_inputs(ctx, sample)
            record.fail(
                Failure(
                    name,
                    f"the {name} variant disagrees with the function: {problem}",
                    size=sample.numel,
                    repro=repro.for_call(
                        ctx, laid, "variants", layout=name, VARIANT=name, OP_ID=ctx.op.id
                    ),
                )
            )


def _all_raise(ctx: ItemContext, sample: Sample, record: CellRecord, raised: Exception) -> None:
    """Where the function raises and the CPU's does not, the variants agree by raising too."""
    answer = ctx.expected(contiguous_inputs(ctx, sample))
    if answer.raises is not None:
        return
    for name, call in _others(ctx, sample, answer.result):
        args, kwargs = _fresh(ctx, sample)
        try:
            ctx.device.settle(call(args, kwargs))
        except Exception:  # any exception is agreement
            record.check(sample.index, name)
            continue
        record.check(sample.index, name)
        laid = contiguous_inputs(ctx, sample)
        record.fail(
            Failure(
                name,
                f"the function raises {type(raised).__name__} "
                f"({(str(raised).splitlines() or [''])[0][:200]}), the {name} variant does not",
                size=sample.numel,
                repro=repro.for_call(
                    ctx, laid, "variants", layout=name, VARIANT=name, OP_ID=ctx.op.id
                ),
            )
        )


def _others(
    ctx: ItemContext, sample: Sample, result: Any
) -> Iterator[tuple[str, Callable[[tuple[Any, ...], dict[str, Any]], Any]]]:
    op, first = ctx.op, sample.call.args[0]
    if not isinstance(first, torch.Tensor):
        first = None
    if op.method is not None and first is not None:
        yield "method", lambda a, k: op.method(*a, **k)  # type: ignore[misc]
    plain = len(sample.call.args) == 2 and not sample.call.kwargs
    if op.operator is not None and first is not None and plain:
        yield "operator", lambda a, k: op.operator(*a)  # type: ignore[misc]
    if first is not None and _fits_self(result, first):
        if op.inplace is not None:
            yield "inplace", lambda a, k: op.inplace(*a, **k)  # type: ignore[misc]
        if op.inplace_operator is not None and plain:
            yield "inplace_operator", lambda a, k: op.inplace_operator(*a)  # type: ignore[misc]
    wanted = outputs_of(result) if op.has_out and not tensors_of(sample.call.kwargs) else None
    if wanted is not None:
        # Fresh memory may hold the right result by chance: a target that is not written must be seen.
        targets = [torch.full_like(t, prefill(t.dtype)) for t in wanted]

        def with_out(a: tuple[Any, ...], k: dict[str, Any]) -> Any:
            op.function(*a, **k, out=target_argument(result, targets))
            return target_argument(result, targets)

        yield "out", with_out


def _reference_refuses(ctx: ItemContext, sample: Sample) -> bool:
    """Whether FakeTensor refuses the in-place form (``float_power_`` of a float32 base, say)."""
    laid = contiguous_inputs(ctx, sample)
    return ctx.stride_answer(laid, ctx.op.inplace, "@inplace").raises is not None


def _fits_self(result: Any, first: torch.Tensor) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result.shape == first.shape
        and torch.can_cast(result.dtype, first.dtype)
    )


def _as_variant(name: str, reference: Any, sample: Sample) -> Any:
    """An in-place variant keeps self's dtype; the function's result may have another."""
    if name.startswith("inplace") and isinstance(reference, torch.Tensor):
        return reference.to(sample.call.args[0].dtype)
    return reference
