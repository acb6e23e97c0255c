"""Recurrent layers, whose cells torch asks of devices as one op each, agree with the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated

LAYERS: dict[str, Callable[..., torch.nn.RNNBase]] = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "rnn": torch.nn.RNN,
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_are_the_cpu_s(name: str, bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    layer = LAYERS[name](3, 4, num_layers=2, bias=bias, bidirectional=True)
    there = copy.deepcopy(layer).to("simulated")
    x = torch.randn(5, 2, 3, generator=generator, requires_grad=True)
    moved = x.detach().to("simulated").requires_grad_()
    want, _ = layer(x)
    got, _ = there(moved)
    torch.testing.assert_close(got.cpu(), want)
    weights = torch.randn(want.shape, generator=generator)
    (want * weights).sum().backward()
    (got * weights.to("simulated")).sum().backward()
    assert x.grad is not None and moved.grad is not None
    torch.testing.assert_close(moved.grad.cpu(), x.grad)
    for mine, theirs in zip(there.parameters(), layer.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells_take_one_step(cell: type[torch.nn.Module]) -> None:
    made = cell(3, 4)
    want = made(torch.ones(2, 3))
    got = made.to("simulated")(torch.ones(2, 3, device="simulated"))
    for one, other in zip(*((each if isinstance(each, tuple) else (each,)) for each in (got, want)), strict=True):  # fmt: skip
        torch.testing.assert_close(one.cpu(), other)
