"""Where ops run, and what they refuse: fallbacks, mixed devices, errors, unsupported ops."""

from conformance.checks.cases.cases import OpCheck, Suite
from conformance.suites.dispatch import assertion, fallback, refusals

SUITE = Suite(
    "dispatch",
    cases=tuple(assertion.cases),
    op_checks=(
        OpCheck(fallback.CLAUSE, fallback.applies, (fallback.check,), fallback.untried),
        OpCheck(
            refusals.CROSS_DEVICE,
            refusals.mixes,
            (refusals.cross_device,),
            refusals.unmixed,
            axes=False,
        ),
        OpCheck(
            refusals.ERROR_INPUTS,
            refusals.has_error_inputs,
            (refusals.error_inputs,),
            refusals.only_asserts,
            axes=False,
        ),
        OpCheck(refusals.UNSUPPORTED, refusals.reads_tensors, (refusals.unsupported,), axes=False),
    ),
)
