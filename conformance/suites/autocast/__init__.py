"""The autocast suite: ops run in their listed dtype, and gradients are scaled."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.autocast import listed, regions, scaler

SUITE = Suite("autocast", cases=gathered(listed.cases, regions.cases, scaler.cases))
