"""The precision suite: checks of the errors of results against exact results, measured in units in the last place
(ulps)."""

from __future__ import annotations

from conformance.checks.cases.cases import OpCheck, Suite, collect_cases
from conformance.suites.precision import (
    budget,
    conversions,
    elementwise,
    exact_sums,
    quantized_products,
    sampled_ulp,
    sparse,
    stale_results,
)
from conformance.suites.precision.bounds import elementwise_ops, operands_of
from conformance.suites.precision.ulps import FORMATS
from opinfo.exceptions import exceptions
from opinfo.samples import Traits, mutates

_16_BITS = frozenset({"bfloat16", "float16"})


def _floats(t: Traits) -> bool:
    in_reach = (t.returns_floats and t.reads_floats) or bool(operands_of(t.op, t.ufunc))
    return t.dtype in FORMATS and in_reach and "values.free" not in t.families


#: Every plan checks elementwise functions in bfloat16 and float16 too, because that takes only milliseconds.
_ALWAYS = dict.fromkeys(("unary", "binary", *elementwise_ops()), _16_BITS)

_ALWAYS_SUMS = {
    op: _16_BITS for f in exceptions().families if f.name.startswith("sums.") for op in f.ops
}


def _sums(t: Traits) -> bool:
    return t.dtype in FORMATS and t.families & {"sums.exact", "sums.divided"} != set()


def _answers(t: Traits) -> bool:
    """Return True for an op and dtype whose calls can be repeated with different values: the op changes none of its
    arguments, and each call has exactly one right result."""
    free = "values.free" in t.families or "values.not_unique" in t.families
    return (
        t.dtype in FORMATS
        and t.reads_floats
        and t.returns_tensors
        and not free
        and not mutates(t.families)
    )


SUITE = Suite(
    "precision",
    cases=collect_cases(conversions.cases, quantized_products.cases, sparse.cases),
    op_checks=(
        OpCheck(
            elementwise.ULP,
            _floats,
            (elementwise.elementwise, sampled_ulp.on_samples_too),
            always=_ALWAYS,
            axes=False,
        ),
        OpCheck(exact_sums.EXACT, _sums, (exact_sums.exact_sums,), always=_ALWAYS_SUMS, axes=False),
        OpCheck(stale_results.TRUST, _answers, (stale_results.check_stale_results,), axes=False),
        OpCheck(
            budget.BUDGET,
            budget.applies,
            (budget.budget,),
            budget.not_on_record,
            always=_ALWAYS,
            axes=False,
        ),
    ),
)
