"""The autograd suite: gradients are right, and stale ones are refused."""

from conformance.checks.cases.cases import Suite

SUITE = Suite("autograd")
