"""Checks of the clause autocast.lists beyond single ops: autocast regions, and the cache of cast weights."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.autocast.asking import FLOAT32
from conformance.checks.autocast.offered import offered_dtypes
from conformance.checks.autocast.operands import leaf, operand
from conformance.checks.autocast.roundings import assert_close_in
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.STATE)


def _dtype(context: CaseContext) -> torch.dtype:
    """Return the dtype of the result of mm for float32 operands under the current autocast state."""
    return torch.mm(operand(context, 3, 3), operand(context, 3, 3)).dtype


# Regions


@cases("autocast.lists")
def region_ends(context: CaseContext) -> None:
    """Call mm before, inside and after an autocast region, and after a region that was left by an exception. The result
    must have the region's dtype only inside the region, and is_autocast_enabled and get_autocast_dtype must report the
    current state."""
    for lower in offered_dtypes(context):
        context.same(
            _dtype(context), FLOAT32, "mm of float32 has a wrong dtype outside of autocast"
        )
        with torch.autocast(context.kind, lower):
            context.same(
                _dtype(context), lower, f"mm has a wrong dtype in an autocast region of {lower}"
            )
            context.same(
                torch.is_autocast_enabled(context.kind),
                True,
                "is_autocast_enabled is wrong inside a region",
            )
            context.same(
                torch.get_autocast_dtype(context.kind),
                lower,
                "get_autocast_dtype is wrong inside a region",
            )
        context.same(_dtype(context), FLOAT32, "mm has a wrong dtype after the region")
        try:
            with torch.autocast(context.kind, lower):
                raise KeyError("ours")
        except KeyError:
            pass
        context.same(
            _dtype(context),
            FLOAT32,
            "mm has a wrong dtype after a region that was left by an exception",
        )
        context.same(
            torch.is_autocast_enabled(context.kind),
            False,
            "is_autocast_enabled is wrong after a region that was left by an exception",
        )


@cases("autocast.lists")
def region_of_another_dtype(context: CaseContext) -> None:
    """Nest autocast regions that are enabled, disabled or of another dtype: the dtype of mm must be that of the
    innermost region. After the end of the inner region, the dtype must be that of the
    outer region again."""
    for lower in offered_dtypes(context):
        for other in offered_dtypes(context):
            with torch.autocast(context.kind, lower):
                with torch.autocast(context.kind, enabled=False):
                    context.same(
                        _dtype(context),
                        FLOAT32,
                        "mm has a wrong dtype in a disabled region inside an enabled one",
                    )
                    with torch.autocast(context.kind, other):
                        context.same(
                            _dtype(context),
                            other,
                            "mm has a wrong dtype in an enabled region inside a disabled one",
                        )
                    context.same(
                        _dtype(context),
                        FLOAT32,
                        "mm has a wrong dtype in the disabled region after the end of a region inside it",
                    )
                with torch.autocast(context.kind, other):
                    context.same(
                        _dtype(context),
                        other,
                        "mm has a wrong dtype in a region inside a region of another dtype",
                    )
                context.same(
                    _dtype(context),
                    lower,
                    "mm has a wrong dtype in the outer region after the end of a region inside it",
                )


@cases("autocast.lists")
def region_off(context: CaseContext) -> None:
    """Use the result of an autocast region inside a disabled inner region: mm must run in the dtype of its operands,
    which is the lower precision or, after float(), float32."""
    for lower in offered_dtypes(context):
        with torch.autocast(context.kind, lower):
            made = torch.mm(operand(context, 3, 3), operand(context, 3, 3))
            with torch.autocast(context.kind, enabled=False):
                context.same(
                    torch.mm(made, made).dtype,
                    lower,
                    "mm of lower-precision operands has a wrong dtype in a disabled region",
                )
                context.same(
                    torch.mm(made.float(), made.float()).dtype,
                    FLOAT32,
                    "mm of float32 operands has a wrong dtype in a disabled region",
                )


@cases("autocast.lists")
def region_as_a_decorator(context: CaseContext) -> None:
    """Decorate a function with torch.autocast: the function must run under autocast, and the code that calls the
    function must not."""
    for lower in offered_dtypes(context):
        decorated = torch.autocast(context.kind, lower)(_dtype)
        context.same(
            decorated(context), lower, "mm has a wrong dtype in a function decorated with autocast"
        )
        context.same(
            _dtype(context),
            FLOAT32,
            "mm has a wrong dtype after a call of a function decorated with autocast",
        )


@cases("autocast.lists")
def region_without_a_dtype(context: CaseContext) -> None:
    """Open an autocast region without a dtype: mm must run in the dtype that get_autocast_dtype returns, which
    set_autocast_dtype changes."""
    with torch.autocast(context.kind):
        context.same(
            _dtype(context),
            torch.get_autocast_dtype(context.kind),
            "mm does not run in the default autocast dtype",
        )
    before = torch.get_autocast_dtype(context.kind)
    try:
        for lower in offered_dtypes(context):
            torch.set_autocast_dtype(context.kind, lower)
            with torch.autocast(context.kind):
                context.same(
                    _dtype(context),
                    lower,
                    "mm does not run in the dtype given to set_autocast_dtype",
                )
    finally:
        torch.set_autocast_dtype(context.kind, before)


@cases("autocast.lists")
def region_of_other_threads(context: CaseContext) -> None:
    """Call mm in other threads while an autocast region is open: mm must run in float32 there, because a region applies
    only to the thread that opened it. In that thread, the region must still be in effect afterwards."""
    for lower in offered_dtypes(context):
        with torch.autocast(context.kind, lower):
            seen = context.together(lambda: _dtype(context), lambda: _dtype(context))
            context.same(
                list(seen),
                [FLOAT32, FLOAT32],
                "mm has a wrong dtype in threads started inside a region",
            )
            context.same(
                _dtype(context), lower, "mm has a wrong dtype in the region after other threads ran"
            )


@cases("autocast.lists")
def region_of_another_device(context: CaseContext) -> None:
    """Open an autocast region for another device type: ops on the device under test must not be affected."""
    other = "cpu" if context.kind != "cpu" else "cuda"
    with torch.autocast(other, torch.bfloat16, enabled=other == "cpu"):
        context.same(
            _dtype(context), FLOAT32, f"mm has a wrong dtype in an autocast region of {other}"
        )
    for lower in offered_dtypes(context):
        with torch.autocast(context.kind, lower), torch.autocast(other, enabled=False):
            context.same(
                _dtype(context),
                lower,
                f"mm has a wrong dtype in a disabled autocast region of {other}",
            )


@cases("autocast.lists")
def what_is_not_cast(context: CaseContext) -> None:
    """Call ops on int64 and float64 operands under autocast: the results must have the dtype of the operands."""
    for lower in offered_dtypes(context):
        whole = context.to_device(torch.ones(3, 3, dtype=torch.int64))
        with torch.autocast(context.kind, lower):
            context.same(
                (whole + whole).dtype,
                torch.int64,
                "the result of integer operands has a wrong dtype under autocast",
            )
            if "float64" in context.descriptor.dtypes:
                wide = context.to_device(torch.ones(3, 3, dtype=torch.float64))
                context.same(
                    torch.mm(wide, wide).dtype,
                    torch.float64,
                    "the result of float64 operands has a wrong dtype under autocast",
                )


@cases("autocast.lists")
def in_place_and_out(context: CaseContext) -> None:
    """Call an in-place op and an op with out= under autocast: the written tensor must keep its dtype, and the operands
    of the in-place op must not be cast."""
    for lower in offered_dtypes(context):
        x, y = operand(context, 3, 3), operand(context, 3, 3, first=2)
        out = torch.empty_like(x)
        want = x + x * y
        with torch.autocast(context.kind, lower):
            torch.mm(x, y, out=out)
            context.same(out.dtype, FLOAT32, "the call changed the dtype of the out= tensor")
            x += x * y
        context.same(x.dtype, FLOAT32, "an in-place op changed the dtype of self")
        context.equal(
            context.from_device(x),
            context.from_device(want),
            "the result of an in-place op differs from its result without autocast",
        )


@cases("autocast.lists", requires={"multi_device"}, indices=2)
def every_index(context: CaseContext) -> None:
    """Call mm on every device index in an autocast region: each call must run in the region's dtype."""
    for lower in offered_dtypes(context):
        with torch.autocast(context.kind, lower):
            for index in context.indices:
                x = torch.ones(3, 3, device=context.at(index))
                context.same(
                    torch.mm(x, x).dtype,
                    lower,
                    "mm has a wrong dtype in a region",
                    at=f"index {index}",
                )


