"""Rules of dtypes: the reference is never the device itself, and eager CPU counts where the device is another one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.layout.rules import promotes


def widened(left: torch.Tensor, right: Any) -> torch.Tensor:
    """An addition whose kernel for the CPU, and no other, returns another dtype than torch promises."""
    found = torch.add(left, right)
    return found.double() if left.device.type == "cpu" else found


def moved(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("other", "form"), [("int64", "tensors"), ("float32", "0-d"), (0.5, "python_scalar")]
)
def test_a_kernel_of_the_cpu_is_no_reference_for_itself(other: Any, form: str) -> None:
    declared = ["float32", "float64"]
    given = (moved, moved, "float32", other, form)
    assert promotes(torch.add, *given, True, declared) is None
    wrong = promotes(widened, *given, True, declared)
    assert wrong is not None and "float64" in repr(wrong)
    assert promotes(widened, *given, False, declared) is None  # as eager CPU, of another device
