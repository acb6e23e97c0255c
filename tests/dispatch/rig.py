"""The simulated device as a rig for trials of the dispatch suite's checks of ops.

``python -m tests.dispatch.rig [FAULT GLOB...]`` prints which clause catches which fault.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Hashable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from conformance import suites
from devices.simulated.backend.fault_switches import planted
from devices.simulated.descriptor import DESCRIPTOR
from devices.simulated.faults import FAULTS, Fault
from tests import trials
from tests.table import report

_OPS = (
    *("add", "mul", "atan2", "dot", "gather", "mm", "where", "erf", "index_select", "sum"),
    *("index_fill", "scatter", "nn.functional.embedding"),
)
_OF_INTEGERS = ("nn.functional.one_hot", "gcd", "lcm")

#: The faults of ops that trip clauses of the dispatch suite.
OF_OPS: dict[str, Fault] = {
    name: fault
    for name, fault in FAULTS.items()
    if fault.ops and any(clause.startswith("dispatch.") for clause in fault.clauses)
}


@contextmanager
def anything_watched() -> Iterator[Set[Hashable]]:
    yield {"any"}


RIG = trials.Rig(
    descriptor=DESCRIPTOR,
    items=(*((op, "float32") for op in _OPS), *((op, "int64") for op in _OF_INTEGERS)),
    planted=planted,
    watched=anything_watched,
    places=lambda fault: frozenset({"any"}),  # whatever a fault breaks, every item is run again
    samples=8,
    checks=suites.load("dispatch").op_checks,
)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        sys.exit(report(trials.Bench(RIG, Path(cache)), OF_OPS, sys.argv[1:]))
