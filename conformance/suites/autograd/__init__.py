"""The autograd suite: checks of gradients, saved tensors, version counters, the threads of backward, and custom
Functions."""

from conformance.checks.cases.cases import OpCheck, Suite, gathered
from conformance.suites.autograd import (
    again,
    checkpoints,
    first,
    functions,
    saved,
    threads,
    transforms,
    versions,
)

SUITE = Suite(
    "autograd",
    cases=gathered(
        saved.cases,
        checkpoints.cases,
        versions.cases,
        threads.cases,
        functions.cases,
        transforms.cases,
    ),
    op_checks=(
        OpCheck(again.GRAD, first.applies, (again.grad,), grad=True),
        OpCheck(first.FIRST, first.applies, (first.first,), grad=True),
        OpCheck(again.SECOND, again.has_second, (again.second,), grad=True),
        OpCheck(again.FORWARD, again.has_forward, (again.forward,)),
    ),
)
