"""A fault of a derivative: the function is called between identities, which see each cotangent and each gradient on their
way back. The result of the call is not changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from opinfo.compare import replace_tensors, tensors_of
from tests.planting.calls import NOT_MET, Effect, KernelCall


@dataclass
class Backward:
    """The backward of one call: its inputs, and the cotangents that have arrived so far."""

    inputs: list[torch.Tensor]
    outputs: int = 0
    cotangents: list[torch.Tensor] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """The number of inputs that require a gradient."""
        return sum(each.requires_grad for each in self.inputs)


class Derivative(Protocol):
    """A fault of a derivative."""

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        """What the derivative takes for a cotangent."""
        ...

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """What the derivative returns as the gradient of an input."""
        ...


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, fault: Derivative, way: Backward, place: int
    ) -> Any:
        ctx.about = fault, way, place
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        fault, way, place = ctx.about
        batched = torch._C._functorch.is_batchedtensor(gradient)
        return gradient if batched else fault.entered(way, place, gradient), None, None, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, fault: Derivative, way: Backward) -> Any:
        ctx.about = fault, way
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        fault, way = ctx.about
        if torch._C._functorch.is_batchedtensor(cotangent):
            return cotangent, None, None
        way.cotangents.append(cotangent)
        return fault.left(way, cotangent), None, None


def differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def wrong_derivative(fault: Derivative) -> Effect:
    """The function with a fault of its derivative, where gradients are recorded."""

    def effect(call: KernelCall) -> Any:
        inputs = [t for t in tensors_of((call.args, call.kwargs)) if differentiable(t)]
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
            return NOT_MET
        way, places = Backward(inputs), iter(range(len(inputs)))

        def enter(tensor: torch.Tensor) -> Any:
            place = next(places) if differentiable(tensor) else -1
            return _Enter.apply(tensor, fault, way, place) if tensor.requires_grad else tensor

        def leave(tensor: torch.Tensor) -> Any:
            if not tensor.requires_grad:
                return tensor
            way.outputs += 1
            return _Leave.apply(tensor, fault, way)

        args, kwargs = replace_tensors((call.args, call.kwargs), enter)
        return replace_tensors(call.function(*args, **kwargs), leave)

    return effect
