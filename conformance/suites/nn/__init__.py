"""The nn suite: modules compute and train as on the CPU."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.nn import modules

SUITE = Suite("nn", gathered(modules.cases))
