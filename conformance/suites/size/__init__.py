"""The size suite: cases about tensors that are larger than some number, counter or grid can hold."""

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
