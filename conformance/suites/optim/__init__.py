"""The optim suite: comparisons of foreach ops, optimiser steps, gradient clipping and short trainings with
single-tensor loops on the CPU."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.optim import clipping, foreach, integration, steps, train

SUITE = Suite(
    "optim",
    cases=gathered(foreach.cases, steps.cases, integration.cases, clipping.cases, train.cases),
)
