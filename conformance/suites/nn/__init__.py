"""The nn suite: modules compute and train as on the CPU."""

from conformance.checks.cases.cases import Suite

SUITE = Suite("nn")
