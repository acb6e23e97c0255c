"""The autocast suite: ops run in their listed dtype, and gradients are scaled."""

from conformance.checks.cases.cases import Suite

SUITE = Suite("autocast")
