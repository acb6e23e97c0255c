"""The autocast suite: checks of the dtype in which each op runs under autocast, of autocast regions, of training under
autocast, and of the GradScaler."""

from conformance.checks.cases.cases import Suite, collect_cases
from conformance.suites.autocast import listed, regions, scaler, training

SUITE = Suite(
    "autocast", cases=collect_cases(listed.cases, regions.cases, training.cases, scaler.cases)
)
