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
    pluggable,
    pools,
    queues,
    settings,
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
        settings.cases,
        pools.cases,
        history.cases,
        pluggable.cases,
        workers.cases,
        host.cases,
        drawn.cases,
    ),
)
