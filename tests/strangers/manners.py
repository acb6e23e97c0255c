"""``python -m tests.strangers.manners CACHE``: what the suites say of the device with opaque tensors, manner by manner.

One process for all of them: prints, for each manner, a line of JSON with the cells and layouts that do not pass.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from conformance import contract, suites
from conformance.checks.cases.cases import not_here
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.plan.planner import undeclared_clauses
from conformance.suites.layout import SUITE
from devices.cell import CellKey, Outcome
from devices.descriptor import Descriptor
from opinfo.device import open_device
from tests.strangers.bench import MODULES
from tests.trials import Rig, Subject

DESCRIPTOR = Descriptor(
    name="opaque",
    torch_type="opaque",
    title="A device of which only dtypes are declared",
    module="strange_opaque",
    capabilities=frozenset(),
    dtypes=frozenset({"float32", "uint8", "int64", "bool"}),
)
CASES = ("transfer.strides::", "transfer.view_destination::", "random.distribution::view_")
OPS = ("neg", "clone", "transpose")


def outcomes(cache: Path) -> Iterator[tuple[str, list[str]]]:
    """By manner, what does not pass of what is judged."""
    sys.path.insert(0, str(MODULES))
    device = open_device(DESCRIPTOR)
    import strange_opaque

    known = contract.load()
    undeclared = undeclared_clauses(DESCRIPTOR, known)
    checks = tuple(check for check in SUITE.op_checks if check.clause not in undeclared)
    rig = Rig(
        descriptor=DESCRIPTOR,
        items=(),
        planted=lambda _: nullcontext(),
        watched=lambda: nullcontext(set()),
        places=lambda _: set(),
        checks=checks,
    )
    subjects = [Subject((op, "float32"), rig, device, cache) for op in OPS]
    cases = [
        case
        for case in suites.planned_cases(known, more=False)
        if case.id.startswith(CASES) and not not_here(case, DESCRIPTOR.capabilities, 1)
    ]
    for manner in ("", *strange_opaque.MANNERS):
        strange_opaque.manner = manner
        records = [r for subject in subjects for r in subject.run().cells.values()]
        for case in cases:
            records.append(CellRecord(CellKey(case.clause, case.name, "")))
            run_case(case, records[-1], device, DeviceLocator(device="opaque"))
        yield manner, [told for record in records for told in _told(record)]


def _told(record: CellRecord) -> Iterator[str]:
    """A cell that does not pass, as ``clause::op[layout]: outcome`` for each failing layout."""
    if (outcome := record.outcome()) is not Outcome.PASS:
        for layout in sorted(record.failing) or [""]:
            yield f"{record.key.clause}::{record.key.unit}[{layout}]: {outcome.value}"


if __name__ == "__main__":
    for name, cells in outcomes(Path(sys.argv[1])):
        print(json.dumps([name, cells]), flush=True)
