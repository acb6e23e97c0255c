"""The autocast suite: checks of the dtype in which each op runs under autocast, of autocast regions, and of the
GradScaler."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.autocast import listed, regions, scaler

SUITE = Suite("autocast", cases=gathered(listed.cases, regions.cases, scaler.cases))
