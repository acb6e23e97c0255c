"""The compile suite: checks of compiled calls and of what the compiler assumes about the device."""

from conformance.checks.cases.cases import Suite, collect_cases

SUITE = Suite(
    "compile",
    cases=collect_cases(),
    op_checks=(),
)
