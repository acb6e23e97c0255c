"""autocast.lists: regions, the cache of casted weights, and what runs in a region: backward, checkpoints, modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.checks.autocast.asking import FLOAT32, lower_dtypes
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from devices.failure import Kind

cases = Cases(Kind.STATE)

#: Small differences of results in a lower precision: of the largest element, in its eps.
_ROUNDINGS = 16.0


def _operand(context: Context, *shape: int, first: int = 1) -> torch.Tensor:
    """Numbers between 0.1 and 0.9 that a lower precision rounds."""
    count = int(torch.Size(shape).numel())
    values = ((torch.arange(count) * 37 + 11 * first) % 101).float() * (0.8 / 101) + 0.1003
    return context.to_device(values.reshape(shape).clone())  # no view, which no cache takes


def _weight(context: Context, *shape: int, first: int = 5) -> torch.Tensor:
    return _operand(context, *shape, first=first).requires_grad_()


def _dtype(context: Context) -> torch.dtype:
    """The dtype of a product of float32 operands, here."""
    return torch.mm(_operand(context, 3, 3), _operand(context, 3, 3)).dtype


def _near(
    context: Context, found: torch.Tensor, want: torch.Tensor, lower: torch.dtype, text: str
) -> None:
    a, b = (context.from_device(each.detach()).double() for each in (found, want))
    context.same(tuple(a.shape), tuple(b.shape), text, kind=Kind.SHAPE)
    bound = _ROUNDINGS * torch.finfo(lower).eps * max(float(b.abs().max()), 1e-3)
    apart = float((a - b).abs().max())
    expected = f"at most {bound:.3g} apart"
    context.check(apart <= bound, text, expected=expected, found=f"{apart:.3g}", kind=Kind.VALUES)


def _each(context: Context) -> list[torch.dtype]:
    found = lower_dtypes(context.opened)
    context.must(found, "the device declares float16 or bfloat16")
    return found


# Regions


@cases("autocast.lists")
def region_ends(context: Context) -> None:
    """A region begins and ends: before it, after it, and after one that an exception left, products are in float32."""
    for lower in _each(context):
        context.same(_dtype(context), FLOAT32, "no region: mm of float32 gives float32")
        with torch.autocast(context.kind, lower):
            context.same(_dtype(context), lower, f"mm in a region of {lower}")
            context.same(
                torch.is_autocast_enabled(context.kind), True, "a region says that it is on"
            )
            context.same(torch.get_autocast_dtype(context.kind), lower, "a region says its dtype")
        context.same(_dtype(context), FLOAT32, "after the region")
        try:
            with torch.autocast(context.kind, lower):
                raise KeyError("ours")
        except KeyError:
            pass
        context.same(_dtype(context), FLOAT32, "after a region that an exception left")
        context.same(torch.is_autocast_enabled(context.kind), False, "no region is on")


@cases("autocast.lists")
def region_of_another_dtype(context: Context) -> None:
    """Regions nest: the inner one counts, on or off or of another dtype, and the outer one goes on after it."""
    for lower in _each(context):
        for other in _each(context):
            with torch.autocast(context.kind, lower):
                with torch.autocast(context.kind, enabled=False):
                    context.same(_dtype(context), FLOAT32, "a region that is off inside of one")
                    with torch.autocast(context.kind, other):
                        context.same(_dtype(context), other, "one that is on inside of that")
                    context.same(_dtype(context), FLOAT32, "after the innermost")
                with torch.autocast(context.kind, other):
                    context.same(_dtype(context), other, "a region of another dtype inside of one")
                context.same(_dtype(context), lower, "after it, the outer one goes on")


@cases("autocast.lists")
def region_off(context: Context) -> None:
    """What a region made can be used in one that is off, in its own dtype; mixed operands are refused as without."""
    for lower in _each(context):
        with torch.autocast(context.kind, lower):
            made = torch.mm(_operand(context, 3, 3), _operand(context, 3, 3))
            with torch.autocast(context.kind, enabled=False):
                context.same(torch.mm(made, made).dtype, lower, "mm of what the region made")
                context.same(
                    torch.mm(made.float(), made.float()).dtype, FLOAT32, "mm after float()"
                )


@cases("autocast.lists")
def region_as_a_decorator(context: Context) -> None:
    """A function that is decorated with autocast runs in a region, and its caller does not."""
    for lower in _each(context):
        decorated = torch.autocast(context.kind, lower)(_dtype)
        context.same(decorated(context), lower, "the decorated function runs in a region")
        context.same(_dtype(context), FLOAT32, "its caller does not")


@cases("autocast.lists")
def region_without_a_dtype(context: Context) -> None:
    """A region without a dtype has the one that get_autocast_dtype names, and set_autocast_dtype sets it."""
    with torch.autocast(context.kind):
        context.same(_dtype(context), torch.get_autocast_dtype(context.kind), "its default dtype")
    before = torch.get_autocast_dtype(context.kind)
    try:
        for lower in _each(context):
            torch.set_autocast_dtype(context.kind, lower)
            with torch.autocast(context.kind):
                context.same(_dtype(context), lower, "the dtype that was set")
    finally:
        torch.set_autocast_dtype(context.kind, before)


@cases("autocast.lists")
def region_of_other_threads(context: Context) -> None:
    """A region is of its thread: another one runs in float32, and its own region does not reach back."""
    for lower in _each(context):
        with torch.autocast(context.kind, lower):
            seen = context.together(lambda: _dtype(context), lambda: _dtype(context))
            context.same(
                list(seen), [FLOAT32, FLOAT32], "threads that began in a region are in none"
            )
            context.same(_dtype(context), lower, "the region goes on")


@cases("autocast.lists")
def region_of_another_device(context: Context) -> None:
    """A region of another device type casts nothing here."""
    other = "cpu" if context.kind != "cpu" else "cuda"
    with torch.autocast(other, torch.bfloat16, enabled=other == "cpu"):
        context.same(_dtype(context), FLOAT32, f"a region of {other}")
    for lower in _each(context):
        with torch.autocast(context.kind, lower), torch.autocast(other, enabled=False):
            context.same(_dtype(context), lower, f"a region of {other} that is off")


@cases("autocast.lists")
def what_is_not_cast(context: Context) -> None:
    """Integers and float64 are left as they are."""
    for lower in _each(context):
        whole = context.to_device(torch.ones(3, 3, dtype=torch.int64))
        with torch.autocast(context.kind, lower):
            context.same((whole + whole).dtype, torch.int64, "integers stay integers")
            if "float64" in context.descriptor.dtypes:
                wide = context.to_device(torch.ones(3, 3, dtype=torch.float64))
                context.same(torch.mm(wide, wide).dtype, torch.float64, "float64 stays float64")


@cases("autocast.lists")
def in_place_and_out(context: Context) -> None:
    """In-place ops and out= keep the dtype of what they write to."""
    for lower in _each(context):
        x, y = _operand(context, 3, 3), _operand(context, 3, 3, first=2)
        out = torch.empty_like(x)
        want = x + x * y
        with torch.autocast(context.kind, lower):
            torch.mm(x, y, out=out)
            context.same(out.dtype, FLOAT32, "out= keeps its dtype")
            x += x * y
        context.same(x.dtype, FLOAT32, "an in-place op keeps its dtype")
        context.equal(
            context.from_device(x), context.from_device(want), "an in-place op is not cast"
        )


@cases("autocast.lists", requires={"multi_device"}, indices=2)
def every_index(context: Context) -> None:
    """A region holds on every index of the device."""
    for lower in _each(context):
        with torch.autocast(context.kind, lower):
            for index in context.indices:
                x = torch.ones(3, 3, device=context.at(index))
                context.same(torch.mm(x, x).dtype, lower, "mm in a region", at=f"index {index}")


# The cache of casted weights


def _cast(product: torch.Tensor) -> Any:
    """The node of the graph that cast the second operand of a product."""
    assert product.grad_fn is not None
    return product.grad_fn.next_functions[1][0]


@cases("autocast.lists")
def weight_is_cast_once(context: Context) -> None:
    """A weight that is used twice in a region is cast once; without the cache each time."""
    for lower in _each(context):
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
        for enabled in (True, False):
            with torch.autocast(context.kind, lower, cache_enabled=enabled):
                first, second = torch.mm(x, weight), torch.mm(x, weight)
                with torch.autocast(context.kind, lower, cache_enabled=enabled):
                    third = torch.mm(x, weight)
                fourth = torch.mm(x, weight)
            nodes = [_cast(each) for each in (first, second, third, fourth)]
            once = [each is nodes[0] for each in nodes]
            context.must(_cast(first) is not weight, "the weight was cast")
            text = "a region casts a weight once" if enabled else "without a cache, every use casts"
            context.same(once, [True, enabled, enabled, enabled], text)


@cases("autocast.lists")
def cache_ends_with_its_region(context: Context) -> None:
    """A weight that was changed between two regions is cast again, with its new values, and used for backward."""
    for lower in _each(context):
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
        products = []
        for factor in (1.0, 3.0, 0.5):
            with torch.no_grad():
                weight.mul_(factor)
            with torch.autocast(context.kind, lower):
                products.append(torch.mm(x, weight))
            cast = weight.detach().to(lower)
            want = torch.mm(x.to(lower), cast)
            text = "a region casts the weight as it is now"
            _near(context, products[-1], want, lower, text)
        nodes = [_cast(each) for each in products]
        context.check(
            nodes[0] is not nodes[1] and nodes[1] is not nodes[2], "a region casts a weight anew"
        )


@cases("autocast.lists")
def another_weight_at_its_place(context: Context) -> None:
    """A weight that takes the place of one that is gone is cast itself: the cache does not go by an address."""
    for lower in _each(context):
        x = _operand(context, 3, 3)
        with torch.autocast(context.kind, lower):
            for first in range(6):
                weight = _weight(context, 3, 3, first=first + 1)
                found = torch.mm(x, weight)
                want = torch.mm(x.to(lower), weight.detach().to(lower))
                _near(context, found, want, lower, "a new weight is cast itself")
                del weight


@cases("autocast.lists")
def activations_are_not_kept(context: Context) -> None:
    """What is no leaf is cast at each use: an activation that is changed in place is seen as it is."""
    for lower in _each(context):
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
        with torch.autocast(context.kind, lower):
            plain = _operand(context, 3, 3, first=9)
            for factor in (1.0, 2.0):
                plain.mul_(factor)
                want = torch.mm(x.to(lower), plain.to(lower))
                _near(context, torch.mm(x, plain), want, lower, "an operand is cast at each use")
            made = weight * 2
            with torch.no_grad():
                before = torch.mm(x, made)
                made.mul_(2)
                after = torch.mm(x, made)
            _near(context, after, 2 * before, lower, "an activation is cast at each use")


@cases(
    "autocast.lists",
    over={"no_grad_first": ("no_grad",), "inference_mode_first": ("inference_mode",)},
)
def poisoned(context: Context, mode: str) -> None:
    """A weight that was used under no_grad or inference mode in a region is trained by what follows in the region."""
    for lower in _each(context):
        x, weight = _operand(context, 3, 3), _weight(context, 3, 3)
        with torch.autocast(context.kind, lower):
            with getattr(torch, mode)():
                context.same(torch.mm(x, weight).dtype, lower, f"mm under {mode}")
            found = torch.mm(x, weight)
            context.check(found.requires_grad, f"after {mode}, a product has a graph")
            with torch.no_grad():
                context.check(
                    not torch.mm(x, weight).requires_grad, "under no_grad, a product has none"
                )
        found.float().sum().backward()
        context.check(weight.grad is not None, "the weight gets a gradient")
        assert weight.grad is not None
        context.same(weight.grad.dtype, FLOAT32, "in its own dtype", kind=Kind.DTYPE)


# Backward


@cases("autocast.lists")
def gradients(context: Context) -> None:
    """Gradients have the dtype of their leaf, and are near those of a run in float32; backward runs outside of the
    region."""
    for lower in _each(context):
        found = {}
        for enabled in (True, False):
            x, first = _weight(context, 3, 4, first=2), _weight(context, 4, 5)
            second, bias = _weight(context, 5, 2, first=7), _weight(context, 2, first=3)
            with torch.autocast(context.kind, lower, enabled=enabled):
                hidden = torch.mm(x, first).relu()
                made = torch.addmm(bias, hidden, second)
                loss = torch.nn.functional.mse_loss(made, torch.zeros_like(made))
            context.same(loss.dtype, FLOAT32, "a loss is in float32", kind=Kind.DTYPE)
            loss.backward()
            found[enabled] = [x.grad, first.grad, second.grad, bias.grad]
        for number, (mine, theirs) in enumerate(zip(found[True], found[False])):
            context.must(mine is not None and theirs is not None, "every leaf gets a gradient")
            assert mine is not None
            assert theirs is not None
            text = "a gradient has the dtype of its leaf"
            context.same(mine.dtype, FLOAT32, text, kind=Kind.DTYPE, at=f"leaf {number}")
            _near(context, mine, theirs, lower, "gradients are near those in float32")


@cases("autocast.lists", over={"checkpoint": (False,), "reentrant_checkpoint": (True,)})
def checkpointed(context: Context, reentrant: bool) -> None:
    """A checkpoint computes again in the region that it was made in: gradients are those without a checkpoint."""
    for lower in _each(context):
        grads = []
        for through in (True, False):
            x, weight = _weight(context, 3, 3, first=2), _weight(context, 3, 3)

            def twice(given: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
                return torch.mm(torch.mm(given, weight).relu(), weight)

            with torch.autocast(context.kind, lower):
                torch.mm(x.detach(), weight)  # the weight is in the cache
                made = checkpoint(twice, x, use_reentrant=reentrant) if through else twice(x)
                context.same(made.dtype, lower, "what a checkpoint gives", kind=Kind.DTYPE)
            made.float().sum().backward()
            grads.append((x.grad, weight.grad))
        for mine, theirs in zip(*grads):
            context.must(mine is not None and theirs is not None, "every leaf gets a gradient")
            assert mine is not None
            assert theirs is not None
            context.same(mine.dtype, FLOAT32, "its dtype", kind=Kind.DTYPE)
            _near(context, mine, theirs, lower, "gradients are those without a checkpoint")


class Doubled(torch.autograd.Function):
    """A product that notes the dtypes that it is given, and whether a region is on."""

    seen: list[Any] = []  # noqa: RUF012 - of one case

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


def _function(context: Context, cast: torch.dtype | None) -> Callable[..., Any]:
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
def custom(context: Context, cast: bool) -> None:
    """custom_fwd and custom_bwd: backward runs as forward did; with cast_inputs, off and with cast operands."""
    for lower in _each(context):
        x, weight = _weight(context, 3, 3, first=2), _weight(context, 3, 3)
        Doubled.seen.clear()
        apply = _function(context, FLOAT32 if cast else None)
        with torch.autocast(context.kind, lower):
            given = torch.mm(x, weight) if cast else x  # in the lower precision
            made = apply(given, weight)
        made.float().sum().backward()
        inside = FLOAT32 if cast else lower
        context.same(made.dtype, inside, "what forward gives", kind=Kind.DTYPE)
        seen = [("forward", FLOAT32, inside), ("backward", inside, inside)]
        text = "forward is given operands in this dtype, and products in it have this one; so in backward"
        context.same(Doubled.seen, seen, text, kind=Kind.DTYPE)


# Modules and transforms


def _initialised(context: Context, module: torch.nn.Module) -> torch.nn.Module:
    """Parameters that depend on their place only, on the device."""
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


#: A module, the shape of its input, and whether it is trained too: a device may have no backward of convolutions.
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
def module(context: Context, name: str) -> None:
    """A module under autocast gives results near those in float32, and gradients in float32."""
    make, shape, trained = _MODULES[name]
    for lower in _each(context):
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
            context.same(dtypes, {FLOAT32}, "gradients are in float32", kind=Kind.DTYPE)
        _near(context, found[0], found[1], lower, f"{name} is near its run in float32")


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
def attention(context: Context, training: bool, weights: bool) -> None:
    """MultiheadAttention takes a mask of float32 in a region, and gives what it gives in float32."""
    for lower in _each(context):
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
        _near(context, found[0], found[1], lower, "attention is near its run in float32")


@cases("autocast.lists")
def transforms(context: Context) -> None:
    """vmap and grad of torch.func run in the region that they are called in."""
    for lower in _each(context):
        x, weight = _operand(context, 3, 4), _operand(context, 4, 4, first=3)
        batch = _operand(context, 2, 3, 4, first=8)

        def loss(weight: torch.Tensor, x: torch.Tensor = x) -> torch.Tensor:
            return torch.mm(x, weight).float().sum()

        with torch.autocast(context.kind, lower):
            mapped = torch.func.vmap(torch.mm, in_dims=(0, None))(batch, weight)
            grad = torch.func.grad(loss)(weight)
        context.same(mapped.dtype, lower, "vmap of mm", kind=Kind.DTYPE)
        want = torch.stack([torch.mm(each, weight) for each in batch])
        _near(context, mapped, want, lower, "vmap of mm is near that in float32")
        context.same(grad.dtype, FLOAT32, "a gradient has its operand's dtype", kind=Kind.DTYPE)
        _near(context, grad, torch.func.grad(loss)(weight), lower, "grad is near that in float32")
