"""Graphs: work that is captured, and replayed."""

from __future__ import annotations

from conformance.behaviour.cases import OpCheck, Suite, gathered
from conformance.graphs import (
    capture,
    drawn,
    errors,
    every_op,
    forks,
    life,
    pools,
    random_numbers,
    replays,
)

SUITE = Suite(
    "graphs",
    cases=gathered(
        capture.cases,
        replays.cases,
        pools.cases,
        errors.cases,
        forks.cases,
        random_numbers.cases,
        life.cases,
        drawn.cases,
    ),
    op_checks=(OpCheck(every_op.CLAUSE, every_op.applies, every_op.check, every_op.untried),),
)
