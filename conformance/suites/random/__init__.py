"""The random suite: cases about seeds, generator states and the distributions of random numbers."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.random import (
    categories,
    distribution,
    dtypes_and_layouts,
    per_element,
    seeds,
    shapes,
)

SUITE = Suite(
    "random",
    cases=collect_cases(
        seeds.cases,
        distribution.cases,
        categories.cases,
        shapes.cases,
        per_element.cases,
        dtypes_and_layouts.cases,
    ),
)
