"""Tries cases of the autograd suite in this process, with wrong implementations of torch's ops on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance import suites
from conformance.checks.cases.execution import attempt
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Attempt
from devices import registry
from opinfo.device import open_device

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


@contextmanager
def replaced(op: str, function: Callable[..., Any], key: str = "AutogradCPU") -> Iterator[None]:
    """An op with another kernel for a block."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernel is overridden on purpose
            library.impl(op, function, key)
        yield
    finally:
        library._destroy()


def called(op: str) -> Any:
    """The overload of that name, such as "add_.Tensor"."""
    packet, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def unbumped(op: str) -> Callable[..., Any]:
    """The op without what increments version counters and notes views."""

    def call(*args: Any, **named: Any) -> Any:
        without = _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView))
        with _C._AutoDispatchBelowAutograd(), without:
            return called(op)(*args, **named)

    return call
