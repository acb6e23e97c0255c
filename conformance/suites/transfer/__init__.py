"""The transfer suite: cases that check that copies between host and device keep all data."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.transfer import async_copies, layouts, storage_and_serialization, values

SUITE = Suite(
    "transfer",
    cases=collect_cases(
        layouts.cases, async_copies.cases, values.cases, storage_and_serialization.cases
    ),
)
