"""The size suite: cases about tensors so large that an index, a counter or a launch grid may overflow."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.size import (
    elements,
    indexing,
    products,
    random_fills,
    reductions,
    slices,
)

SUITE = Suite(
    "size",
    cases=collect_cases(
        slices.cases,
        elements.cases,
        indexing.cases,
        reductions.cases,
        products.cases,
        random_fills.cases,
    ),
)
