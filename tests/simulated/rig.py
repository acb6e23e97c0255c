"""The simulated device as a rig for trials (tests/trials.py), and the table of its layout faults.

``python -m tests.simulated.rig [FAULT GLOB...]`` prints which clause catches which fault.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance import contract
from devices.simulated.backend import library
from devices.simulated.backend.fault_switches import planted
from devices.simulated.descriptor import DESCRIPTOR
from devices.simulated.faults import FAULTS, UNPLANTED
from tests import trials
from tests.table import report
from tests.trials import Item

#: Ops whose cells all pass on the clean device, with what the faults are planted in among them.
ITEMS: tuple[Item, ...] = (
    *(
        (op, "float32")
        for op in (
            "neg", "exp", "add", "sub", "mul", "atan2", "copysign", "maximum", "fmax", "where",
            "clone", "contiguous", "empty_like", "cat", "index_select", "unfold",
            "select", "transpose", "as_strided", "sum", "mm", "bmm", "addmm",
            "nn.functional.conv2d", "nn.functional.avg_pool2d",
        )
    ),
    ("floor_divide", "int64"), ("exp", "int64"), ("add", "int64"), ("mul", "int64"), ("transpose", "complex64"),
)  # fmt: skip

#: The faults of ops that trip clauses of the layout suite.
LAYOUT = {
    name: fault
    for name, fault in FAULTS.items()
    if fault.ops and any(clause.startswith("layout.") for clause in fault.clauses)
}


@contextmanager
def watched() -> Iterator[set[str]]:
    """Collect the names of the device's ops that run."""
    library.seen_since()
    found: set[str] = set()
    yield found
    found.update(library.seen_since())


RIG = trials.Rig(
    descriptor=DESCRIPTOR,
    items=ITEMS,
    planted=planted,
    watched=watched,
    places=lambda fault: frozenset(library.fault_places(fault.name)),
    samples=2,
    # Only the fifth sample of add has two operands of one shape, which broadcasting of self needs.
    more_samples={"add": 5, "sum": 4, "addmm": 4},
)


def without_a_fault() -> list[str]:
    """One line a clause that no fault trips: the clause, and why."""
    planted_in = {clause for fault in FAULTS.values() for clause in fault.clauses}
    lines = []
    for clause in contract.load().clauses.values():
        lacking = sorted(set(clause.requires) - DESCRIPTOR.capabilities)
        if clause.id not in planted_in:
            why = UNPLANTED.get(clause.id) or f"the device does not declare {', '.join(lacking)}"
            lines.append(f"{clause.id}  none: {why}" if why else clause.id)
    return lines


def probed_only() -> list[str]:
    """One line a fault and clause whose suite is not run here: a direct probe alone shows it."""
    return [
        f"{fault.name}  {', '.join(fault.clauses) or 'whatever cell it strikes'}  {fault.statement}"
        for fault in FAULTS.values()
        if fault.name not in LAYOUT
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        status = report(trials.Bench(RIG, Path(cache)), LAYOUT, sys.argv[1:])
    if not sys.argv[1:]:
        print("", "Shown by a direct probe alone:", *probed_only(), sep="\n")
        print("", "Clauses that no fault trips:", *without_a_fault(), sep="\n")
    sys.exit(status)
