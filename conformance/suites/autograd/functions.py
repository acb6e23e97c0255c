"""Checks of the clause autograd.function: custom subclasses of torch.autograd.Function must work on the device as
documented."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)

WRONG_GRADIENT = "the gradient is wrong"


def values(*shape: int) -> torch.Tensor:
    """Return a CPU tensor of the given shape with different values from 0.2 to 0.9."""
    return torch.linspace(0.2, 0.9, torch.Size(shape).numel()).reshape(shape)


def leaf(context: CaseContext, *shape: int, index: int = 0) -> torch.Tensor:
    return values(*shape).to(context.named(index)).requires_grad_()


def apply(function: Any, *given: Any) -> Any:
    """Call ``apply`` of a subclass of torch.autograd.Function and return the result."""
    return function.apply(*given)


def assert_tensor_close(
    context: CaseContext, found: Any, want: torch.Tensor, text: str = WRONG_GRADIENT, at: str = ""
) -> None:
    """Check that ``found`` is a tensor with the dtype, the shape and (within 1 %) the values of ``want``."""
    context.check(isinstance(found, torch.Tensor), "the tensor is missing (None)", at=at)
    there = found.detach().cpu()
    context.same(there.dtype, want.dtype, text, Kind.DTYPE, at)
    context.same(tuple(there.shape), tuple(want.shape), text, Kind.SHAPE, at)
    context.assert_close(there, want, text, at, rtol=0.01, atol=0.001)


# -- needs_input_grad and save_for_backward


class _Product(torch.autograd.Function):
    """A Function that computes ``n * x * w + b``. Its backward appends ``ctx.needs_input_grad`` to the list
    ``seen``."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, n: float, w: torch.Tensor, b: torch.Tensor, seen: list[Any]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.n, ctx.seen = n, seen
        return n * x * w + b

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        ctx.seen.append(ctx.needs_input_grad)
        wanted_x, _, wanted_w, wanted_b, _ = ctx.needs_input_grad
        return (
            grads[0] * ctx.n * w if wanted_x else None,
            None,
            grads[0] * ctx.n * x if wanted_w else None,
            grads[0] if wanted_b else None,
            None,
        )


class _SetUp(torch.autograd.Function):
    """A Function that computes ``n * x * w + b`` like :class:`_Product`, but saves tensors in ``setup_context``."""

    @staticmethod
    def forward(
        x: torch.Tensor, n: float, w: torch.Tensor, b: torch.Tensor, seen: list[Any]
    ) -> torch.Tensor:
        return n * x * w + b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.n, w, _, ctx.seen = inputs
        ctx.save_for_backward(x, w)

    backward = _Product.backward


@cases("autograd.function", over={"needs_input_grad": ("_Product",), "needs_input_grad_set_up": ("_SetUp",)})  # fmt: skip
def needs_input_grad(context: CaseContext, name: str) -> None:
    """Let each subset of the inputs of a Function require gradients: ctx.needs_input_grad must be true for exactly the
    inputs of the subset, and only these inputs may receive a gradient."""
    function = {"_Product": _Product, "_SetUp": _SetUp}[name]
    x, w, b = values(3, 4), values(4, 3).t().contiguous() + 1, values(3, 4).flip(0)
    wanted = (2.5 * w, 2.5 * x, torch.ones(3, 4))
    for subset in product((True, False), repeat=3):
        at = f"x, w, b require gradients: {subset}"
        inputs = [
            context.to_device(each.clone()).requires_grad_(on)
            for each, on in zip((x, w, b), subset)
        ]
        seen: list[Any] = []
        y = apply(function, inputs[0], 2.5, *inputs[1:], seen)
        context.same(
            y.requires_grad,
            any(subset),
            "requires_grad of the result is wrong",
            Kind.STATE,
            at,
        )
        assert_tensor_close(context, y, 2.5 * x * w + b, "the result is wrong", at)
        if not any(subset):
            continue
        y.backward(torch.ones_like(y))
        want = (subset[0], False, subset[1], subset[2], False)
        context.same(seen, [want], "ctx.needs_input_grad is wrong", Kind.STATE, at)
        for each, on, grad in zip(inputs, subset, wanted):
            if on:
                assert_tensor_close(context, each.grad, grad, WRONG_GRADIENT, at)
            else:
                context.check(
                    each.grad is None,
                    "an input that requires no gradient received a gradient",
                    at=at,
                )


