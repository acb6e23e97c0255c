"""The transfer suite: cases that check that copies between host and device keep all data."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.transfer import layouts, moments, storages, values

SUITE = Suite(
    "transfer", cases=gathered(layouts.cases, moments.cases, values.cases, storages.cases)
)
