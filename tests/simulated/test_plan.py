"""What the simulated device does not have is left out by name."""

from __future__ import annotations

from conformance.plan.applicable import ApplicableClauses
from conformance.plan.planner import dtypes_of
from devices import registry
from opinfo.database import DATABASE
from opinfo.plan import plan_spec


def test_an_op_that_the_descriptor_narrows_is_planned_or_left_out() -> None:
    descriptor, spec = registry.get("simulated"), plan_spec("quick")
    ops = {
        op.id: op
        for op in ApplicableClauses(DATABASE, descriptor.torch_type, 1, lambda traits: (), None).ops
    }
    assert descriptor.dtypes_by_op.keys() <= ops.keys()
    for op in descriptor.dtypes_by_op:
        assert dtypes_of(ops[op], spec, descriptor) == ([], ["float32"])
    assert dtypes_of(ops["add"], spec, descriptor)[1] == []
