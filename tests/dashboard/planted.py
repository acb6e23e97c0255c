"""A plugin of pytest that breaks three kernels of torch itself: ``pytest -p tests.dashboard.planted --device cpu``.

The simulated device has planted faults of its own; ``cpu`` and ``lazy`` have none. So that runs of
them with something broken can be looked at too, faults are planted here:

- ``erf`` on the CPU adds 1 where its input is not contiguous (the reference reads contiguous copies,
  and stays right);
- ``sgn`` on the CPU raises for an input that starts behind its storage's first element;
- ``trunc`` on the lazy device rounds up.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall, Refusal
from tests.planting.places import Planted


def _erf(call: KernelCall) -> Any:
    return NOT_MET if call.first.is_contiguous() else call.honest() + 1


def _sgn(call: KernelCall) -> Any:
    if call.first.storage_offset():
        raise Refusal("planted: the storage offset is not supported")
    return NOT_MET


def _trunc(call: KernelCall) -> Any:
    return torch.ceil(call.first)


def pytest_configure() -> None:
    """Plant the faults, in the controller and in every worker."""
    Planted(("erf",), _erf, "CPU").switch_on()
    Planted(("sgn",), _sgn, "CPU").switch_on()
    # The Lazy key is filled later, by its init.
    Planted(("trunc",), _trunc, "AutogradLazy").switch_on()
