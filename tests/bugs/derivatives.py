"""Derivatives that are wrong as ``conformance/contract/bugs.toml`` describes: the op is called between identities that see
each cotangent and each gradient on their way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.contract.bugs import Imitation
from opinfo.compare import replace_tensors, tensors_of
from tests.bugs.imitations import READS, RESULTS, holds
from tests.faulty import Function, Wrap


class _Way:
    """A call on its way back."""

    def __init__(self, imitation: Imitation, inputs: list[torch.Tensor]) -> None:
        self.imitation, self.inputs = imitation, inputs
        self.cotangents: list[torch.Tensor] = []

    @property
    def strikes(self) -> bool:
        imitation = self.imitation
        given = self.inputs if imitation.of == "input" else self.cotangents
        if imitation.of == "input" and imitation.arg is not None:
            given = given[imitation.arg : imitation.arg + 1]
        wanted = sum(each.requires_grad for each in self.inputs)
        if "alone" in imitation.when and wanted == len(self.inputs):
            return False
        words = [word for word in imitation.when if word != "alone"]
        return not words or any(all(holds(w, t, imitation.past) for w in words) for t in given)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, way: _Way) -> torch.Tensor:
        ctx.way = way
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        change = RESULTS.get(ctx.way.imitation.then)
        return (change(gradient) if change and ctx.way.strikes else gradient), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, way: _Way) -> torch.Tensor:
        ctx.way = way
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        way = ctx.way
        way.cotangents.append(cotangent)
        if not way.strikes:
            return cotangent, None
        if way.imitation.then == "refused":
            raise RuntimeError(f"{way.imitation.op}: internal error")
        if way.imitation.then == "ignored":
            return torch.ones_like(cotangent), None
        read: Callable[[torch.Tensor], torch.Tensor] | None = READS.get(way.imitation.then)
        return (read(cotangent) if read is not None else cotangent), None


def wrap(imitation: Imitation) -> Wrap:
    """What puts the fault in front of a function."""

    def around(function: Function) -> Function:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            given = [
                t for t in tensors_of((args, kwargs)) if t.is_floating_point() or t.is_complex()
            ]
            if not (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
                return function(*args, **kwargs)
            way = _Way(imitation, given)

            def enter(tensor: torch.Tensor) -> torch.Tensor:
                return _Enter.apply(tensor, way) if tensor.requires_grad else tensor

            def leave(tensor: torch.Tensor) -> torch.Tensor:
                return _Leave.apply(tensor, way) if tensor.requires_grad else tensor

            entered = replace_tensors((args, kwargs), enter)
            return replace_tensors(function(*entered[0], **entered[1]), leave)

        return faulty

    return around
