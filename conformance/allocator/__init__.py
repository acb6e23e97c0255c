"""Memory: counted, reused, returned."""

from __future__ import annotations

from conformance.allocator import (
    accounting,
    blocks,
    counters,
    drawn,
    history,
    host,
    limits,
    pools,
    queues,
    workers,
)
from conformance.behaviour.cases import Suite, gathered

SUITE = Suite(
    "allocator",
    cases=gathered(
        accounting.cases,
        counters.cases,
        blocks.cases,
        limits.cases,
        queues.cases,
        pools.cases,
        history.cases,
        workers.cases,
        host.cases,
        drawn.cases,
    ),
)