# The cache of cast weights


def _cast(product: torch.Tensor) -> Any:
    """Return the autograd graph node that cast the second operand of the product."""
    assert product.grad_fn is not None
    return product.grad_fn.next_functions[1][0]


@cases("autocast.lists")
def weight_is_cast_once(context: CaseContext) -> None:
    """Use a weight four times in an autocast region: the weight must be cast once or, with cache_enabled=False, at
    every use."""
    for lower in offered_dtypes(context):
        x, weight = operand(context, 3, 3), leaf(context, 3, 3)
        for enabled in (True, False):
            with torch.autocast(context.kind, lower, cache_enabled=enabled):
                first, second = torch.mm(x, weight), torch.mm(x, weight)
                with torch.autocast(context.kind, lower, cache_enabled=enabled):
                    third = torch.mm(x, weight)
                fourth = torch.mm(x, weight)
            nodes = [_cast(each) for each in (first, second, third, fourth)]
            once = [each is nodes[0] for each in nodes]
            context.must(_cast(first) is not weight, "the weight was not cast")
            if enabled:
                text = "not all uses of the weight share one cast, although cache_enabled=True"
            else:
                text = "several uses of the weight share one cast, although cache_enabled=False"
            context.same(once, [True, enabled, enabled, enabled], text)


@cases("autocast.lists")
def cache_ends_with_its_region(context: CaseContext) -> None:
    """Change a weight between two autocast regions: the second region must cast the weight again, with its new
    values."""
    for lower in offered_dtypes(context):
        x, weight = operand(context, 3, 3), leaf(context, 3, 3)
        products = []
        for factor in (1.0, 3.0, 0.5):
            with torch.no_grad():
                weight.mul_(factor)
            with torch.autocast(context.kind, lower):
                products.append(torch.mm(x, weight))
            cast = weight.detach().to(lower)
            want = torch.mm(x.to(lower), cast)
            text = "the region did not use the current values of the weight"
            assert_close_in(context, lower, products[-1], want, text)
        nodes = [_cast(each) for each in products]
        context.check(
            nodes[0] is not nodes[1] and nodes[1] is not nodes[2],
            "a region reused the cast of an earlier region",
        )