class SavesAll(torch.autograd.Function):
    """A Function that computes ``exp(x)`` and saves its input, its result, a new transposed tensor, and None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y, (x * 2).t(), None)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y, own, nothing = ctx.saved_tensors
        assert nothing is None
        return grads[0] * y + 0 * (own.t() - 2 * x)


@cases("autograd.function")
def saved_tensors(context: CaseContext) -> None:
    """Save the input, the result, a new tensor and None in a Function: backward must get all four back. After backward,
    access to the saved tensors must raise RuntimeError. If the input or the result is changed in place before backward,
    backward must raise RuntimeError."""
    x = leaf(context, 3, 4)
    y = apply(SavesAll, x)
    y.backward(torch.ones_like(y))
    assert_tensor_close(context, x.grad, values(3, 4).exp())
    text = "access to saved tensors after backward does not raise the documented exception"
    context.raises(
        RuntimeError, lambda: y.grad_fn.saved_tensors, text=text, match="freed|second time"
    )
    for which in ("input", "result"):
        x = leaf(context, 3, 4)
        middle = x * 1
        y = apply(SavesAll, middle)
        with torch.no_grad():
            (middle if which == "input" else y).detach().zero_()
        text = "backward does not raise the documented exception after a saved tensor was changed in place"
        context.raises(RuntimeError, y.sum().backward, text=text, match="modified by an inplace")


# -- mark_dirty and mark_non_differentiable


class _Doubles(torch.autograd.Function):
    """A Function that doubles x in place and marks it as dirty."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


@cases("autograd.function")
def mark_dirty(context: CaseContext) -> None:
    """Change the input of a Function in place and call ctx.mark_dirty: apply must return the same tensor, the version
    of the tensor must rise, and the gradients must be right. If another op had saved the tensor before, backward must
    raise RuntimeError. Changing a leaf that requires a gradient must raise RuntimeError too."""
    x = leaf(context, 4, 6)
    y = x * 3
    before = y._version
    z = apply(_Doubles, y)
    context.check(
        z is y, "apply() did not return the tensor that was marked dirty", kind=Kind.ALIAS
    )
    context.check(
        y._version > before, "the version of the changed tensor did not rise", kind=Kind.COUNT
    )
    z.backward(torch.ones_like(z))
    assert_tensor_close(context, x.grad, torch.full((4, 6), 6.0))
    assert_tensor_close(
        context, z, values(4, 6) * 6, "the values of the tensor changed in place are wrong"
    )
    saved = leaf(context, 4, 6)
    base = saved * 1
    product = base * base
    apply(_Doubles, base)
    text = "backward does not raise the documented exception after a saved tensor was marked dirty"
    context.raises(RuntimeError, product.sum().backward, text=text, match="modified by an inplace")
    text = "an in-place change of a leaf that requires a gradient does not raise the documented exception"
    context.raises(RuntimeError, apply, _Doubles, leaf(context, 2), text=text, match="leaf")


#: Views of a tensor of shape (4, 6).
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": lambda x: x[2],
    "all rows from the second on": lambda x: x[1:],
    "a stepped column": lambda x: x[1::2, 3],
    "the transpose of a slice": lambda x: x[1:, 2:5].t(),
    "the diagonal": lambda x: x.diagonal(1),
    "a view of another shape": lambda x: x.view(2, 12)[1],
}


