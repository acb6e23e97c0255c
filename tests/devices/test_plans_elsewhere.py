"""The plans of devices that this machine does not have: they are made without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.contract import load
from conformance.contract.levels import levels
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


@pytest.mark.slow
def test_every_listed_cell_is_planned_for_a_device_with_all_capabilities() -> None:
    """A level that lists a cell outside plan core can never be reached: an exclusion needs a new version of the list."""
    planned = set(make_plan(plan_spec("core"), registry.get("simulated"), load()).cells)
    for level in levels():
        assert not level.cells - planned, f"conform freeze-levels VERSION --level {level.number}"