@cases("autocast.lists")
def another_weight_at_its_place(context: CaseContext) -> None:
    """Delete a weight in an autocast region and create a new one, which may get the same address: the new weight
    must be cast too. A cache that looks up casts by address alone would return the cast of the deleted weight."""
    for lower in offered_dtypes(context):
        x = operand(context, 3, 3)
        with torch.autocast(context.kind, lower):
            for first in range(6):
                weight = leaf(context, 3, 3, first=first + 1)
                found = torch.mm(x, weight)
                want = torch.mm(x.to(lower), weight.detach().to(lower))
                assert_close_in(
                    context,
                    lower,
                    found,
                    want,
                    "the product was not computed with the values of the new weight",
                )
                del weight


@cases("autocast.lists")
def activations_are_not_kept(context: CaseContext) -> None:
    """Use tensors that are not leaf parameters in an autocast region, and change them there in place: the next op must
    use the new values, so casts of such tensors must not be cached."""
    for lower in offered_dtypes(context):
        x, weight = operand(context, 3, 3), leaf(context, 3, 3)
        with torch.autocast(context.kind, lower):
            plain = operand(context, 3, 3, first=9)
            for factor in (1.0, 2.0):
                plain.mul_(factor)
                want = torch.mm(x.to(lower), plain.to(lower))
                assert_close_in(
                    context,
                    lower,
                    torch.mm(x, plain),
                    want,
                    "the product was not computed with the current values of its operand",
                )
            made = weight * 2
            with torch.no_grad():
                before = torch.mm(x, made)
                made.mul_(2)
                after = torch.mm(x, made)
            assert_close_in(
                context,
                lower,
                after,
                2 * before,
                "the product was not computed with the current values of the activation",
            )


@cases(
    "autocast.lists",
    over={"no_grad_first": ("no_grad",), "inference_mode_first": ("inference_mode",)},
)
def poisoned(context: CaseContext, mode: str) -> None:
    """Use a weight under no_grad or inference_mode in an autocast region and then outside of that mode: the later
    product must have a graph, and backward must give the weight a float32 gradient."""
    for lower in offered_dtypes(context):
        x, weight = operand(context, 3, 3), leaf(context, 3, 3)
        with torch.autocast(context.kind, lower):
            with getattr(torch, mode)():
                context.same(torch.mm(x, weight).dtype, lower, f"mm has a wrong dtype under {mode}")
            found = torch.mm(x, weight)
            context.check(
                found.requires_grad, f"after {mode}, a product does not require a gradient"
            )
            with torch.no_grad():
                context.check(
                    not torch.mm(x, weight).requires_grad,
                    "under no_grad, a product requires a gradient",
                )
        found.float().sum().backward()
        context.check(weight.grad is not None, "the weight has no gradient")
        assert weight.grad is not None
        context.same(
            weight.grad.dtype, FLOAT32, "the weight's gradient has a wrong dtype", kind=Kind.DTYPE
        )
