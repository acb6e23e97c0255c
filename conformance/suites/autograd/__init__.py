"""The autograd suite: checks of gradients, saved tensors, version counters, the threads of backward, and custom
Functions."""

from conformance.checks.cases.cases import OpCheck, Suite, collect_cases, one_op_in
from conformance.suites.autograd import (
    checkpoints,
    decompositions,
    first_order,
    functions,
    half_precision,
    higher_order,
    saved_strides,
    saved_tensors,
    threads,
    transforms,
    version_counters,
)
from opinfo.torch_private import load_forward_ad

SUITE = Suite(
    "autograd",
    cases=collect_cases(
        saved_tensors.cases,
        checkpoints.cases,
        version_counters.cases,
        threads.cases,
        functions.cases,
        transforms.cases,
    ),
    op_checks=(
        # Of the checks of gradients, these two find the fewest faults that no other check finds. In plan quick, each op has
        # one of them.
        OpCheck(
            higher_order.GRAD,
            first_order.applies,
            (higher_order.grad,),
            grad=True,
            quick=one_op_in(2, 0),
        ),
        OpCheck(
            first_order.FIRST,
            lambda t: first_order.applies(t) or decompositions.applies(t),
            (first_order.check_first_order, decompositions.check_decomposition),
            grad=True,
        ),
        OpCheck(
            saved_strides.SAVED,
            saved_strides.applies,
            (saved_strides.saved_strides,),
            grad=True,
            axes=False,
        ),
        OpCheck(
            higher_order.SECOND,
            higher_order.has_second,
            (higher_order.second,),
            grad=True,
            quick=one_op_in(2, 1),
        ),
        OpCheck(
            higher_order.FORWARD,
            higher_order.has_forward,
            (higher_order.forward,),
            loads=load_forward_ad,
        ),
        OpCheck(
            half_precision.GRADIENTS,
            half_precision.applies,
            (half_precision.half_precision,),
            grad=True,
            always={op: frozenset({dtype}) for op, dtype in half_precision.QUICK.items()},
            axes=False,
        ),
    ),
)