@cases("autograd.function", requires={"strides"}, over={"dirty_view": ("dirty",), "written_view": ("written",), "dirty_view_of_transposed": ("dirty_t",), "written_view_of_transposed": ("written_t",)})  # fmt: skip
def views_of(context: CaseContext, way: str) -> None:
    """Write to a view of a Function's result, by another Function (mark_dirty) or by mul_: values and gradients must
    change for exactly the elements of the view."""
    transposed = way.endswith("_t")
    for name, view in VIEWS.items():
        if transposed and name == "a view of another shape":
            continue  # view() needs a contiguous tensor
        given = values(6, 4).t() if transposed else values(4, 6)
        x = context.to_device(given.clone()).requires_grad_()
        base = apply(Tripled, x)
        shown = view(base)
        if way.startswith("dirty"):
            apply(_Doubles, shown)
        else:
            shown.mul_(2)
        base.backward(context.to_device(values(4, 6)))
        factor = torch.full((4, 6), 3.0)
        view(factor).mul_(2)
        assert_tensor_close(context, x.grad, factor * values(4, 6), WRONG_GRADIENT, name)
        assert_tensor_close(
            context, base, given * factor, "the values after a write to the view are wrong", name
        )


class Tripled(torch.autograd.Function):
    """A Function that computes ``3 * x``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 3


class _WithIndices(torch.autograd.Function):
    """A Function that returns x with sorted rows, the sort indices, and the sorted rows rounded. The last two results
    are marked as non-differentiable; backward appends their cotangents to ``seen``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seen: list[Any]) -> Any:
        found, order = x.sort(1, descending=True)
        ctx.mark_non_differentiable(order, rounded := found.round())
        ctx.save_for_backward(order)
        ctx.seen = seen
        return found, order, rounded

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (order,) = ctx.saved_tensors
        ctx.seen += grads[1:]
        return torch.zeros_like(grads[0]).scatter_(1, order, grads[0]), None


@cases("autograd.function")
def mark_non_differentiable(context: CaseContext) -> None:
    """Pass results to ctx.mark_non_differentiable: they must not require a gradient, and backward must receive zeros as
    their cotangents."""
    x, seen = leaf(context, 3, 4), list[Any]()
    found, order, rounded = apply(_WithIndices, x, seen)
    flags = [each.requires_grad for each in (found, order, rounded)]
    context.same(flags, [True, False, False], "requires_grad of the results is wrong", Kind.STATE)
    (found * context.to_device(values(3, 4))).sum().backward()
    assert_tensor_close(context, x.grad, values(3, 4).flip(1))
    zeros = torch.zeros(3, 4)
    context.same(
        [each.dtype for each in seen],
        [torch.int64, torch.float32],
        "the dtype of a cotangent differs from the dtype of its result",
        Kind.DTYPE,
    )
    for each in seen:
        assert_tensor_close(
            context, each.float(), zeros, "the cotangent of a non-differentiable result is not zero"
        )


# -- cotangents of unused results


class _Several(torch.autograd.Function):
    """A Function that returns ``2 * x``, x transposed, and x in bfloat16. Its backward appends the cotangents to
    ``seen``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, materialize: bool, seen: list[Any]) -> Any:
        ctx.set_materialize_grads(materialize)
        ctx.seen = seen
        return x * 2, x.t() * 1, x.bfloat16()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.seen += grads
        first, second, third = grads
        total = 0 if first is None else first * 2
        total = total if second is None else total + second.t()
        return total if third is None else total + third.float(), None, None


@cases("autograd.function", over={"materialized": (0,)})
@cases("autograd.function", requires={"multi_device"}, indices=2, over={"materialized_on_index_1": (1,)})  # fmt: skip
def materialized(context: CaseContext, index: int) -> None:
    """Use only one of three results of a Function: for each unused result, backward must receive a cotangent of zeros
    with the result's shape, dtype and device."""
    for used in range(3):
        at = f"a backward pass that uses only result {used}"
        x, seen = leaf(context, 3, 4, index=index), list[Any]()
        results = apply(_Several, x, True, seen)
        results[used].backward(torch.ones_like(results[used]))
        forms = [(each.shape, each.dtype, each.device) for each in results]
        found = [(each.shape, each.dtype, each.device) for each in seen]
        context.same(
            found,
            forms,
            "the shape, dtype or device of a cotangent differs from that of its result",
            Kind.SHAPE,
            at,
        )
        for place, each in enumerate(seen):
            want = torch.full(tuple(each.shape), float(place == used), dtype=each.dtype)
            assert_tensor_close(context, each, want, "the value of a cotangent is wrong", at)
        assert_tensor_close(
            context, x.grad, torch.full((3, 4), 2.0 if used == 0 else 1.0), WRONG_GRADIENT, at
        )


