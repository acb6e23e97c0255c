"""Kernels and references that are decorated, and so have the name of another function."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0))


@functools.wraps(relu)
def zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


@functools.wraps(zeros)
def of_no_module(x: torch.Tensor) -> torch.Tensor:
    return relu(x)


of_no_module.__module__, of_no_module.__qualname__ = "torch", "relu"


def _broken(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) if torch.compiler.is_compiling() else relu(x)


#: Right when it is called eagerly, wrong when it is compiled.
compiled = torch.compile(_broken, backend="eager")


@torch.no_grad()
def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * y + x


@torch.no_grad()
def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(x, torch.tanh(x), y)


@torch.no_grad()
def calling_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return reference(x, y)


def samples() -> Iterator[Any]:
    yield torch.linspace(-2, 2, 12).reshape(3, 4), torch.ones(3, 4) * 0.5
    yield torch.linspace(-1, 3, 35).reshape(5, 7), torch.linspace(1, 2, 35).reshape(5, 7)
