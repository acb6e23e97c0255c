"""The nn suite: modules compute and train as on the CPU."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.nn import attention, modules, recurrent

SUITE = Suite("nn", gathered(modules.cases, recurrent.cases, attention.cases))
