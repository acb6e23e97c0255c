"""The dispatch suite: checks of CPU fallbacks, operands on different devices, error inputs, and unsupported ops
and dtypes."""

from conformance.checks.cases.cases import OpCheck, Suite
from conformance.suites.dispatch import assertion, fallback, index_range, refusals

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
        OpCheck(refusals.REFUSALS, refusals.may_refuse, (refusals.unsupported,), axes=False),
        OpCheck(
            index_range.CLAUSE,
            index_range.takes_index,
            (index_range.index_range,),
            always=index_range.planned(),
            axes=False,
        ),
    ),
)
