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
