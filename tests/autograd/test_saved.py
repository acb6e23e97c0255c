"""What backward needs: which wrong implementations the cases notice, and that each op saves something."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

from conformance.checks.cases.context import CaseContext
from conformance.suites.autograd import checkpoints, saved_tensors
from conformance.suites.autograd.saved_tensors import OPS, Passed, _doubled
from devices import registry
from opinfo.device import open_device
from tests.autograd.trying import failing, names, replaced, tried

CLAUSE = "autograd.saved"
_C: Any = torch._C


@pytest.mark.parametrize("name", names(CLAUSE))
def test_every_case_passes_on_cpu(name: str) -> None:
    made = tried(CLAUSE, name)
    assert made.passes and made.checks > 0, made


@pytest.mark.parametrize("name", OPS)
def test_every_op_saves_something_that_a_change_makes_stale(name: str) -> None:
    context = CaseContext(open_device(registry.get("cpu")), "a test")
    raised = []
    for which in ("middle", "result"):
        made = Passed(context, name)
        with torch.no_grad():
            _doubled(getattr(made, which).detach())
        try:
            made.gradient()
        except RuntimeError:
            raised.append(which)
    assert raised != []


def kernel(
    below: Callable[[torch.Tensor], torch.Tensor],
    save: Callable[[Any, torch.Tensor, torch.Tensor], None],
    backward: Callable[[Any, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A kernel of autograd that saves and differentiates in its own way."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            with _C._AutoDispatchBelowAutograd():
                y = below(x)
            save(ctx, x, y)
            return y

    Function.backward = staticmethod(backward)  # type: ignore[assignment]
    return lambda x: Function.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def keep(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    ctx.kept = y.detach()


def keep_input(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    ctx.kept = x.detach()


def save_data(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    ctx.save_for_backward(y.data)


def save_result(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    ctx.save_for_backward(y)


def second_time_doubled(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (y,) = ctx.saved_tensors
    ctx.times = getattr(ctx, "times", 0) + 1
    return grad * y * ctx.times


def exp_of_kept(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * ctx.kept


def sin_of_kept(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * ctx.kept.cos()


def exp_of_saved(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * ctx.saved_tensors[0]


def overwriting(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return ctx.saved_tensors[0].data.mul_(grad).clone()


def into_gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad.mul_(ctx.saved_tensors[0])


WRONG: dict[str, tuple[str, Callable[..., Any], list[str]]] = {
    "the result is kept on the node": ("exp", kernel(torch.exp, keep, exp_of_kept), ["exp", "exp_copied"]),
    "the operand is kept on the node": ("sin", kernel(torch.sin, keep_input, sin_of_kept), ["sin", "sin_copied"]),
    "what .data returns is saved": ("exp", kernel(torch.exp, save_data, exp_of_saved), ["exp"]),
    "the saved result is overwritten": ("exp", kernel(torch.exp, save_result, overwriting), ["exp_twice", "exp_freed"]),
    "a second backward is another": ("exp", kernel(torch.exp, save_result, second_time_doubled), ["exp_twice"]),
    "the cotangent is overwritten": ("exp", kernel(torch.exp, save_result, into_gradient), ["exp_twice"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_saves_wrongly_is_noticed(name: str) -> None:
    op, function, cases = WRONG[name]
    with replaced(op, function):
        assert failing(CLAUSE, cases) == cases


# Checkpoints

CHECKPOINTS = ["checkpoint", "checkpoint_mask", "checkpoint_nested", "checkpoint_in_sequence"]


def test_a_state_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    assert failing(CLAUSE, CHECKPOINTS) == CHECKPOINTS


def test_a_state_that_is_always_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.utils.checkpoint.checkpoint

    def preserving(*args: Any, **named: Any) -> Any:
        return original(*args, **{**named, "preserve_rng_state": True})

    monkeypatch.setattr(checkpoints, "checkpoint", preserving)
    assert failing(CLAUSE, ["checkpoint_mask_not_preserved"]) == ["checkpoint_mask_not_preserved"]


def test_an_autocast_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(device_type: str = "cuda") -> Any:
        off = {"enabled": False, "dtype": torch.bfloat16, "cache_enabled": True}
        return {**off}, {**off}

    monkeypatch.setattr(torch.utils.checkpoint, "_get_autocast_kwargs", forgotten)
    cases = ["checkpoint_under_autocast", "checkpoint_under_autocast_reentrant"]
    assert failing(CLAUSE, cases) == cases


# Hooks


def test_hooks_that_are_never_disabled_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._autograd, "_saved_tensors_hooks_disable", lambda *_: None)
    assert failing(CLAUSE, ["disabled_hooks"]) == ["disabled_hooks"]


#: By what is wrong: a pack and an unpack function, and what notices them in the place of save_on_cpu.
HOOKS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "strides are lost": (
        lambda x: (x.device, x.detach().cpu().contiguous()),
        lambda given: given[1].to(given[0]),
        "kept_on_cpu",
    ),
    "the index is lost": (
        lambda x: x.detach().cpu(),
        lambda given: given.to("simulated:0"),
        "kept_on_cpu_of_index_1",
    ),
    "the offset is lost": (
        lambda x: (x.device, x.detach().as_strided(x.shape, x.stride(), 0).cpu()),
        lambda given: given[1].to(given[0]),
        "kept_on_cpu",
    ),
    "the conjugate bit is lost": (
        lambda x: (
            x.device,
            torch.view_as_real(x.detach().conj()).cpu() if x.is_conj() else x.cpu(),
        ),
        lambda given: given[1].to(given[0]),
        "kept_on_cpu",
    ),
    "float32 is kept in bfloat16": (
        lambda x: (x.device, x.dtype, x.detach().bfloat16() if x.dtype == torch.float32 else x),
        lambda given: given[2].to(given[0], given[1]),
        "kept_on_cpu",
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_that_bring_back_something_else_are_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, unpack, case = HOOKS[name]
    wrong = partial(torch.autograd.graph.saved_tensors_hooks, pack, unpack)
    monkeypatch.setitem(saved_tensors.HOOKS, "on_cpu", wrong)
    assert tried(CLAUSE, case, "simulated").failure is not None


def test_a_checkpoint_that_restores_the_first_generator_only_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.utils.checkpoint.set_device_states

    def first_only(devices: list[int], states: list[torch.Tensor], **named: Any) -> None:
        original(devices[:1], states[:1], **named)

    monkeypatch.setattr(torch.utils.checkpoint, "set_device_states", first_only)
    for name in ("checkpoint_of_two_indices", "checkpoint_of_two_indices_reentrant"):
        assert tried(CLAUSE, name, "simulated").failure is not None


def test_a_graph_that_is_never_freed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.backward
    kept: list[torch.Tensor] = []

    def backward(x: torch.Tensor, *args: Any, **named: Any) -> None:
        original(x, *args, **{**named, "retain_graph": True})
        kept.append(x)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    for name in ("memory", "exp_twice"):
        assert tried(CLAUSE, name, "simulated").failure is not None


def test_a_checkpoint_that_keeps_what_it_computes_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, kept = saved_tensors.checkpoint, []

    def keeping(function: Any, *given: Any, **named: Any) -> Any:
        return original(lambda *inputs: kept.append(function(*inputs)) or kept[-1], *given, **named)

    monkeypatch.setattr(saved_tensors, "checkpoint", keeping)
    assert tried(CLAUSE, "memory_of_a_checkpoint", "simulated").failure is not None


def test_a_checkpoint_that_keeps_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_tensors, "checkpoint", lambda function, *given, **_: function(*given))
    assert tried(CLAUSE, "memory_of_a_checkpoint", "simulated").failure is not None
