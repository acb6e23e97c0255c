"""Cases of the size suite on a CPU with a fault in front of one of its functions, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance import suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.execution import here
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Attempt
from devices import registry
from opinfo.compare import tensors_of
from opinfo.device import open_device
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.tensors import extent, is_stepped

CLAUSE = "layout.large"


class Faulty(TorchFunctionMode):
    """While it is entered, calls of a function of torch, or of a method of tensors, of this name have a fault."""

    def __init__(self, name: str, effect: Effect) -> None:
        super().__init__()
        self._name, self._effect, self.struck = name, effect, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") != self._name:
            return func(*args, **(kwargs or {}))
        call = KernelCall(func, args, kwargs or {})
        result = self._effect(call)
        self.struck += result is not NOT_MET
        return call.honest() if result is NOT_MET else result


def case_named(name: str) -> BehaviourCase:
    """The case with this name, such as ``bmm@65536 batches``."""
    unit, _, variant = name.partition("@")
    return suites.case_of(CLAUSE, unit, variant)


def tried(case: BehaviourCase, function: str, effect: Effect) -> tuple[Attempt, int]:
    """The result of a case with a fault in front of a function, and how many calls it spoiled."""
    faulty = Faulty(function, effect)
    return tried_here(case, faulty), faulty.struck


def tried_here(case: BehaviourCase, faulty: TorchFunctionMode) -> Attempt:
    """The result of a case in this process while a fault is in front of functions of torch."""
    device, where = open_device(registry.get("cpu")), DeviceLocator(device="cpu")
    with warnings.catch_warnings(), faulty:
        warnings.simplefilter("ignore")
        return here(case.check, case.arguments, device, case.id, where, default=case.kind)


def past(limit: int, spoil: Callable[[Any, KernelCall], Any]) -> Effect:
    """A fault that strikes calls with more elements than the limit, or with a longer dimension: the result is spoiled."""

    def effect(call: KernelCall) -> Any:
        given = tensors_of((call.args, call.kwargs))
        large = any(max((*t.shape, t.numel())) > limit for t in given)
        return spoil(call.honest(), call) if large else NOT_MET

    return effect


def copy_that_wraps(limit: int) -> Effect:
    """Returns a fault of copy_ to a stepped target whose memory has more than ``limit`` elements: the last element is
    written to the start of the target."""

    def effect(call: KernelCall) -> Any:
        target = call.first
        if not is_stepped(target) or extent(target) <= limit:
            return NOT_MET
        last = target[-1:].clone()
        call.honest()
        target[:1].copy_(target[-1:])
        target[-1:].copy_(last)
        return target

    return effect


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1) if tensor.is_contiguous() else tensor.reshape(-1)
