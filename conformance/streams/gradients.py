"""streams.autograd: the streams of a backward pass."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.watching import GLANCE, Aside, ends_early
from conformance.streams.judging import SIZE, two

cases = Cases()


class _Noting(torch.autograd.Function):
    """y = 3 x; its backward notes the current stream."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: torch.device, seen: list[Any]) -> torch.Tensor:
        ctx.device, ctx.seen = device, seen
        return x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.seen.append(torch.accelerator.current_stream(ctx.device))
        return grads[0] * 3, None, None


def _noting(x: torch.Tensor, context: Context, seen: list[Any]) -> torch.Tensor:
    made: torch.Tensor = _Noting.apply(x, context.device, seen)  # type: ignore[no-untyped-call]
    return made


def _backward(output: torch.Tensor, given: torch.Tensor) -> None:
    """``output.backward(given)``, without the advice to make leaves on the stream of their use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
        output.backward(given)


def _leaf(context: Context) -> torch.Tensor:
    made = torch.ones(SIZE, device=context.device).requires_grad_()
    (made * 3).backward(torch.ones(SIZE, device=context.device))
    made.grad = None
    context.settle()
    return made


def _given(context: Context, value: float) -> torch.Tensor:
    made = torch.full((SIZE,), value, device=context.device)
    context.settle()
    return made


@cases("streams.autograd")
def on_the_streams_of_forward(context: Context) -> None:
    """Each node runs on the stream of its forward, whichever is current at the call."""
    first, second = two(context)
    caller, x = context.stream(), _leaf(context)
    seen: list[Any] = []
    with first:
        y = _noting(x, context, seen)
    second.wait_stream(first)
    with second:
        z = _noting(y, context, seen)
    caller.wait_stream(second)
    with caller:
        _backward(z, _given(context, 1.0))
    caller.synchronize()
    context.same(seen, [second, first], "the nodes run on the streams of their forwards")
    context.must(x.grad is not None, "the leaf has a gradient")
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 9.0), "the gradient is right")


@cases("streams.autograd")
def caller_waits_for_backward(context: Context) -> None:
    """Work of the caller's stream behind backward() sees the gradients."""
    forward, caller = two(context)
    x, given, target = _leaf(context), _given(context, 1.0), _given(context, 0.0)
    with forward:
        y = x * 3
    context.settle()

    def backward() -> None:
        with caller:
            _backward(y, given)
            assert x.grad is not None
            target.copy_(x.grad)

    # A device may let the host wait for backward(): then nothing is early either.
    with context.hold(forward) as hold, Aside(backward) as call:
        returned = call.ended(5 * GLANCE)
        early = returned and ends_early(caller, hold)
        context.check(not early, "the caller's stream waits for the nodes' streams")
        hold.release()
    caller.synchronize()
    context.equal(target, torch.full((SIZE,), 3.0), "it reads the whole gradient")


@cases("streams.autograd")
def backward_waits_for_the_caller(context: Context) -> None:
    """The first nodes see the gradient that the caller's stream computes."""
    forward, caller = two(context)
    x, given = _leaf(context), _given(context, 1.0)
    with forward:
        y = x * 3
    context.settle()

    def backward() -> None:
        with caller:
            _backward(y, given)

    with context.hold(caller) as hold:
        with caller:
            given.fill_(5.0)
        with Aside(backward) as call:
            call.ended(5 * GLANCE)
            hold.must_be_in_flight()
            hold.release()
    caller.synchronize()
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 15.0), "the gradient is that of the caller's work")
