"""The optim suite: fused and foreach steps are the loop."""

from conformance.checks.cases.cases import Suite

SUITE = Suite("optim")
