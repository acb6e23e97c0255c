"""The autograd suite: gradients are right, and stale ones are refused."""

from conformance.checks.cases.cases import OpCheck, Suite
from conformance.suites.autograd import again, first

SUITE = Suite(
    "autograd",
    op_checks=(
        OpCheck(first.FIRST, first.applies, (first.first,), axes=False, grad=True),
        OpCheck(again.SECOND, again.has_second, (again.second,), axes=False, grad=True),
        OpCheck(again.FORWARD, again.has_forward, (again.forward,), axes=False),
    ),
)
