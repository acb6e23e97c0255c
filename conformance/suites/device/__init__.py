"""The device suite: cases about device indices, dtypes, properties, placement of tensors, processes, and
asynchronous errors."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.device import indices, ops_everywhere, processes, properties

SUITE = Suite(
    "device",
    cases=collect_cases(indices.cases, ops_everywhere.cases, properties.cases, processes.cases),
)
