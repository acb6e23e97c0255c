"""The nn suite: comparisons of the results and gradients of modules, recurrent layers and attention with the CPU's."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.nn import attention, half_precision, modules, options, recurrent

SUITE = Suite(
    "nn",
    collect_cases(
        modules.cases, recurrent.cases, attention.cases, options.cases, half_precision.cases
    ),
)
