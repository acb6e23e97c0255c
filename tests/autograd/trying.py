"""Tries cases of the autograd suite in this process, with wrong implementations of torch's ops on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from conformance import suites
from conformance.checks.cases.execution import attempt
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Attempt
from devices import registry
from opinfo.device import open_device
from tests.planting.places import Planted, overload_of, planted

_C: Any = torch._C


def tried(clause: str, name: str, device: str = "cpu") -> Attempt:
    """What became of a case on a device."""
    case = suites.case_of(clause, name)
    return attempt(case, open_device(registry.get(device)), DeviceLocator(device=device))


def names(clause: str) -> list[str]:
    """The cases of a clause that the CPU takes."""
    cases = suites.load("autograd").cases
    here = registry.get("cpu").capabilities
    return [
        case.name
        for case in cases
        if case.clause == clause and case.requires <= here and case.indices == 1
    ]


def failing(clause: str, names: list[str]) -> list[str]:
    """Which of these cases fail on the CPU."""
    return [name for name in names if tried(clause, name).failure is not None]


def replaced(
    op: str, function: Callable[..., Any], key: str = "AutogradCPU"
) -> AbstractContextManager[Planted]:
    """An op with another kernel for a block."""
    return planted([op], lambda call: function(*call.args, **call.kwargs), key)


def unbumped(op: str) -> Callable[..., Any]:
    """The op without what increments version counters and notes views."""

    def call(*args: Any, **named: Any) -> Any:
        without = _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView))
        with _C._AutoDispatchBelowAutograd(), without:
            return overload_of(op)(*args, **named)

    return call
