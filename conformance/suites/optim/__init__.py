"""The optim suite: fused and foreach steps are the loop."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.optim import clipping, foreach, steps, train, use

SUITE = Suite(
    "optim", cases=gathered(foreach.cases, steps.cases, use.cases, clipping.cases, train.cases)
)
