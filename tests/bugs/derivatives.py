"""Derivatives that are wrong as ``conformance/contract/bugs.toml`` describes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from conformance.contract.bugs import Imitation
from tests.bugs.conditions import CONDITIONS
from tests.bugs.imitations import READS, RESULTS, fit, holds
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.derivatives import Backward, wrong_derivative


@dataclass(frozen=True)
class _Imitated:
    """The fault that imitates a bug of a derivative."""

    imitation: Imitation
    calls: Iterator[int] = field(default_factory=lambda: count(1))

    def _strikes(self, way: Backward) -> bool:
        imitation = self.imitation
        given = way.inputs if imitation.of == "input" else way.cotangents
        if imitation.of == "input" and imitation.arg is not None:
            given = given[imitation.arg : imitation.arg + 1]
        if "alone" in imitation.when:
            alone = way.inputs if imitation.arg is None else given
            if all(each.requires_grad for each in alone):
                return False
        if not fit(imitation.shapes, way.inputs):
            return False
        words = [word for word in imitation.when if word != "alone"]
        return not words or any(all(holds(w, t, imitation.past) for w in words) for t in given)

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        if not self._strikes(way):
            return cotangent
        if self.imitation.then == "refused":
            raise RuntimeError(f"{self.imitation.op}: internal error")
        if self.imitation.then == "ignored":
            return torch.ones_like(cotangent)
        read = READS.get(self.imitation.then)
        return read(cotangent) if read is not None else cotangent

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        if self.imitation.then == "varying" and self._strikes(way):
            return gradient + next(self.calls)
        change = RESULTS.get(self.imitation.then)
        return change(gradient) if change and self._strikes(way) else gradient


def effect_of(imitation: Imitation) -> Effect:
    """The fault that imitates a bug of a derivative."""
    wrong = wrong_derivative(_Imitated(imitation))
    holds_of = CONDITIONS.get(imitation.where)

    def effect(call: KernelCall) -> Any:
        return wrong(call) if holds_of is None or holds_of(call) else NOT_MET

    return effect
