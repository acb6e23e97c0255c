"""Where ops run, and what they refuse: fallbacks, mixed devices, errors, what is not supported."""

from __future__ import annotations

from conformance.behaviour.cases import OpCheck, Suite, gathered
from conformance.dispatch import assertion, cross_device, errors, fallback, unsupported

SUITE = Suite(
    "dispatch",
    cases=gathered(assertion.cases),
    op_checks=(
        OpCheck(fallback.CLAUSE, fallback.applies, fallback.check, fallback.untried),
        OpCheck(
            cross_device.CLAUSE, cross_device.applies, cross_device.check, cross_device.untried
        ),
        OpCheck(errors.CLAUSE, errors.applies, errors.check),
        OpCheck(unsupported.CLAUSE, unsupported.applies, unsupported.check),
    ),
)
