"""A kernel whose reference needs memory for all pairs of elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def reference(x: torch.Tensor) -> torch.Tensor:
    return (x[..., :, None] - x[..., None, :]).abs().sum(-1)


def samples() -> Iterator[Any]:
    for size in (8, 60, 600):
        yield (torch.linspace(-3.0, 3.0, size),)


def kernel(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape, dtype=torch.float64)
    for start in range(0, x.shape[-1], 256):
        part = x[start : start + 256].double()
        total += (x.double()[:, None] - part).abs().sum(-1)
    return total.to(x.dtype)
