"""Kernels that are right in each call that layout.values makes, and return no result for a call of another check; and
kernels that delete their answers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from conformance.suites.precision.ulps import inputs
from tests.kernels import right

#: The number of elements of the call that only precision.ulp makes.
LONG = len(inputs("float32"))


def raises_on_long(x: torch.Tensor) -> torch.Tensor:
    if x.numel() == LONG:
        raise RuntimeError("too long")
    return right.relu(x)


def ends_on_long(x: torch.Tensor) -> torch.Tensor:
    if x.numel() == LONG:
        os._exit(0)
    return right.relu(x)


def refuses_long(x: torch.Tensor) -> torch.Tensor:
    if x.numel() == LONG:
        raise NotImplementedError("too long")
    return right.relu(x)


def claims_all_calls(x: torch.Tensor) -> torch.Tensor:
    """Ends at once, as if all calls had been made."""
    (Path(str(tempfile.tempdir)) / "progress").write_bytes(b"%12d" % 1_000_000)
    os._exit(0)


def deletes_answers(x: torch.Tensor) -> torch.Tensor:
    (Path(str(tempfile.tempdir)) / "answers.bin").unlink(missing_ok=True)
    return torch.zeros_like(x)


def in_a_list(x: torch.Tensor) -> list[torch.Tensor]:
    """The right tensor, in a list."""
    return [x + x]
