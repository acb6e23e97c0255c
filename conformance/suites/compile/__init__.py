"""The compile suite: checks of compiled calls and of what the compiler assumes about the device."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.compile import (
    compiled_autograd,
    control_programs,
    device_interface,
    device_programs,
    essential_programs,
    exported_programs,
    nested_modules,
    network_programs,
    number_programs,
    random_numbers,
    stride_tags,
    view_programs,
)

SUITE = Suite(
    "compile",
    cases=collect_cases(
        stride_tags.cases,
        essential_programs.cases,
        view_programs.cases,
        network_programs.cases,
        number_programs.cases,
        control_programs.cases,
        random_numbers.cases,
        device_programs.cases,
        device_interface.cases,
        compiled_autograd.cases,
        nested_modules.cases,
        exported_programs.cases,
    ),
    op_checks=(),
)
