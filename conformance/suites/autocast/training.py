"""Checks of the clause autocast.lists beyond single ops: backward, checkpoints, custom Functions, modules and transforms
under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.checks.autocast.asking import FLOAT32
from conformance.checks.autocast.offered import offered_dtypes
from conformance.checks.autocast.operands import leaf, operand
from conformance.checks.autocast.roundings import assert_close_in
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.STATE)


# Backward


@cases("autocast.lists")
def gradients(context: CaseContext) -> None:
    """Run the forward pass under autocast and backward outside of autocast: gradients must have the dtype of their leaf
    and be close to those of a float32 run."""
    for lower in offered_dtypes(context):
        found = {}
        for enabled in (True, False):
            x, first = leaf(context, 3, 4, first=2), leaf(context, 4, 5)
            second, bias = leaf(context, 5, 2, first=7), leaf(context, 2, first=3)
            with torch.autocast(context.kind, lower, enabled=enabled):
                hidden = torch.mm(x, first).relu()
                made = torch.addmm(bias, hidden, second)
                loss = torch.nn.functional.mse_loss(made, torch.zeros_like(made))
            context.same(loss.dtype, FLOAT32, "the loss has a wrong dtype", kind=Kind.DTYPE)
            loss.backward()
            found[enabled] = [x.grad, first.grad, second.grad, bias.grad]
        for number, (mine, theirs) in enumerate(zip(found[True], found[False])):
            context.must(mine is not None and theirs is not None, "a leaf has no gradient")
            assert mine is not None
            assert theirs is not None
            text = "the dtype of a gradient differs from the dtype of its leaf"
            context.same(mine.dtype, FLOAT32, text, kind=Kind.DTYPE, at=f"leaf {number}")
            assert_close_in(
                context, lower, mine, theirs, "the gradient is not close to that of a float32 run"
            )


@cases("autocast.lists", over={"checkpoint": (False,), "reentrant_checkpoint": (True,)})
def checkpointed(context: CaseContext, reentrant: bool) -> None:
    """Run torch.utils.checkpoint in an autocast region and backward outside of it: the recomputation must run under the
    same autocast state, so gradients must equal those without a checkpoint."""
    for lower in offered_dtypes(context):
        grads = []
        for through in (True, False):
            x, weight = leaf(context, 3, 3, first=2), leaf(context, 3, 3)

            def twice(given: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
                return torch.mm(torch.mm(given, weight).relu(), weight)

            with torch.autocast(context.kind, lower):
                torch.mm(x.detach(), weight)  # the weight is in the cache
                made = checkpoint(twice, x, use_reentrant=reentrant) if through else twice(x)
                context.same(
                    made.dtype,
                    lower,
                    "the result of the function has a wrong dtype",
                    kind=Kind.DTYPE,
                )
            made.float().sum().backward()
            grads.append((x.grad, weight.grad))
        for mine, theirs in zip(*grads):
            context.must(mine is not None and theirs is not None, "a leaf has no gradient")
            assert mine is not None
            assert theirs is not None
            context.same(mine.dtype, FLOAT32, "the gradient has a wrong dtype", kind=Kind.DTYPE)
            assert_close_in(
                context,
                lower,
                mine,
                theirs,
                "the gradient differs from the one without a checkpoint",
            )


class Doubled(torch.autograd.Function):
    """A Function that computes a matrix product. In forward and in backward, it records the dtype of its first operand
    and the dtype of the result of mm for float32 operands."""

    seen: list[Any] = []  # noqa: RUF012 - cleared by the case that uses it

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.save_for_backward(x, weight)
        Doubled.seen.append(("forward", x.dtype, torch.mm(x.float(), weight.float()).dtype))
        return torch.mm(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        wide = torch.mm(grad.float(), grad.float().t())
        Doubled.seen.append(("backward", grad.dtype, wide.dtype))
        return torch.mm(grad, weight.t().to(grad.dtype)), torch.mm(x.t().to(grad.dtype), grad)


def _function(context: CaseContext, cast: torch.dtype | None) -> Callable[..., Any]:
    forward = torch.amp.custom_fwd(Doubled.forward, device_type=context.kind, cast_inputs=cast)
    backward = torch.amp.custom_bwd(Doubled.backward, device_type=context.kind)
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("Custom", (torch.autograd.Function,), members)
    found: Callable[..., Any] = made.apply
    return found


@cases(
    "autocast.lists",
    over={"custom_function": (False,), "custom_function_with_cast_inputs": (True,)},
)
def custom(context: CaseContext, cast: bool) -> None:
    """Use a custom Function with custom_fwd and custom_bwd in an autocast region: backward must run under the autocast
    state of forward. With cast_inputs, the operands must be cast to the dtype that cast_inputs names, and autocast must
    be off in forward and backward."""
    for lower in offered_dtypes(context):
        x, weight = leaf(context, 3, 3, first=2), leaf(context, 3, 3)
        Doubled.seen.clear()
        apply = _function(context, FLOAT32 if cast else None)
        with torch.autocast(context.kind, lower):
            given = torch.mm(x, weight) if cast else x  # in the lower precision
            made = apply(given, weight)
        made.float().sum().backward()
        inside = FLOAT32 if cast else lower
        context.same(made.dtype, inside, "the result of forward has a wrong dtype", kind=Kind.DTYPE)
        seen = [("forward", FLOAT32, inside), ("backward", inside, inside)]
        text = "the dtypes of the operand and of mm are wrong in forward or backward"
        context.same(Doubled.seen, seen, text, kind=Kind.DTYPE)


# Modules and transforms


def _initialised(context: CaseContext, module: torch.nn.Module) -> torch.nn.Module:
    """Fill the parameters of a module with fixed values and move the module to the device."""
    with torch.no_grad():
        for number, each in enumerate(module.parameters()):
            count = each.numel()
            values = ((torch.arange(count) * 37 + 11 * number) % 101).float() * (0.6 / 101) - 0.3
            each.copy_(values.reshape(each.shape))
    return module.to(context.device)


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
    )


def _convnet() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )


#: For each module: how to build it, the shape of its input, and whether its backward is checked. A device may lack
#: backward of convolutions.
_MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], bool]] = {
    "mlp": (_mlp, (4, 6), True),
    "convnet": (_convnet, (2, 2, 6, 6), False),
    "encoder_layer": (
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (2, 5, 8),
        True,
    ),
}


@cases("autocast.lists", over={name: (name,) for name in _MODULES})
def module(context: CaseContext, name: str) -> None:
    """Run a module under autocast: results must be close to those in float32, and gradients must be in float32."""
    make, shape, trained = _MODULES[name]
    for lower in offered_dtypes(context):
        found = []
        for enabled in (True, False):
            net = _initialised(context, make())
            x = operand(context, *shape)
            with torch.autocast(context.kind, lower, enabled=enabled):
                made = net(x)
                loss = (made.float() ** 2).mean()
            found.append(made)
            if not trained:
                continue
            loss.backward()
            dtypes = {None if p.grad is None else p.grad.dtype for p in net.parameters()}
            context.same(
                dtypes, {FLOAT32}, "the dtypes of the gradients are wrong", kind=Kind.DTYPE
            )
        assert_close_in(
            context,
            lower,
            found[0],
            found[1],
            f"the result of {name} is not close to its float32 result",
        )


@cases(
    "autocast.lists",
    over={"batch_norm_training": (True,), "batch_norm_evaluation": (False,)},
)
def batch_norm(context: CaseContext, training: bool) -> None:
    """Run BatchNorm2d, whose parameters and statistics are in float32, under autocast on an input of lower precision, as
    behind a convolution: the result and the statistics must be close to those of a float32 input. Because torch's lists do
    not name batch_norm, the result has the dtype of the input."""
    listed = any("batch_norm" in own.ops for own in context.descriptor.autocast)
    for lower in offered_dtypes(context):
        found = []
        for dtype in (lower, FLOAT32):
            net: Any = _initialised(context, torch.nn.BatchNorm2d(4)).train(training)
            with torch.no_grad():
                net.running_mean.copy_(operand(context, 4))
                net.running_var.copy_(operand(context, 4, first=3))
            x = operand(context, 2, 4, 5, 3).to(lower).to(dtype)
            with torch.autocast(context.kind, lower, enabled=dtype == lower):
                made = net(x)
            found.append((made, net.running_mean, net.running_var))
            if not listed:
                text = "the result of batch_norm does not have the dtype of its input"
                context.same(made.dtype, dtype, text, kind=Kind.DTYPE)
            kept = [net.running_mean.dtype, net.running_var.dtype]
            text = "batch_norm changed the dtype of its statistics"
            context.same(kept, [FLOAT32, FLOAT32], text, kind=Kind.DTYPE)
        names = "result", "running mean", "running variance"
        for name, mine, theirs in zip(names, *found, strict=True):
            text = f"the {name} of batch_norm is not close to that of a float32 input"
            assert_close_in(context, lower, mine, theirs, text)


@cases(
    "autocast.lists",
    over={
        f"attention_{'training' if training else 'evaluation'}_{'with' if weights else 'without'}_weights": (
            training,
            weights,
        )
        for training in (True, False)
        for weights in (True, False)
    },
)
def attention(context: CaseContext, training: bool, weights: bool) -> None:
    """Run MultiheadAttention with a float32 mask under autocast: the result must be close to the float32 result."""
    for lower in offered_dtypes(context):
        found = []
        for enabled in (True, False):
            made: Any = _initialised(
                context, torch.nn.MultiheadAttention(8, 2, dropout=0.0, batch_first=True)
            )
            made.train(training)
            x = operand(context, 2, 5, 8)
            mask = context.to_device(
                torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -1e4)
            )
            with torch.autocast(context.kind, lower, enabled=enabled):
                found.append(made(x, x, x, attn_mask=mask, need_weights=weights)[0])
        assert_close_in(
            context,
            lower,
            found[0],
            found[1],
            "the result of MultiheadAttention is not close to its float32 result",
        )


@cases("autocast.lists")
def transforms(context: CaseContext) -> None:
    """Transform functions with vmap, grad and jvp of torch.func, and with vmap of grad, in an autocast region: the functions
    must run under autocast (pytorch/pytorch#187265), gradients must have the dtype of their operand, and the results
    must be close to those in float32."""
    x, weight = operand(context, 3, 4), operand(context, 4, 4, first=3)
    batch, tangent = operand(context, 2, 3, 4, first=8), operand(context, 4, 4, first=6)
    inside: list[torch.dtype] = []

    def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made = torch.mm(x, weight)
        inside.append(made.dtype)
        return made

    def loss(weight: torch.Tensor, x: torch.Tensor = x) -> torch.Tensor:
        return product(weight, x).float().sum()

    func, of_a_batch = torch.func, (None, 0)
    transformed: dict[str, Callable[[], torch.Tensor]] = {
        "vmap": lambda: func.vmap(product, in_dims=of_a_batch)(weight, batch),
        "grad": lambda: func.grad(loss)(weight),
        "vmap of grad": lambda: func.vmap(func.grad(loss), in_dims=of_a_batch)(weight, batch),
        "jvp": lambda: func.jvp(loss, (weight,), (tangent,))[1],
    }
    for lower in offered_dtypes(context):
        for name, call in transformed.items():
            at, want = f"{name}, {lower}", call()
            inside.clear()
            with torch.autocast(context.kind, lower):
                found = call()
            text = "mm has a wrong dtype in a function that is transformed in an autocast region"
            context.same(inside, [lower], text, kind=Kind.DTYPE, at=at)
            text = f"the result of {name} has a wrong dtype"
            context.same(found.dtype, lower if name == "vmap" else FLOAT32, text, kind=Kind.DTYPE)
            text = f"the result of {name} is not close to the float32 result"
            assert_close_in(context, lower, found, want, text)
