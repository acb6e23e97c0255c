"""Cases about the streams on which backward runs, and the streams that wait for it."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from conformance.checks.behaviour.queued_work import (
    SIZE,
    filled,
    hold_stream,
    two,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import WaitingCall
from devices.failure import Kind

cases = Cases(Kind.ORDER)


class _Noting(torch.autograd.Function):
    """An autograd function that computes y = 3 * x. Its backward appends the current stream to a list."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: torch.device, seen: list[Any]) -> torch.Tensor:
        ctx.device, ctx.seen = device, seen
        return x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.seen.append(torch.accelerator.current_stream(ctx.device))
        return grads[0] * 3, None, None


def _noting(x: torch.Tensor, context: CaseContext, seen: list[Any]) -> torch.Tensor:
    made: torch.Tensor = _Noting.apply(x, context.device, seen)  # type: ignore[no-untyped-call]
    return made


def _backward(output: torch.Tensor, given: torch.Tensor) -> None:
    """Calls ``output.backward(given)`` and suppresses the warning that recommends creating leaves on the stream
    that uses them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
        output.backward(given)


def _leaf(context: CaseContext) -> torch.Tensor:
    """Returns a leaf tensor whose gradient was computed once and then removed."""
    made = filled(context, 1, dtype=torch.float32).requires_grad_()
    (made * 3).backward(filled(context, 1, dtype=torch.float32))
    made.grad = None
    context.settle()
    return made


def _tripled(context: CaseContext, stream: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a leaf tensor and a tensor that is three times the leaf, computed on the given stream."""
    x = _leaf(context)
    with stream:
        y = x * 3
    context.settle()
    return x, y


@cases("streams.autograd")
def on_the_streams_of_forward(context: CaseContext) -> None:
    """Each node of backward runs on the stream on which its forward ran, not on the stream that is current when
    backward() is called."""
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
        _backward(z, filled(context, 1, dtype=torch.float32))
    caller.synchronize()
    context.same(
        seen, [second, first], "a node of backward did not run on the stream of its forward"
    )
    context.must(x.grad is not None, "the leaf has no gradient")
    assert x.grad is not None
    context.equal(x.grad, torch.full((SIZE,), 9.0), "the gradient is wrong")


@cases("streams.autograd")
def gradients_live_as_long_as_they_are_read(context: CaseContext) -> None:
    """A gradient is computed on one stream and read by a node on another stream, which is busy. Its memory is not reused
    before that node has run, although the gradient has been freed by then."""
    reads, makes = two(context)
    caller, x = context.stream(), _leaf(context)
    with reads:
        y = x * 3
    makes.wait_stream(reads)
    with makes:
        z = y * 2
    context.settle()
    given = filled(context, 1, dtype=torch.float32)
    with context.hold(reads) as hold:
        with caller:
            _backward(z, given)
        with makes:
            others = [torch.full((SIZE,), 777.0, device=context.device) for _ in range(6)]
        makes.synchronize()
        hold.must_be_in_flight()
    reads.synchronize()
    caller.synchronize()
    context.must(x.grad is not None and len(others) == 6, "the leaf has no gradient")
    assert x.grad is not None
    text = "the memory of a gradient was reused before the stream that reads it had read it"
    context.equal(x.grad, torch.full((SIZE,), 6.0), text)


@cases("streams.autograd")
def caller_waits_for_backward(context: CaseContext) -> None:
    """Work that is queued on the caller's stream after backward() sees the gradients, although the stream of
    the forward pass was busy."""
    forward, caller = two(context)
    x, y = _tripled(context, forward)
    given, target = (filled(context, value, dtype=torch.float32) for value in (1, 0))

    def backward() -> None:
        with caller:
            _backward(y, given)
            assert x.grad is not None
            target.copy_(x.grad)

    # A device may block the host in backward(). Then nothing can be early either.
    with hold_stream(context, forward) as hold, WaitingCall(backward) as call:
        if call.is_early():
            hold.waits(caller, "the caller's stream did not wait for the streams of backward")
        hold.release()
    caller.synchronize()
    context.equal(target, torch.full((SIZE,), 3.0), "work after backward() read a wrong gradient")


@cases("streams.autograd")
def backward_waits_for_the_caller(context: CaseContext) -> None:
    """The gradient that is passed to backward() is computed on the caller's stream, which is busy. Backward, on
    the stream of the forward pass, sees the final value of the gradient."""
    forward, caller = two(context)
    (x, y), given = _tripled(context, forward), filled(context, 1, dtype=torch.float32)

    def backward() -> None:
        with caller:
            _backward(y, given)

    # A device may block the host in backward(). Then nothing can be early either.
    with hold_stream(context, caller) as hold:
        with caller:
            given.fill_(5.0)
        with WaitingCall(backward) as call:
            if call.is_early():
                hold.give_others_a_turn()
            hold.release()
    caller.synchronize()
    assert x.grad is not None
    context.equal(
        x.grad,
        torch.full((SIZE,), 15.0),
        "backward did not wait for the gradient computed on the caller's stream",
    )