@cases("autograd.function")
def not_materialized(context: CaseContext) -> None:
    """Use only one of three results of a Function that calls ctx.set_materialize_grads(False): backward must receive
    None for each unused result."""
    for used in range(3):
        x, seen = leaf(context, 3, 4), list[Any]()
        results = apply(_Several, x, False, seen)
        results[used].backward(torch.ones_like(results[used]))
        there = [each is not None for each in seen]
        want = [place == used for place in range(3)]
        context.same(
            there,
            want,
            "the cotangent of an unused result is not None",
            Kind.STATE,
            f"only result {used} is used",
        )
        assert_tensor_close(
            context,
            x.grad,
            torch.full((3, 4), 2.0 if used == 0 else 1.0),
            WRONG_GRADIENT,
            f"only result {used} is used",
        )


# -- views and inputs as results


class _Part(torch.autograd.Function):
    """A Function that returns a view of a part of its input, or two such views if ``several`` is true."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, several: bool) -> Any:
        ctx.shape = x.shape
        return (x[1:], x[:1]) if several else x[1:]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        whole = torch.zeros(ctx.shape, device=grads[0].device)
        whole[1:] = grads[0] * 5
        if len(grads) > 1:
            whole[:1] = grads[1] * 7
        return whole, None


@cases("autograd.function", over={"view_as_result": (False,), "views_as_results": (True,)})
def view_as_result(context: CaseContext, several: bool) -> None:
    """Return views of the input from a Function: the gradient must be the one that the Function's backward returns, and
    changing such a view in place must raise RuntimeError."""
    x = leaf(context, 3, 4)
    made = apply(_Part, x * 1, several)
    results = list(made) if several else [made]
    torch.autograd.backward(results, [torch.ones_like(each) for each in results])
    want = torch.full((3, 4), 5.0)
    want[:1] = 7.0 if several else 0.0
    assert_tensor_close(context, x.grad, want)
    text = "an in-place change of a view that a Function returned does not raise the documented exception"
    context.raises(RuntimeError, lambda: results[0].mul_(2), text=text, match="view")


class _Same(torch.autograd.Function):
    """A Function that returns its input unchanged. Its gradient is four times the cotangent."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 4


@cases("autograd.function")
def input_as_result(context: CaseContext) -> None:
    """Return the input of a Function as its result: the result must be a new tensor with the same memory and strides,
    and the gradient must be the one that the Function's backward returns."""
    inputs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "a leaf": lambda x: x,
        "a product": lambda x: x * 1,
        "a view": lambda x: (x * 1).t(),
    }
    for text, made in inputs.items():
        x = leaf(context, 3, 4)
        given = made(x)
        y = apply(_Same, given)
        context.check(
            y is not given, "the result is the input tensor itself", kind=Kind.ALIAS, at=text
        )
        if context.has("storage"):
            same = y.data_ptr() == given.data_ptr()
            context.check(
                same,
                "the result does not share the memory of the input",
                kind=Kind.NOT_ALIASED,
                at=text,
            )
        context.same(
            y.stride(),
            given.stride(),
            "the strides of the result differ from those of the input",
            Kind.STRIDES,
            text,
        )
        y.backward(torch.ones_like(y))
        assert_tensor_close(context, x.grad, torch.full((3, 4), 4.0), WRONG_GRADIENT, text)
    plain = context.to_device(values(3, 4))
    context.check(
        not apply(_Same, plain).requires_grad,
        "the result requires a gradient although no input does",
        kind=Kind.STATE,
    )


