"""The streams suite: cases about streams, events, and the order in which their work runs."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.streams import (
    backward,
    drawn,
    events,
    identity,
    ops_on_streams,
    ordering,
    threads,
)

SUITE = Suite(
    "streams",
    cases=collect_cases(
        identity.cases,
        ordering.cases,
        threads.cases,
        backward.cases,
        ops_on_streams.cases,
        events.cases,
        drawn.cases,
    ),
)
