"""Streams and events: the order of work."""

from __future__ import annotations

from conformance.behaviour.cases import Suite, gathered
from conformance.streams import (
    current,
    drawn,
    events,
    gradients,
    identity,
    indices,
    order,
    waits,
    workers,
)

SUITE = Suite(
    "streams",
    cases=gathered(
        current.cases,
        identity.cases,
        order.cases,
        waits.cases,
        indices.cases,
        workers.cases,
        gradients.cases,
        events.cases,
        drawn.cases,
    ),
)
