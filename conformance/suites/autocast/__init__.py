"""The autocast suite: checks of the dtype in which each op runs under autocast, of autocast regions, and of the
GradScaler."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.autocast import listed, regions, scaler

SUITE = Suite("autocast", cases=collect_cases(listed.cases, regions.cases, scaler.cases))