# -- the gradients that backward returns


class _Returns(torch.autograd.Function):
    """A Function that computes ``x + y``. Its backward calls the function ``made`` with the cotangent and returns
    the result as gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, y: torch.Tensor, made: Callable[[torch.Tensor], Any]
    ) -> torch.Tensor:
        ctx.made = made
        return x + y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        found = ctx.made(grads[0])
        return (*found, None) if isinstance(found, tuple) else found


@cases("autograd.function")
def returned_gradients(context: CaseContext) -> None:
    """Return unusual gradients from backward: tensors with unusual strides or in another dtype than the input,
    expanded tensors, the cotangent itself, or one tensor for both inputs. The leaves must accumulate the right
    gradients."""
    given = values(3, 4)
    ones = torch.ones(3, 4)
    ways: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, torch.Tensor]] = {
        "the cotangent itself for both inputs": (lambda g: (g, g), given, given),
        "one tensor for both inputs": (lambda g: (h := g * 2, h), given * 2, given * 2),
        "transposed strides": (lambda g: ((g.t() * 3).contiguous().t(), g), given * 3, given),
        "stepped": (lambda g: (torch.stack([g, g * 7], 2)[..., 1], g), given * 7, given),
        "expanded": (lambda g: (g[:1].expand(3, 4), g), given[:1].expand(3, 4), given),
        "a number, expanded": (
            lambda g: (g.new_full((1, 1), 4.0).expand(3, 4), g),
            ones * 4,
            given,
        ),
        "bfloat16": (lambda g: (g.bfloat16() * 2, g), given * 2, given),
        "a storage offset": (lambda g: (torch.cat([g, g * 6])[3:], g), given * 6, given),
    }
    for name, (made, first, second) in ways.items():
        x, y = leaf(context, 3, 4), leaf(context, 3, 4)
        for times in (1, 2):
            result = apply(_Returns, x, y, made)
            result.backward(context.to_device(given.clone()))
            assert_tensor_close(
                context, x.grad, first * times, WRONG_GRADIENT, f"{name}, backward pass {times}"
            )
            assert_tensor_close(
                context, y.grad, second * times, WRONG_GRADIENT, f"{name}, backward pass {times}"
            )
        assert x.grad is not None
        form = x.grad.dtype
        context.same(
            form,
            torch.float32,
            "the dtype of a gradient differs from the dtype of its leaf",
            Kind.DTYPE,
            name,
        )
        with torch.no_grad():
            x.grad.zero_()
        text = "the gradients of two leaves share memory"
        assert_tensor_close(context, y.grad, second * 2, text, name)


@cases("autograd.function")
def wrong_gradients(context: CaseContext) -> None:
    """Return the wrong number of gradients, or a gradient of the wrong shape or on the wrong device, from backward:
    RuntimeError must be raised."""
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "too few gradients": lambda g: (g,),
        "too many gradients": lambda g: (g, g, None, g),
        "gradients of the wrong shape": lambda g: (g[:2], g),
        "gradients of the wrong rank": lambda g: (g.new_ones(2, 3), g),
    }
    if context.kind != "cpu":
        ways["a gradient on the CPU"] = lambda g: (torch.ones(3, 4), g)
    for name, made in ways.items():
        y = apply(_Returns, leaf(context, 3, 4), leaf(context, 3, 4), made)
        text = f"backward() does not raise the documented exception for {name}"
        context.raises(RuntimeError, y.sum().backward, text=text)
