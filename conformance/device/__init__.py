"""The device itself: indices, dtypes, properties, placement, processes, late errors."""

from __future__ import annotations

from conformance.behaviour.cases import Suite, gathered
from conformance.device import capability, count, late, placement, processes, properties

SUITE = Suite(
    "device",
    cases=gathered(
        count.cases,
        capability.cases,
        properties.cases,
        placement.cases,
        processes.cases,
        late.cases,
    ),
)
