"""Checks of activation checkpoints for the clause autograd.saved: a checkpoint must change neither results nor
gradients, and the recomputation must draw the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.autograd.saved_tensors import assert_gradient, beside, values
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_REENTRANT = {"": False, "_reentrant": True}


def _network(x: torch.Tensor) -> torch.Tensor:
    """Compute a function with dropout, a matrix product, a normalisation and random numbers."""
    x = functional.dropout(x * 2, 0.5)
    x = functional.layer_norm(x @ x.mT, (x.shape[0],)).tanh()
    return x * torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5))


def _drawn(context: CaseContext, index: int = 0) -> torch.Tensor:
    return context.from_device(torch.rand(50, device=context.named(index)))


def _gradients(
    context: CaseContext, function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the result of a function and the gradients of its inputs, copied to the CPU. Random numbers are drawn
    between the forward pass and backward, so the generator's state is not the same in both."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    torch.manual_seed(17)
    result = function(*leaves)
    for each in leaves:
        torch.rand(33, device=each.device)
    result.backward(values(*result.shape).to(result.device))
    grads = [context.from_device(each.grad) for each in leaves if each.grad is not None]
    context.same(len(grads), len(leaves), "an input has no gradient", Kind.COUNT)
    return context.from_device(result.detach()), grads


def _same_with_checkpoint(
    context: CaseContext,
    function: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    **options: Any,
) -> None:
    """Check that a checkpoint changes neither the result nor the gradients of a function that may draw random
    numbers."""
    plain = _gradients(context, function, *inputs)
    found = _gradients(context, partial(checkpoint, function, **options), *inputs)
    assert_gradient(
        context, found[0], plain[0], "the result differs from the one without a checkpoint"
    )
    for place, (grad, want) in enumerate(zip(found[1], plain[1])):
        text = "the gradient differs from the one without a checkpoint"
        assert_gradient(context, grad, want, text, f"input {place}")


@cases("autograd.saved", requires={"generator"}, over={f"checkpoint{end}": (given,) for end, given in _REENTRANT.items()})  # fmt: skip
def checkpointed(context: CaseContext, reentrant: bool) -> None:
    """Run a function with random numbers under torch.utils.checkpoint: the result and the gradients must equal those
    without the checkpoint."""
    for x in (values(6, 8), values(8, 6).t(), values(12, 8)[::2]):
        _same_with_checkpoint(context, _network, context.to_device(x), use_reentrant=reentrant)


@cases("autograd.saved", requires={"generator"}, over={f"checkpoint_mask{end}": (given, True) for end, given in _REENTRANT.items()} | {f"checkpoint_mask_not_preserved{end}": (given, False) for end, given in _REENTRANT.items()})  # fmt: skip
def masks(context: CaseContext, reentrant: bool, preserve: bool) -> None:
    """Run dropout in a checkpoint. With preserve_rng_state=True, backward must draw the same mask again and leave the
    generator unchanged. With preserve_rng_state=False, backward must draw a new mask and advance the generator."""
    torch.manual_seed(6)
    x = context.to_device(torch.ones(400)).requires_grad_()

    def drop(value: torch.Tensor) -> torch.Tensor:
        return functional.dropout(value * 2, 0.5)

    y: torch.Tensor = checkpoint(drop, x, use_reentrant=reentrant, preserve_rng_state=preserve)
    torch.manual_seed(12)
    want = [_drawn(context) for _ in range(2)]
    torch.manual_seed(12)
    context.equal(_drawn(context), want[0], "the same seed gives different random numbers")
    y.sum().backward()
    context.must(x.grad is not None, "the leaf has no gradient")
    assert x.grad is not None
    mask, drawn = context.from_device(y.detach()), context.from_device(x.grad)
    after = _drawn(context)
    if preserve:
        context.equal(
            drawn, mask, "the gradient was not computed with the dropout mask of the result"
        )
        context.equal(after, want[1], "backward changed the state of the generator")
    else:
        context.check(
            not torch.equal(drawn, mask),
            "with preserve_rng_state=False, backward drew the same mask again",
        )
        context.check(
            not torch.equal(after, want[1]),
            "with preserve_rng_state=False, backward did not advance the generator",
        )


@cases("autograd.saved", requires={"generator", "multi_device"}, indices=2, over={f"checkpoint_of_two_indices{end}": (given,) for end, given in _REENTRANT.items()})  # fmt: skip
def of_two_indices(context: CaseContext, reentrant: bool) -> None:
    """Run functions whose inputs are on two device indices in a checkpoint. The states of the generators of both
    indices must be saved, restored for the recomputation, and left unchanged by backward."""

    def both(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        first, second = (functional.dropout(each * 2, 0.5) for each in (first, second))
        return functional.dropout(first.to(second.device) + 3 * second, 0.5)

    inputs = [torch.ones(300).to(context.at(index)) for index in (0, 1)]
    _same_with_checkpoint(context, both, *inputs, use_reentrant=reentrant)

    def only(value: torch.Tensor) -> torch.Tensor:
        return functional.dropout(value, 0.5)

    _same_with_checkpoint(context, only, inputs[1], use_reentrant=reentrant)
    leaves = [each.requires_grad_() for each in inputs]
    torch.manual_seed(5)
    result: torch.Tensor = checkpoint(both, *leaves, use_reentrant=reentrant)
    torch.manual_seed(7)
    want = [_drawn(context, index) for index in (0, 1)]
    torch.manual_seed(7)
    result.sum().backward()
    for index in (0, 1):
        text = "backward changed the state of the generator"
        context.equal(_drawn(context, index), want[index], text, f"index {index}")


@cases("autograd.saved", requires={"multi_device"}, indices=2, over={f"checkpoint_current_index{end}": (given,) for end, given in _REENTRANT.items()})  # fmt: skip
def current_index(context: CaseContext, reentrant: bool) -> None:
    """Run a function of a tensor on device index 1 in a checkpoint. The recomputation in backward must run with index 1
    as the current device index."""
    seen: list[int] = []

    def noting(value: torch.Tensor) -> torch.Tensor:
        seen.append(torch.accelerator.current_device_index())
        return value.exp()

    x = torch.ones(4, device=context.at(1), requires_grad=True)
    with context.on(1):
        y: torch.Tensor = checkpoint(noting, x, use_reentrant=reentrant, preserve_rng_state=False)
    y.sum().backward()
    context.same(seen, [1, 1], "the function ran with the wrong current device index", Kind.STATE)


@cases("autograd.saved", requires={"generator"}, over={"checkpoint_nested": (False, False), "checkpoint_in_reentrant": (True, False), "checkpoint_of_reentrant": (False, True), "checkpoint_nested_reentrant": (True, True)})  # fmt: skip
def nested(context: CaseContext, outer: bool, inner: bool) -> None:
    """Nest checkpoints, with use_reentrant=True and False in all combinations: the result and the gradients must equal
    those without checkpoints."""

    def inside(value: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(_network, value, use_reentrant=inner)
        return functional.dropout(made, 0.5) * value[:, :1]

    _same_with_checkpoint(context, inside, context.to_device(values(6, 8)), use_reentrant=outer)


@cases("autograd.saved", requires={"generator"}, over={f"checkpoint_in_sequence{end}": (given,) for end, given in _REENTRANT.items()})  # fmt: skip
def in_sequence(context: CaseContext, reentrant: bool) -> None:
    """Run a Sequential model with checkpoint_sequential: the gradients of the input and of all parameters must equal
    those of a plain run of the model."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(8, 8)]
    model = torch.nn.Sequential(*layers).to(context.device)
    found = []
    for way in (model, partial(checkpoint_sequential, model, 2, use_reentrant=reentrant)):
        model.zero_grad()
        x = context.to_device(values(6, 8))
        found.append(_gradients(context, (lambda call, value: call(input=value)).__get__(way), x))
        found[-1][1].extend(
            context.from_device(each.grad) for each in model.parameters() if each.grad is not None
        )
    (_, plain), (_, rerun) = found
    context.same(
        len(rerun),
        len(plain),
        "the number of gradients differs from that of the plain model",
        Kind.COUNT,
    )
    for place, (grad, want) in enumerate(zip(rerun, plain)):
        assert_gradient(
            context,
            grad,
            want,
            "the gradient differs from the one without a checkpoint",
            f"tensor {place}",
        )


