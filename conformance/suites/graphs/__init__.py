"""The graphs suite: cases about capturing work in graphs and replaying the graphs."""

from conformance.checks.cases.cases import OpCheck, Suite, collect_cases
from conformance.suites.graphs import (
    callables,
    capture,
    every_op,
    fork_join,
    graph_programs,
    lifecycle,
    pools,
    random_numbers,
    replays,
)

SUITE = Suite(
    "graphs",
    cases=collect_cases(
        capture.cases,
        lifecycle.cases,
        callables.cases,
        replays.cases,
        pools.cases,
        fork_join.cases,
        random_numbers.cases,
        graph_programs.cases,
    ),
    op_checks=(OpCheck(every_op.CLAUSE, every_op.applies, (every_op.check,), every_op.untried),),
)
