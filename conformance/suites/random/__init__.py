"""The random suite: cases about seeds, generator states and the distributions of random numbers."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.random import (
    categories,
    distribution,
    forms,
    parameters,
    seeds,
    shapes,
    special,
)

SUITE = Suite(
    "random",
    cases=gathered(
        seeds.cases,
        distribution.cases,
        categories.cases,
        shapes.cases,
        parameters.cases,
        special.cases,
        forms.cases,
    ),
)
