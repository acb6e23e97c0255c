"""The cases of the size suite on the CPU: each computes all sizes, within the memory that it estimates."""

from __future__ import annotations

import warnings

import pytest

from conformance import suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.execution import here
from conformance.checks.cases.memory import limited
from conformance.checks.cases.processes import DeviceLocator
from devices import registry
from opinfo.device import open_device

CASES = suites.load("size").cases


def not_computed(case: BehaviourCase) -> str:
    """What a case says if it fails, if a large call raises, or if memory runs out; empty if all is right."""
    device, where = open_device(registry.get("cpu")), DeviceLocator(device="cpu")
    with warnings.catch_warnings(), limited(case.memory):
        warnings.simplefilter("ignore")
        made = here(case.check, case.arguments, device, case.id, where, default=case.kind)
    failed = made.failure.message if made.failure is not None else ""
    said = [failed, made.refused or "", made.undeclared, made.not_shown, *made.notes]
    return f"{case.cell.name}: {'; '.join(filter(None, said))}" if any(said) else ""


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param([case for case in CASES if not case.more], id="quick"),
        pytest.param(
            [case for case in CASES if case.more and not case.whole],
            id="core",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_cpu_computes_every_size(taken: list[BehaviourCase]) -> None:
    assert taken and [text for case in taken if (text := not_computed(case))] == []
