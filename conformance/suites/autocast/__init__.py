"""The autocast suite checks the dtype in which each op runs under autocast, autocast regions, and the GradScaler."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.autocast import listed, regions, scaler

SUITE = Suite("autocast", cases=gathered(listed.cases, regions.cases, scaler.cases))
