"""Random numbers: seeds, states, distributions."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.random import distribution, forms, parameters, seeds

SUITE = Suite(
    "random", cases=gathered(seeds.cases, distribution.cases, parameters.cases, forms.cases)
)
