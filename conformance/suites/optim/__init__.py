"""The optim suite: comparisons of foreach ops, optimiser steps, gradient clipping and short trainings with
single-tensor loops on the CPU."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.optim import clipping, foreach, integration, steps, train

SUITE = Suite(
    "optim",
    cases=collect_cases(foreach.cases, steps.cases, integration.cases, clipping.cases, train.cases),
)
