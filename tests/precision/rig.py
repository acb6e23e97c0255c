"""The simulated device as a rig for trials of the precision suite."""

from __future__ import annotations

from conformance import suites
from devices import registry
from devices.simulated.backend.fault_switches import planted
from devices.simulated.faults import FAULTS, Fault
from tests import trials
from tests.dispatch.rig import anything_watched

#: The op checks of the precision family; the autograd suite checks gradients.
CHECKS = tuple(
    check
    for suite in ("precision", "autograd")
    for check in suites.load(suite).op_checks
    if check.clause.startswith("precision.")
)

#: The faults that trip clauses of the precision family that are checked for ops.
FAULTS_OF_PRECISION: dict[str, Fault] = {
    name: fault
    for name, fault in FAULTS.items()
    if {each.clause for each in CHECKS} & set(fault.clauses)
}

_CLEAN = (("add", "float32"), ("softmax", "float32"), ("nn.functional.conv2d", "bfloat16"))

RIG = trials.Rig(
    descriptor=registry.get("simulated"),  # with its folder: its budget is there
    items=(
        *dict.fromkeys(
            (op, dtype) for f in FAULTS_OF_PRECISION.values() for op in f.ops for dtype in f.dtypes
        ),
        *_CLEAN,
    ),
    planted=planted,
    watched=anything_watched,
    places=lambda fault: frozenset({"any"}),
    samples=6,
    checks=CHECKS,
)
