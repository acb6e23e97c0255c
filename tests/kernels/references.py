"""References of kernels that replace no op of torch, and samples for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_SHAPES = ((4, 8), (3, 5, 7), (2, 130), (1, 1), (6, 600))


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * x


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


def row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def row_mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1)


def rotary(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    steps = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turns = torch.polar(
        torch.ones(x.shape[-2], half, dtype=torch.float64),
        torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * steps,
    )
    wide = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
    return torch.cat([wide.real, wide.imag], -1).to(x.dtype)


def int_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(a, b)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def weighted() -> Iterator[Any]:
    for shape in _SHAPES:
        yield (
            torch.randn(shape, generator=_seeded()),
            torch.rand(shape[-1], generator=_seeded()) + 0.5,
        )


def weighted_with_bias() -> Iterator[Any]:
    for x, weight in weighted():
        yield x, weight, torch.randn(weight.shape, generator=_seeded())


def pairs() -> Iterator[Any]:
    for shape in _SHAPES:
        random = _seeded()
        yield torch.randn(shape, generator=random), torch.randn(shape, generator=random)


def single() -> Iterator[Any]:
    for shape in _SHAPES:
        yield (torch.randn(shape, generator=_seeded()),)


def bytes_() -> Iterator[Any]:
    for m, k, n in ((17, 8, 16), (32, 64, 8)):
        random = _seeded()
        shapes = (m, k), (k, n)
        yield tuple(
            torch.randint(-128, 128, each, generator=random).to(torch.int8) for each in shapes
        )


def rotated() -> Iterator[Any]:
    for shape in ((2, 5, 8), (1, 17, 64), (3, 1, 4)):
        yield (torch.randn(shape, generator=_seeded()),)


def heads() -> Iterator[Any]:
    for batch, length, size in ((2, 5, 8), (1, 17, 64), (3, 1, 4)):
        random = _seeded()
        yield tuple(torch.randn(batch, 2, length, size, generator=random) for _ in range(3))