@cases("autograd.saved", requires={"autocast"}, over={f"checkpoint_under_autocast{end}": (given,) for end, given in _REENTRANT.items()})  # fmt: skip
def under_autocast(context: CaseContext, reentrant: bool) -> None:
    """Run a function in a checkpoint under autocast, and call backward outside of autocast. The recomputation must run
    under autocast with the same dtype."""
    seen: list[tuple[bool, torch.dtype]] = []

    def noting(value: torch.Tensor) -> torch.Tensor:
        made = value @ value.mT
        seen.append((torch.is_autocast_enabled(context.kind), made.dtype))
        return made.float().tanh()

    x = context.to_device(values(6, 8)).requires_grad_()
    with torch.autocast(context.kind, dtype=torch.bfloat16):
        y: torch.Tensor = checkpoint(noting, x, use_reentrant=reentrant, preserve_rng_state=False)
    y.sum().backward()
    want = [(True, torch.bfloat16)] * 2
    context.same(
        seen,
        want,
        "the autocast state or dtype of the two calls of the function is wrong",
        Kind.DTYPE,
    )
    context.check(
        x.grad is not None and x.grad.dtype == torch.float32,
        "the gradient is missing, or its dtype differs from the dtype of the leaf",
        kind=Kind.DTYPE,
    )


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(functional.relu(x * 2 - 1), 2) * 3


