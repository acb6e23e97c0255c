"""The simulated device as a rig for trials of the dispatch suite's checks of ops.

``python -m tests.dispatch.rig [FAULT GLOB...]`` prints which clause catches which fault.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Hashable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from conformance import suites
from devices.simulated.descriptor import DESCRIPTOR
from devices.simulated.faults import FAULTS, Fault, planted
from tests import trials
from tests.table import report

_OPS = ("add", "mul", "atan2", "dot", "gather", "mm", "where", "erf", "index_select", "sum")

#: Each fault of ops, with the ops that it is planted in and the cells of other clauses that it changes.
_PLANTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dispatch.fallback_unlisted": (("erf",), ()),
    "dispatch.mixed_devices_accepted": (
        ("add", "mul", "atan2", "dot", "gather", "mm", "where", "index_select"),
        # Some error inputs are operands on two devices.
        ("dispatch.error_inputs::dot", "dispatch.error_inputs::where"),
    ),
    "dispatch.cpu_scalar_offset_ignored": (("add", "mul", "atan2"), ()),
    "dispatch.bad_shape_accepted": (("dot",), ()),
    "dispatch.wrong_error_type": (("gather",), ()),
    "dispatch.unsupported_wrong_error": (("mm",), ()),
    "dispatch.unsupported_returns_garbage": (("mm",), ()),
}

OF_OPS: dict[str, Fault] = {
    name: replace(FAULTS[name], ops=ops, radius=radius) for name, (ops, radius) in _PLANTED.items()
}


@contextmanager
def _watched() -> Iterator[Set[Hashable]]:
    yield {"any"}


RIG = trials.Rig(
    descriptor=DESCRIPTOR,
    items=tuple((op, "float32") for op in _OPS),
    planted=planted,
    watched=_watched,
    places=lambda fault: frozenset({"any"}),  # whatever a fault breaks, every item is run again
    samples=4,
    checks=suites.load("dispatch").op_checks,
)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        sys.exit(report(trials.Bench(RIG, Path(cache)), OF_OPS, sys.argv[1:]))
