"""The profiler suite: cases that compare the events of a profile with what the program did."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.profiler import executions, host_events, memory_events, sessions, traces

SUITE = Suite(
    "profiler",
    cases=collect_cases(
        host_events.cases,
        executions.cases,
        sessions.cases,
        memory_events.cases,
        traces.cases,
    ),
)
