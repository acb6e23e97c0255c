"""The plans of devices that this machine does not have: they are made without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.contract import load
from conformance.plan.planner import make_plan
from devices import registry
from opinfo.plan import plan_spec


@pytest.mark.parametrize("name", [pytest.param("cuda", marks=pytest.mark.slow), "npu"])
def test_a_plan_is_made_without_the_device(name: str) -> None:
    """The database lists ops for CUDA that no CPU implements."""
    found = registry.find(name, None)
    elsewhere = replace(found, facts=lambda: {"device_name": "one"}, device_count=lambda: 1)
    plan = make_plan(plan_spec("quick"), elsewhere, load())
    assert plan.device == name
    assert len(plan.cells) > 10_000
    ops = {cell.unit for cell in plan.cells}
    assert ("histogram" in ops) == (name != "cuda")  # the database says that CUDA has none
