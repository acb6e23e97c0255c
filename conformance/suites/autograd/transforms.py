"""Checks of custom Functions for the clause autograd.function: derivatives of higher order, forward mode, vmap, complex
numbers and compilation."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.autograd.functions import (
    WRONG_GRADIENT,
    SavesAll,
    Tripled,
    apply,
    assert_tensor_close,
    leaf,
    values,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)


# -- derivatives of higher order, forward mode, vmap


class _Cube(torch.autograd.Function):
    """A Function that computes ``x ** 3`` and has everything that torch.func requires of a Function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x * x

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        return tangents[0] * 3 * x * x


def _cubes(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = apply(_Cube, x).sum()
    return made


class _OwnRule(torch.autograd.Function):
    """A Function that computes ``x * y`` and defines its own vmap rule."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grads[0] * y, grads[0] * x

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: torch.Tensor) -> Any:
        moved = [
            each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
            for each, dim in zip(given, dims)
        ]
        return apply(_OwnRule, *moved), 0


@cases("autograd.function")
def higher_orders(context: CaseContext) -> None:
    """Differentiate a custom Function three times, along one path of the graph and along two paths that meet: every
    derivative must be right."""
    for text, paths in (("one path", 1), ("two paths that meet", 2)):
        x = leaf(context, 3, 4)
        found = sum(apply(_Cube, x * 1) for _ in range(paths)).sum()
        for order, factor in enumerate((3.0 * paths, 6.0 * paths, 6.0 * paths), 1):
            (found,) = torch.autograd.grad(found, x, torch.ones_like(found), create_graph=True)
            want = factor * values(3, 4) ** (3 - order)
            assert_tensor_close(
                context, found, want, f"the derivative of order {order} is wrong", text
            )


class _Once(torch.autograd.Function):
    """A Function that computes ``x ** 2``. Its backward is marked once_differentiable."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 2 * x


@cases("autograd.function")
def once(context: CaseContext) -> None:
    """Call a backward that is marked once_differentiable: the gradient must be right, and differentiating it again must
    raise RuntimeError."""
    x = leaf(context, 3, 4)
    y = (apply(_Once, x) * x).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert_tensor_close(context, first, 3 * values(3, 4) ** 2)
    text = "differentiating a once_differentiable backward does not raise the documented exception"
    context.raises(RuntimeError, first.sum().backward, text=text, match="once_differentiable")


@cases("autograd.function", over={"forward_mode": ("plain",), "forward_mode_transposed": ("t",), "forward_mode_expanded": ("expanded",)})  # fmt: skip
def forward_mode(context: CaseContext, layout: str) -> None:
    """Compute forward-mode derivatives of a Function that defines jvp, for a contiguous, a transposed and an expanded
    tangent: the derivatives must be right."""
    x = context.to_device(values(3, 4))
    tangent = values(4, 3).t() if layout == "t" else values(1, 4).expand(3, 4) if layout == "expanded" else values(3, 4) + 1  # fmt: skip
    there = context.to_device(tangent)
    want = 3 * values(3, 4) ** 2 * tangent
    with warnings.catch_warnings():
        # torch scripts its decompositions at first use, which warns.
        warnings.simplefilter("ignore", DeprecationWarning)
        found = torch.func.jvp(partial(apply, _Cube), (x,), (there,))[1]
    assert_tensor_close(context, found, want, "the result of torch.func.jvp is wrong")
    modes: Any = forward_ad
    with modes.dual_level():
        made = apply(_Cube, forward_ad.make_dual(x, there))
        primal, found = forward_ad.unpack_dual(made)
    assert_tensor_close(context, primal, values(3, 4) ** 3, "the result is wrong")
    assert_tensor_close(context, found, want, "the forward-mode derivative is wrong")


@cases("autograd.function")
def transforms(context: CaseContext) -> None:
    """Differentiate a custom Function by torch.func: the results of grad, vjp, jacrev, jacfwd and of the Hessian
    (jacrev of grad) must be right."""
    x, flat = context.to_device(values(3, 4)), context.to_device(values(4))
    cube = partial(apply, _Cube)
    first, second = 3 * values(3, 4) ** 2, 3 * values(4) ** 2
    assert_tensor_close(
        context, torch.func.grad(_cubes)(x), first, "the result of torch.func.grad is wrong"
    )
    pull: Any = torch.func.vjp(cube, x)[1]
    assert_tensor_close(
        context, pull(x)[0], first * values(3, 4), "the result of torch.func.vjp is wrong"
    )
    assert_tensor_close(
        context,
        torch.func.jacrev(cube)(flat),
        second.diag(),
        "the result of torch.func.jacrev is wrong",
    )
    assert_tensor_close(
        context,
        torch.func.jacfwd(cube)(flat),
        second.diag(),
        "the result of torch.func.jacfwd is wrong",
    )
    hessian = torch.func.jacrev(torch.func.grad(_cubes))
    assert_tensor_close(context, hessian(flat), (6 * values(4)).diag(), "the Hessian is wrong")


@cases("autograd.function", over={"vmap": ("_Cube",), "vmap_with_own_rule": ("_OwnRule",)})
def batched(context: CaseContext, name: str) -> None:
    """Apply vmap to a custom Function over each dimension: results and gradients must equal those of a loop over the
    dimension."""
    x, y = values(3, 4, 5), values(3, 4, 5).flip(0)
    there, beside = context.to_device(x), context.to_device(y)
    for dim in range(3):
        at = f"dimension {dim}"
        if name == "_Cube":
            found = torch.func.vmap(partial(apply, _Cube), dim, dim)(there)
            assert_tensor_close(
                context, found, x**3, "the result of vmap differs from the result of a loop", at
            )
            grad = torch.func.vmap(torch.func.grad(lambda v: apply(_Cube, v).sum()), dim, dim)(
                there
            )
            assert_tensor_close(context, grad, 3 * x**2, "the gradient inside vmap is wrong", at)
            continue
        found = torch.func.vmap(partial(apply, _OwnRule), (dim, dim), dim)(there, beside)
        assert_tensor_close(
            context, found, x * y, "the result of vmap differs from the result of a loop", at
        )
        one = beside.select(dim, 1)
        found = torch.func.vmap(partial(apply, _OwnRule), (dim, None), dim)(there, one)
        assert_tensor_close(
            context,
            found,
            x * y.select(dim, 1).unsqueeze(dim),
            "the result of vmap differs from the result of a loop",
            at,
        )
        leaf_there = there.clone().requires_grad_()
        torch.func.vmap(partial(apply, _OwnRule), (dim, dim), dim)(
            leaf_there, beside
        ).sum().backward()
        assert_tensor_close(context, leaf_there.grad, y, "the gradient through vmap is wrong", at)


@cases("autograd.function")
def batched_cotangents(context: CaseContext) -> None:
    """Call torch.autograd.grad with is_grads_batched=True: the result must contain the right gradient for each
    cotangent of the batch."""
    x = leaf(context, 4)
    y = apply(_Cube, x)
    eye = context.to_device(torch.eye(4))
    (found,) = torch.autograd.grad(y, x, eye, is_grads_batched=True)
    assert_tensor_close(
        context,
        found,
        (3 * values(4) ** 2).diag(),
        "the gradients of a batch of cotangents are wrong",
    )


# -- complex numbers, compilation


class _ComplexProduct(torch.autograd.Function):
    """A Function that computes ``z * w`` for complex or real numbers."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(z, w)
        return z * w

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        z, w = ctx.saved_tensors
        first = grads[0] * w.conj()
        return first if z.is_complex() else first.real, grads[0] * z.conj()


@cases("autograd.function", over={"complex": (False,), "complex_and_real": (True,)})
def complex_numbers(context: CaseContext, real: bool) -> None:
    """Compute gradients of complex inputs: they must follow torch's convention (the cotangent times the conjugate of
    the derivative), and the gradient of a real input must be a real tensor."""
    if "complex64" not in context.descriptor.dtypes:
        raise NotImplementedError("the descriptor does not declare complex64")
    z, w = torch.complex(values(3, 4), -values(3, 4)), torch.complex(values(3, 4) + 1, values(3, 4))
    given = [values(3, 4) if real else z, w]
    leaves = [context.to_device(each.clone()).requires_grad_() for each in given]
    cotangent = torch.complex(values(3, 4).flip(0), values(3, 4))
    result = apply(_ComplexProduct, *leaves)
    result.backward(context.to_device(cotangent))
    parts = (cotangent.real, cotangent.imag)
    for place, other in enumerate((w, given[0])):
        by = (other.real, other.imag if other.is_complex() else torch.zeros(3, 4))
        want = torch.complex(
            parts[0] * by[0] + parts[1] * by[1], parts[1] * by[0] - parts[0] * by[1]
        )  # the cotangent times the conjugate
        alone = real and place == 0
        assert_tensor_close(
            context,
            leaves[place].grad,
            want.real if alone else want,
            WRONG_GRADIENT,
            f"input {place}",
        )


@cases("autograd.function", requires={"compile"}, slow=True, more=True)
def compiled(context: CaseContext) -> None:
    """Compile a call of custom Functions with the backend "aot_eager" and fullgraph=True: values and gradients must be
    those of the eager call."""

    def traced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = apply(Tripled, apply(SavesAll, x) * w)
        return made.sin()

    found = []
    for call in (traced, torch.compile(traced, backend="aot_eager", fullgraph=True)):
        x, w = leaf(context, 3, 4), leaf(context, 3, 4)
        y = call(x, w)
        y.backward(torch.ones_like(y))
        found.append((y, x.grad, w.grad))
    for got, want in zip(found[1], found[0]):
        assert isinstance(want, torch.Tensor)
        assert_tensor_close(
            context, got, want.detach().cpu(), "the compiled call differs from the eager call"
        )
