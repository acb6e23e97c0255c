"""Checks of the clause autocast.lists beyond single ops: autocast regions, the cache of cast weights, and backward,
checkpoints and modules under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.checks.autocast.asking import FLOAT32
from conformance.checks.autocast.offered import offered_dtypes
from conformance.checks.autocast.roundings import assert_close_in
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.STATE)


def _operand(context: CaseContext, *shape: int, first: int = 1) -> torch.Tensor:
    """Return a device tensor of the given shape with values from 0.1 to 0.9 that are not exact in a lower precision."""
    count = int(torch.Size(shape).numel())
    values = ((torch.arange(count) * 37 + 11 * first) % 101).float() * (0.8 / 101) + 0.1003
    return context.to_device(
        values.reshape(shape).clone()
    )  # a clone, because the cache does not keep views


def _weight(context: CaseContext, *shape: int, first: int = 5) -> torch.Tensor:
    return _operand(context, *shape, first=first).requires_grad_()


def _dtype(context: CaseContext) -> torch.dtype:
    """Return the dtype of the result of mm for float32 operands under the current autocast state."""
    return torch.mm(_operand(context, 3, 3), _operand(context, 3, 3)).dtype


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
            made = torch.mm(_operand(context, 3, 3), _operand(context, 3, 3))
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
        x, y = _operand(context, 3, 3), _operand(context, 3, 3, first=2)
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
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
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
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
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
        x = _operand(context, 3, 3)
        with torch.autocast(context.kind, lower):
            for first in range(6):
                weight = _weight(context, 3, 3, first=first + 1)
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
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
        with torch.autocast(context.kind, lower):
            plain = _operand(context, 3, 3, first=9)
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
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
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


# Backward


@cases("autocast.lists")
def gradients(context: CaseContext) -> None:
    """Run the forward pass under autocast and backward outside of autocast: gradients must have the dtype of their leaf
    and be close to those of a float32 run."""
    for lower in offered_dtypes(context):
        found = {}
        for enabled in (True, False):
            x, first = _weight(context, 3, 4, first=2), _weight(context, 4, 5)
            second, bias = _weight(context, 5, 2, first=7), _weight(context, 2, first=3)
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


@cases("autocast.lists")
def transformed(context: CaseContext) -> None:
    """Call mm in functions that torch.vmap and torch.func transform in an autocast region: the products must have the
    region's dtype, as they have without a transform (pytorch/pytorch#187265)."""
    x, weight = _operand(context, 2, 3, 3), _operand(context, 3, 3, first=2)
    seen: list[torch.dtype] = []

    def loss(given: torch.Tensor) -> torch.Tensor:
        made = torch.mm(given, weight)
        seen.append(made.dtype)
        return made.float().sum()

    transforms: dict[str, Callable[[], Any]] = {
        "vmap": lambda: torch.vmap(loss)(x),
        "grad": lambda: torch.func.grad(loss)(x[0]),
        "vmap of grad": lambda: torch.vmap(torch.func.grad(loss))(x),
        "jvp": lambda: torch.func.jvp(loss, (x[0],), (x[1],)),
    }
    for lower in offered_dtypes(context):
        for name, call in transforms.items():
            seen.clear()
            with torch.autocast(context.kind, lower):
                call()
            text = "mm has a wrong dtype in a function that is transformed in an autocast region"
            context.same(seen, [lower], text, kind=Kind.DTYPE, at=f"{name}, {lower}")


@cases("autocast.lists", over={"checkpoint": (False,), "reentrant_checkpoint": (True,)})
def checkpointed(context: CaseContext, reentrant: bool) -> None:
    """Run torch.utils.checkpoint in an autocast region and backward outside of it: the recomputation must run under the
    same autocast state, so gradients must equal those without a checkpoint."""
    for lower in offered_dtypes(context):
        grads = []
        for through in (True, False):
            x, weight = _weight(context, 3, 3, first=2), _weight(context, 3, 3)

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
        x, weight = _weight(context, 3, 3, first=2), _weight(context, 3, 3)
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
            x = _operand(context, *shape)
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
                net.running_mean.copy_(_operand(context, 4))
                net.running_var.copy_(_operand(context, 4, first=3))
            x = _operand(context, 2, 4, 5, 3).to(lower).to(dtype)
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
            x = _operand(context, 2, 5, 8)
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
    """Call vmap and grad of torch.func in an autocast region: the function must run under autocast, and gradients must
    have the dtype of the operand."""
    for lower in offered_dtypes(context):
        x, weight = _operand(context, 3, 4), _operand(context, 4, 4, first=3)
        batch = _operand(context, 2, 3, 4, first=8)

        def loss(weight: torch.Tensor, x: torch.Tensor = x) -> torch.Tensor:
            return torch.mm(x, weight).float().sum()

        with torch.autocast(context.kind, lower):
            mapped = torch.func.vmap(torch.mm, in_dims=(0, None))(batch, weight)
            grad = torch.func.grad(loss)(weight)
        context.same(mapped.dtype, lower, "vmap of mm has a wrong dtype", kind=Kind.DTYPE)
        want = torch.stack([torch.mm(each, weight) for each in batch])
        assert_close_in(
            context, lower, mapped, want, "the result of vmap is not close to the float32 result"
        )
        context.same(
            grad.dtype,
            FLOAT32,
            "the dtype of a gradient differs from the dtype of its operand",
            kind=Kind.DTYPE,
        )
        assert_close_in(
            context,
            lower,
            grad,
            torch.func.grad(loss)(weight),
            "the result of torch.func.grad is not close to the float32 result",
        )
