"""Backward and threads: which wrong implementations the cases notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.autograd.trying import names, replaced, tried
from tests.planting.places import overload_of

CLAUSE = "autograd.threads"
_C: Any = torch._C


@pytest.mark.parametrize("name", names(CLAUSE))
def test_every_case_passes_on_cpu(name: str) -> None:
    made = tried(CLAUSE, name)
    assert made.passes, made
    assert made.checks > 0


def kernel(op: str, backward: Callable[[Any, torch.Tensor], Any]) -> Callable[..., Any]:
    """A kernel of autograd whose backward is another; it keeps its tensor on the node."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            ctx.x, ctx.rest, last["x"] = x.detach(), rest, x.detach()
            with _C._AutoDispatchBelowAutograd():
                return overload_of(op)(x, *rest)

    def whole(ctx: Any, *grads: torch.Tensor) -> Any:
        return backward(ctx, grads[0]), *(None for _ in ctx.rest)

    Function.backward = staticmethod(whole)
    return lambda *given: Function.apply(*given)


last: dict[str, torch.Tensor] = {}


def of_the_last_call(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * last["x"].cos()


def _one_call_at_a_time() -> Callable[[Any, torch.Tensor], torch.Tensor]:
    workspace = torch.zeros(0)

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """A workspace that all calls share, which holds what the first one needs."""
        nonlocal workspace
        if workspace.shape != ctx.x.shape:
            workspace = ctx.x.exp()
        return grad * workspace

    return backward


def moves_generator(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    return grad.expand(ctx.x.shape)


def loses_first(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The first gradient of many nodes is wrong: a counter of 12 bits wraps."""
    last["count"] = last.get("count", torch.tensor(0)) + 1
    return grad * (2 if int(last["count"]) % 4096 == 0 else 1) * ctx.rest[0]


WRONG: dict[str, tuple[str, Callable[[Any, torch.Tensor], Any], str]] = {
    "an op keeps what the last call saved": ("sin", of_the_last_call, "graphs_in_turn"),
    "… and threads mix it": ("sin", of_the_last_call, "graphs_at_once"),
    "a workspace is shared by all calls": ("exp", _one_call_at_a_time(), "graphs_in_turn"),
    "a node seeds the generator": ("sum", moves_generator, "random_numbers"),
    "one node of 4096 is wrong": ("mul.Tensor", loses_first, "deep"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_noticed(name: str) -> None:
    last.clear()
    op, backward, case = WRONG[name]
    tried(CLAUSE, case, "simulated")  # the CPU is the reference: it keeps its kernels
    with replaced(op, kernel(op, backward), "AutogradPrivateUse1"):
        assert tried(CLAUSE, case, "simulated").failure is not None


def test_an_error_that_a_node_swallows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.__matmul__

    def silent(x: torch.Tensor, y: torch.Tensor) -> Any:
        with contextlib.suppress(RuntimeError):
            return original(x, y)

    monkeypatch.setattr(torch.Tensor, "__matmul__", silent)
    assert tried(CLAUSE, "error_of_an_op").failure is not None


def test_hooks_that_run_twice_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.register_hook

    def twice(x: torch.Tensor, hook: Any) -> Any:
        original(x, hook)
        return original(x, hook)

    monkeypatch.setattr(torch.Tensor, "register_hook", twice)
    assert tried(CLAUSE, "hooks_in_order").failure is not None


def test_a_hook_that_runs_twice_where_a_gradient_is_there_already_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.Tensor.register_hook

    def twice(x: torch.Tensor, hook: Any) -> Any:
        def call(grad: torch.Tensor) -> Any:
            given = hook(grad)
            return given if not x.is_leaf or x.grad is None else hook(given)

        return original(x, call)

    monkeypatch.setattr(torch.Tensor, "register_hook", twice)
    assert tried(CLAUSE, "hooks_in_order").failure is None
    assert tried(CLAUSE, "hook_of_a_leaf").failure is not None


def test_hooks_that_are_never_removed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.hooks.RemovableHandle, "remove", lambda handle: None)
    for name in ("hooks_in_order", "hook_of_several", "hook_of_any"):
        assert tried(CLAUSE, name).failure is not None


def test_a_hook_after_accumulation_that_comes_before_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def before(x: torch.Tensor, hook: Any) -> Any:
        def call(grad: torch.Tensor) -> None:
            x.grad = torch.zeros_like(x)
            hook(x)

        return x.register_hook(call)

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", before)
    for name in ("hooks_in_order", "step_in_a_hook"):
        assert tried(CLAUSE, name).failure is not None


@pytest.mark.parametrize("case", ["index_0", "hooks_on_the_stream"])
def test_a_node_that_leaves_another_index_or_stream_current_is_noticed(case: str) -> None:
    def leaves(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        torch.accelerator.set_stream(torch.Stream("simulated:1"))
        torch.accelerator.set_stream(torch.Stream("simulated:0"))
        torch.accelerator.set_device_index(1)
        return grad * ctx.rest[0]

    tried(CLAUSE, case, "simulated")
    with replaced("mul.Tensor", kernel("mul.Tensor", leaves), "AutogradPrivateUse1"):
        assert tried(CLAUSE, case, "simulated").failure is not None
