"""Convolutions have gradients on the device, which are row-major, and their work is queued."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated


def gradients(module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of everything, for a cotangent that has stride 0."""
    x = x.detach().requires_grad_()
    out = module(x)
    wanted = [x, *module.parameters()]
    return list(torch.autograd.grad(out, wanted, torch.ones((), device=x.device).expand_as(out)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [torch.nn.Conv2d, torch.nn.ConvTranspose2d])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_the_cpu_s(kind: Any, groups: int, bias: bool, form: Any) -> None:
    module = kind(4, 6, 3, stride=2, padding=1, groups=groups, bias=bias).to(memory_format=form)
    x = torch.randn(2, 4, 9, 9).contiguous(memory_format=form)
    there = copy.deepcopy(module).to("simulated")
    for mine, theirs in zip(gradients(there, x.to("simulated")), gradients(module, x), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
        assert mine.is_contiguous()  # in each memory format, as FakeTensor predicts for the device


def test_a_gradient_has_a_gradient() -> None:
    weight, x = torch.randn(4, 3, 3), torch.randn(2, 3, 8)

    def second(device: str) -> torch.Tensor:
        there = x.to(device).requires_grad_()
        out = torch.conv1d(there, weight.to(device)).pow(2).sum()
        (first,) = torch.autograd.grad(out, there, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), there)[0].cpu()

    torch.testing.assert_close(second("simulated"), second("cpu"))
