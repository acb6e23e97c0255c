"""The allocator suite: cases that check that memory is counted correctly, kept while in use, reused and
released."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.allocator import (
    blocks,
    counters,
    cross_stream_free,
    drawn,
    history,
    host_statistics,
    leaks,
    leaks_beyond_ops,
    leaks_everywhere,
    limits,
    pinned_host,
    pluggable,
    pools,
    streams_of_blocks,
)

SUITE = Suite(
    "allocator",
    cases=collect_cases(
        counters.cases,
        history.cases,
        blocks.cases,
        limits.cases,
        streams_of_blocks.cases,
        pools.cases,
        pluggable.cases,
        pinned_host.cases,
        host_statistics.cases,
        drawn.cases,
        leaks.cases,
        leaks_beyond_ops.cases,
        leaks_everywhere.cases,
        cross_stream_free.cases,
    ),
)
