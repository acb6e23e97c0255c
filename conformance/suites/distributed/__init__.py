"""The distributed suite: cases about process groups, their collectives, and the parts of torch that use them. Each case
runs in several processes, the ranks of a group."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.distributed import (
    backend,
    collectives,
    ddp,
    order,
    reductions,
    sharded,
    sharing,
    sizes,
    tensors,
)

SUITE = Suite(
    "distributed",
    cases=collect_cases(
        backend.cases,
        collectives.cases,
        reductions.cases,
        sizes.cases,
        order.cases,
        ddp.cases,
        tensors.cases,
        sharded.cases,
        sharing.cases,
    ),
)
