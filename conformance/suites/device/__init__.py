"""The device itself: indices, dtypes, properties, placement, processes, late errors."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.device import indices, processes, properties

SUITE = Suite("device", cases=gathered(indices.cases, properties.cases, processes.cases))
