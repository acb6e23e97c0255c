"""The transfer suite: cases that check that copies between host and device keep all data."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.transfer import async_copies, layouts, storage_and_serialization, values

SUITE = Suite(
    "transfer",
    cases=gathered(
        layouts.cases, async_copies.cases, values.cases, storage_and_serialization.cases
    ),
)
