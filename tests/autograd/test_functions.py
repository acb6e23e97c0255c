"""Custom Functions: which wrong implementations of what they stand on the cases notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.autograd.trying import failing, names, replaced, tried, unbumped
from tests.planting.places import overload_of

CLAUSE = "autograd.function"
_C: Any = torch._C


@pytest.mark.parametrize("name", names(CLAUSE))
def test_every_case_passes_on_cpu(name: str) -> None:
    made = tried(CLAUSE, name)
    assert made.passes, made
    assert made.checks > 0


def in_backward() -> bool:
    return int(_C._current_graph_task_id()) >= 0


def below(op: str, *args: Any, **named: Any) -> Any:
    """An op below autograd."""
    with _C._AutoDispatchBelowAutograd():
        return overload_of(op)(*args, **named)


def zeros_of_one(size: Any, **named: Any) -> torch.Tensor:
    named.pop("pin_memory", None)
    return torch.full(size, float(in_backward()), **named)


def zeros_of_float32(size: Any, **named: Any) -> torch.Tensor:
    named.pop("pin_memory", None)
    return torch.full(size, 0.0, **{**named, "dtype": torch.float32})


def strided_from_the_start(x: torch.Tensor, size: Any, stride: Any, offset: Any = None) -> Any:
    return below("as_strided", x, size, stride, x.storage_offset() if in_backward() else offset)


def sum_without_graph(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    if in_backward() or not x.is_floating_point():
        return below("add.Tensor", x, y, alpha=alpha)
    return torch.sub(x, y, alpha=-alpha)


def not_conjugated(x: torch.Tensor) -> Any:
    return below("alias", x)


def copied_densely(x: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """The elements in the order of memory, whatever the strides say."""
    if x.dim() < 2 or x.is_contiguous() or not in_backward():
        return torch.empty_like(x, memory_format=torch.preserve_format).copy_(x)
    return torch.empty(x.shape, dtype=x.dtype).copy_(x.t().reshape(x.shape))


class Product(torch.autograd.Function):
    """A product without forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return below("mul.Tensor", x, y)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return (grads[0] * y).sum_to_size(x.shape), (grads[0] * x).sum_to_size(y.shape)


class Cloned(torch.autograd.Function):
    """A copy in the place of a view."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return x.contiguous().clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], None


#: By what is wrong: the op, its kernel, the key, and cases that notice it.
WRONG: dict[str, tuple[str, Callable[..., Any], str, list[str]]] = {
    "zeros in backward are ones": ("zeros", zeros_of_one, "CPU", ["materialized", "mark_non_differentiable"]),
    "zeros are float32, whatever is asked for": ("zeros", zeros_of_float32, "CPU", ["materialized", "mark_non_differentiable"]),
    "an offset is lost in backward": ("as_strided", strided_from_the_start, "AutogradCPU", ["written_view", "dirty_view"]),
    "a sum in backward has no graph": ("add.Tensor", sum_without_graph, "AutogradCPU", ["higher_orders", "once"]),
    "conj does nothing": ("_conj", not_conjugated, "AutogradCPU", ["complex", "complex_and_real"]),
    "a copy in backward ignores strides": ("clone", copied_densely, "CPU", ["returned_gradients"]),
    "a product has no forward mode": ("mul.Tensor", lambda *given: Product.apply(*given), "AutogradCPU", ["forward_mode", "transforms"]),
    "view_as copies": ("view", lambda *given: Cloned.apply(*given), "AutogradCPU", ["input_as_result"]),
    "a slice is not a view for autograd": ("slice.Tensor", unbumped("slice.Tensor"), "AutogradCPU", ["written_view"]),
    "select is not a view for autograd": ("select.int", unbumped("select.int"), "AutogradCPU", ["dirty_view"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_noticed(name: str) -> None:
    op, function, key, cases = WRONG[name]
    with replaced(op, function, key):
        assert failing(CLAUSE, cases) == cases


def test_vmap_that_leaves_the_dimension_in_front_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.func.vmap
    monkeypatch.setattr(torch.func, "vmap", lambda function, dims, _: original(function, dims, 0))
    assert failing(CLAUSE, ["vmap", "vmap_with_own_rule"]) == ["vmap", "vmap_with_own_rule"]


def test_a_vmap_that_gives_the_first_of_the_batch_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.func.vmap

    def first_only(function: Any, dims: Any, out: int) -> Any:
        def call(*given: torch.Tensor) -> torch.Tensor:
            made = original(function, dims, out)(*given)
            return made.select(out, 0).unsqueeze(out).expand_as(made).clone()

        return call

    monkeypatch.setattr(torch.func, "vmap", first_only)
    assert failing(CLAUSE, ["vmap", "vmap_with_own_rule"]) == ["vmap", "vmap_with_own_rule"]
