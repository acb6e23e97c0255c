"""Kernels that refuse calls."""

from __future__ import annotations

import torch

from tests.kernels import right


def refuses_all(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("no kernel for this machine")


def refuses_matrices(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 2:
        raise NotImplementedError("no matrices")
    return right.relu(x)
