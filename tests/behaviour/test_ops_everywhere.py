"""Ops that are wrong on another index, on another stream or in another thread are noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.checks.behaviour.ops_of_families import FAMILIES
from tests.autograd.trying import tried
from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.places import replaced

MAIN = threading.main_thread()


def _in_another_thread(call: KernelCall) -> bool:
    return threading.current_thread() is not MAIN


def _on_index_1(call: KernelCall) -> bool:
    return bool(call.first.device.index == 1)


def _on_a_side_stream(call: KernelCall) -> bool:
    here = call.first.device
    default = torch.get_device_module(here.type).default_stream(here)
    return bool(torch.accelerator.current_stream(here) != default)


def _wrong_where(holds: Callable[[KernelCall], bool]) -> Callable[[KernelCall], Any]:
    def effect(call: KernelCall) -> Any:
        return call.honest() * 1.5 if holds(call) else NOT_MET

    return effect


def test_an_op_that_is_wrong_in_another_thread_is_noticed() -> None:
    case = "device.placement", "products_in_threads"
    assert tried(*case).failure is None
    with replaced(torch, "baddbmm", _wrong_where(_in_another_thread)):
        failure = tried(*case).failure
    assert failure is not None
    assert "in one of two new threads" in str(failure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("holds", "clause", "name", "attribute"),
    [
        (_on_index_1, "device.placement", "products_on_each_index", "baddbmm"),
        (_on_a_side_stream, "streams.in_order", "products_on_a_stream", "baddbmm"),
        (_on_index_1, "device.placement", "elementwise_on_each_index", "where"),
        (_on_a_side_stream, "streams.in_order", "copies_on_a_stream", "cat"),
    ],
)
def test_an_op_that_is_wrong_elsewhere_is_noticed(
    holds: Callable[[KernelCall], bool], clause: str, name: str, attribute: str
) -> None:
    assert tried(clause, name, "simulated").failure is None
    with replaced(torch, attribute, _wrong_where(holds)):
        assert tried(clause, name, "simulated").failure is not None


@pytest.mark.slow
def test_an_op_that_runs_on_the_default_stream_is_noticed() -> None:
    """It reads its operands before they are overwritten."""

    def elsewhere(call: KernelCall) -> Any:
        here = call.args[0][0].device
        with torch.get_device_module(here.type).default_stream(here):
            return call.honest()

    with replaced(torch, "cat", elsewhere):
        assert tried("streams.in_order", "copies_on_a_stream", "simulated").failure is not None


def test_each_op_of_a_family_shows_its_operands() -> None:
    """Other operands give another result, so that one that reads the old operands fails."""
    for operands, ops in FAMILIES.values():
        one, other = (operands(torch.Generator().manual_seed(seed)) for seed in (0, 1))
        for name, op in ops.items():
            assert not torch.equal(op(*one), op(*other)), name


def _unless(available: Callable[[], bool], op: Callable[..., Any]) -> Callable[..., Any]:
    """An op of a device that implements it only in some places. The operands of the reference are float64."""

    def partial(*operands: torch.Tensor) -> Any:
        if operands[0].dtype != torch.float64 and not available():
            raise NotImplementedError("no such kernel")
        return op(*operands)

    return partial


def _copies(monkeypatch: pytest.MonkeyPatch, available: Callable[[], bool], *names: str) -> None:
    operands, ops = FAMILIES["copies"]
    fewer = {n: _unless(available, op) if n in names else op for n, op in ops.items()}
    monkeypatch.setitem(FAMILIES, "copies", (operands, fewer))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(("device.placement", "copies_in_threads", "cpu"), id="threads"),
        pytest.param(
            ("device.placement", "copies_on_each_index", "simulated"),
            id="index",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("streams.in_order", "copies_on_a_stream", "simulated"),
            id="stream",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_device_without_the_ops_of_a_family_passes_nothing(
    case: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _copies(monkeypatch, lambda: False, *FAMILIES["copies"][1])
    found = tried(*case)
    assert found.refused is not None
    assert "implements none of these ops: cat" in found.refused
    assert not found.passes


def test_an_op_that_one_thread_alone_implements_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _copies(monkeypatch, lambda: threading.current_thread() is MAIN, "cat")
    failure = tried("device.placement", "copies_in_threads").failure
    assert "other ops are implemented in one of two new threads" in str(failure)
