"""Faults beyond single ops that no case noticed once: the case that notices each now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from conformance.suites import case_of
from tests.mutation.items import device, is_refused
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import SIMULATED, on_simulated, planted
from tests.planting.tensors import as_dense


def _second_number_kept() -> Effect:
    """Normal numbers are made in pairs. The second number of a pair is kept for the next call, and the state that a generator
    returns does not have it. A new seed forgets it."""
    kept: dict[tuple[Any, int], float] = {}

    def effect(call: KernelCall) -> Any:
        generator, target = call.values["generator"], call.first
        if generator is None or not target.is_contiguous() or not target.is_floating_point():
            return NOT_MET
        seed = generator.initial_seed()
        fresh = torch.Generator(generator.device).manual_seed(seed).get_state()
        key = generator.device, seed
        if torch.equal(generator.get_state(), fresh):
            kept.pop(key, None)
        count, result = target.numel(), call.honest()
        if count and key in kept:
            result.view(-1)[0] = kept.pop(key)
            count -= 1
        if count % 2:
            kept[key] = 0.5 * float(result.view(-1)[-1])
        return result

    return effect


def _read_in_a_row(call: KernelCall) -> Any:
    """A copy to the host that need not be waited for reads its source in the order of the addresses."""
    source, target = call.args[:2]
    to_host = on_simulated(source) and not on_simulated(target)
    if not to_host or not call.values["non_blocking"] or source.is_contiguous():
        return NOT_MET
    return call.honest(self=as_dense(source))


def _first_rate_kept() -> Effect:
    """A fused step keeps the learning rate of the first step of a list of parameters."""
    kept: dict[int, torch.Tensor] = {}

    def effect(call: KernelCall) -> Any:
        place, rate = call.first[0].data_ptr(), call.values["lr"]
        if float(call.values["state_steps"][0]) <= 1:
            kept[place] = rate.clone()
        return call.honest(lr=kept.get(place, rate))

    return effect


def _float32_of_mixed_operands(call: KernelCall) -> Any:
    """Batch norm outside of training returns float32 for an input of lower precision and float32 weights."""
    values = call.values
    weight = values["weight"]
    mixed = weight is not None and weight.dtype != call.first.dtype
    if values["training"] or not mixed:
        return NOT_MET
    result, *rest = call.honest()
    return (result.float(), *rest)


@contextmanager
def _default_stream_after_an_exception() -> Iterator[None]:
    """An exception that leaves a block of a stream makes the default stream current."""
    module: Any = getattr(torch, SIMULATED)
    left = torch.Stream.__exit__

    def leave(self: Any, *error: Any) -> Any:
        result = left(self, *error)
        if error[0] is not None:
            torch.accelerator.set_stream(module.default_stream(self.device))
        return result

    with mock.patch.object(module.Stream, "__exit__", leave, create=True):
        yield


def _in_half(given: Any) -> Any:
    return given.half() if isinstance(given, torch.Tensor) else given


@contextmanager
def _cast_in_disabled_regions() -> Iterator[None]:
    """linear casts its operands in a disabled region inside of an enabled one."""
    region: Any = torch.amp.autocast_mode.autocast
    entered, left, enabled = region.__enter__, region.__exit__, list[bool]()

    def enter(self: Any) -> Any:
        enabled.append(self._enabled and self.device == SIMULATED)
        return entered(self)

    def leave(self: Any, *error: Any) -> Any:
        enabled.pop()
        return left(self, *error)

    def effect(call: KernelCall) -> Any:
        if not any(enabled) or torch.is_autocast_enabled(SIMULATED):
            return NOT_MET
        return call.function(*map(_in_half, call.args))

    with (
        mock.patch.object(region, "__enter__", enter),
        mock.patch.object(region, "__exit__", leave),
        planted(("linear",), effect, "AutogradPrivateUse1"),
    ):
        yield


#: The clause and the name of a case, and the fault that it notices.
SURVIVED: list[tuple[str, str, AbstractContextManager[Any]]] = [
    (
        "random.reproducible",
        "state_after_randn",
        planted(("normal_",), _second_number_kept()),
    ),
    (
        "transfer.strides",
        "device_to_host_non_blocking",
        planted(("_copy_from",), _read_in_a_row),
    ),
    (
        "optim.steps",
        "AdamW_fused_groups_of_tensor_rates",
        planted(("_fused_adamw_.tensor_lr",), _first_rate_kept()),
    ),
    (
        "autocast.lists",
        "batch_norm_evaluation",
        planted(("native_batch_norm",), _float32_of_mixed_operands),
    ),
    ("streams.current", "by_the_module", _default_stream_after_an_exception()),
    ("autocast.lists", "linear", _cast_in_disabled_regions()),
]


@pytest.mark.parametrize(("clause", "name", "fault"), SURVIVED, ids=[each[1] for each in SURVIVED])
def test_a_fault_that_survived_is_noticed(
    clause: str, name: str, fault: AbstractContextManager[Any]
) -> None:
    case, _ = case_of(clause, name), device()
    assert not is_refused(case)
    with fault:
        assert is_refused(case)
    assert not is_refused(case)
