"""The device suite: cases about device indices, dtypes, properties, placement of tensors, processes, and
asynchronous errors."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.device import indices, processes, properties

SUITE = Suite("device", cases=gathered(indices.cases, properties.cases, processes.cases))
