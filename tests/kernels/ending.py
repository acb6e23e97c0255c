"""References that end their process or do not return for some calls, and attention of tensors whose sizes do not fit each
other."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch


def reference(x: torch.Tensor) -> torch.Tensor:
    """Doubles a tensor, unless its number of elements is 3, 5, 6, 7 or 9."""
    size = x.numel()
    if size == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if size == 5:
        os._exit(0)
    if size == 6:
        time.sleep(60)
    if size == 7:
        sys.exit("seven elements")
    if size == 9:
        raise ValueError("cannot take 9 elements")
    return x + x


def samples() -> Iterator[Any]:
    for size in (2, 3, 5, 8, 9):
        yield (torch.linspace(-1, 1, size),)


def right(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0.9, x, 2 * x)


def of_negative(x: torch.Tensor) -> torch.Tensor:
    if bool((x < 0).any()):
        os.kill(os.getpid(), signal.SIGSEGV)
    return x.clone()


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.double() @ k.double().mT * max(q.shape[-1], 1) ** -0.5
    weights = torch.softmax(scores, -1)
    return (weights @ v.double()).to(q.dtype)


def strict_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if k.shape[-2] != v.shape[-2]:
        raise ValueError("expected a value for each key")
    return attention(q, k, v)


def first_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k[..., :32, :], v[..., :32, :])
