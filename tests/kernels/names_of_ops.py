"""Wrong kernels with the names of ops of torch: of ``empty_like`` no value is determined, and those whose name has "lu"
in it count as linear algebra, in which NaN may spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def samples() -> Iterator[Any]:
    for shape in ((3, 5), (2, 130)):
        yield (torch.randn(shape, generator=torch.Generator().manual_seed(1)),)


def empty_like(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def elu(x: torch.Tensor) -> torch.Tensor:
    """Wrong for NaN only."""
    return torch.where(x.isnan(), 0.0, x * 2)
