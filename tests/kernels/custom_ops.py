"""Custom ops for tests: one that is right, and some that opcheck does not accept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch


@torch.library.custom_op("conform_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("conform_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _with_fake(name: str, fake: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = torch.library.custom_op(f"conform_tests::{name}", double, mutates_args=())
    found.register_fake(fake)
    return found


def _ends(x: torch.Tensor) -> torch.Tensor:
    os._exit(0)


def _interrupted(x: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


#: Ops whose fake implementation ends the process of opcheck, or raises an exception that opcheck does not catch.
ending = _with_fake("ending", _ends)
interrupted = _with_fake("interrupted", _interrupted)


@torch.library.custom_op("conform_tests::of_small", mutates_args=())
def of_small(x: torch.Tensor) -> torch.Tensor:
    if x.numel() > 40:
        raise NotImplementedError("too large")
    return x * 2


@of_small.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
