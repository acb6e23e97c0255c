"""Autocast runs each listed op in its listed dtype, and GradScaler skips a step whose gradients are not finite."""

from __future__ import annotations

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated

HALVES = (torch.float16, torch.bfloat16)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="simulated")


def image() -> torch.Tensor:
    return ones(1, 2, 4, 4)


#: One op of each of torch's lists (ATen/autocast_mode.h), and a call of it.
LOWER = {
    "mm": lambda: torch.mm(ones(2, 2), ones(2, 2)),
    "addmm": lambda: torch.addmm(ones(2, 2), ones(2, 2), ones(2, 2)),
    "bmm": lambda: torch.bmm(ones(1, 2, 2), ones(1, 2, 2)),
    "matmul": lambda: ones(2, 2) @ ones(2, 2),
    "linear": lambda: torch.nn.functional.linear(ones(2, 2), ones(2, 2)),
    "conv2d": lambda: torch.nn.functional.conv2d(image(), ones(1, 2, 3, 3)),
    "conv_transpose2d": lambda: torch.nn.functional.conv_transpose2d(image(), ones(2, 1, 3, 3)),
}
FLOAT32 = {
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: torch.pow(x, 2),
    "softmax": lambda x: torch.softmax(x, 0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (2,)),
    "mse_loss": lambda x: torch.nn.functional.mse_loss(x, x),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "sum": torch.sum,
    "norm": torch.norm,
}
WIDEST = {
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "dot": torch.dot,
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("op", LOWER)
def test_lower_precision(op: str, half: torch.dtype) -> None:
    with torch.autocast("simulated", half):
        assert LOWER[op]().dtype == half
    assert LOWER[op]().dtype == torch.float32


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("op", FLOAT32)
def test_float32(op: str, half: torch.dtype) -> None:
    with torch.autocast("simulated", half):
        assert FLOAT32[op](ones(2, dtype=half)).dtype == torch.float32


@pytest.mark.parametrize("op", WIDEST)
def test_the_widest_of_its_operands(op: str) -> None:
    with torch.autocast("simulated", torch.float16):
        assert WIDEST[op](ones(2), ones(2, dtype=torch.float16)).dtype == torch.float32


def test_binary_cross_entropy_is_refused() -> None:
    with (
        torch.autocast("simulated", torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        torch.nn.functional.binary_cross_entropy(ones(2), ones(2))


def test_other_ops_and_blocks_that_are_off_keep_their_dtype() -> None:
    with torch.autocast("simulated", torch.float16):
        assert (ones(2) + 1).dtype == torch.float32
        with torch.autocast("simulated", enabled=False):
            assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32


def test_a_dtype_that_is_not_supported_disables_it_with_a_warning() -> None:
    with (
        pytest.warns(UserWarning, match="only supports dtypes of torch.bfloat16, torch.float16"),
        torch.autocast("simulated", torch.float64),
    ):
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("half", HALVES)
def test_gradients_come_back_in_the_leaf_s_dtype(half: torch.dtype) -> None:
    weight = ones(2, 2).requires_grad_()
    with torch.autocast("simulated", half):
        (ones(2, 2) @ weight).sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    assert weight.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("factor", "stepped"), [(1.0, True), (torch.inf, False), (torch.nan, False)]
)
def test_the_scaler_skips_steps_with_gradients_that_are_not_finite(
    factor: float, stepped: bool
) -> None:
    x = ones(2).requires_grad_()
    optimizer, scaler = torch.optim.SGD([x], lr=0.5), torch.amp.GradScaler("simulated")
    before = scaler.get_scale()
    scaler.scale((x * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert x.tolist() == ([0.5, 0.5] if stepped else [1.0, 1.0])
    assert (scaler.get_scale() == before) == stepped