def _convolved(x: torch.Tensor) -> torch.Tensor:
    weight = beside(x, 4, 3, 3, 3).to(memory_format=torch.channels_last)
    return functional.dropout(functional.conv2d(x, weight, padding=1), 0.5)


_IN_CHANNELS_LAST = {"pooled": _pooled, "convolved": _convolved}


@cases(
    "autograd.saved",
    requires={"strides", "generator"},
    over={
        f"checkpoint_channels_last{end}_{name}": (given, name)
        for end, given in _REENTRANT.items()
        for name in _IN_CHANNELS_LAST
    },
)
def channels_last(context: CaseContext, reentrant: bool, name: str) -> None:
    """Run functions of a channels_last input in a checkpoint: the result and the gradients must have the same values
    and strides as without the checkpoint."""
    function = _IN_CHANNELS_LAST[name]
    given = context.to_device(values(2, 3, 4, 4).to(memory_format=torch.channels_last))
    _same_with_checkpoint(context, function, given, use_reentrant=reentrant)
    strides = []
    for call in (function, partial(checkpoint, function, use_reentrant=reentrant)):
        leaf = given.detach().clone().requires_grad_()
        result = call(leaf)
        assert isinstance(result, torch.Tensor)
        result.sum().backward()
        assert leaf.grad is not None
        strides.append((result.stride(), leaf.grad.stride()))
    context.same(
        strides[1],
        strides[0],
        "the strides of the result or of the gradient differ from those without a checkpoint",
        Kind.STRIDES,
    )


@cases("autograd.saved", requires={"generator"})
def other_metadata(context: CaseContext) -> None:
    """Run a function in a checkpoint. When the function is run again for backward, it gives tensors of another shape:
    backward must raise RuntimeError."""
    shapes = [8, 4]

    def changing(value: torch.Tensor) -> torch.Tensor:
        return value[: shapes.pop(0)].exp().exp()

    x = context.to_device(values(8)).requires_grad_()
    y: torch.Tensor = checkpoint(changing, x, use_reentrant=False, preserve_rng_state=False)
    text = "a recomputation with other shapes does not raise the documented exception"
    context.raises(RuntimeError, y.sum().backward, text=text, match="metadata")
