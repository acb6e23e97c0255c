"""The precision suite: results are as near to the exact ones as their dtype allows."""

from __future__ import annotations

from conformance.checks.cases.cases import OpCheck, Suite
from conformance.suites.precision import budget, elementwise, exact, samples, trust
from conformance.suites.precision.bounds import elementwise_ops, operands_of
from conformance.suites.precision.ulps import FORMATS
from opinfo.exceptions import exceptions
from opinfo.samples import Traits, mutates

_16_BITS = frozenset({"bfloat16", "float16"})


def _floats(t: Traits) -> bool:
    in_reach = (t.returns_floats and t.reads_floats) or bool(operands_of(t.op, t.ufunc))
    return t.dtype in FORMATS and in_reach and "values.free" not in t.families


#: Elementwise functions are asked in 16 bits by every plan: it takes milliseconds.
_ALWAYS = dict.fromkeys(("unary", "binary", *elementwise_ops()), _16_BITS)

_ALWAYS_SUMS = {
    op: _16_BITS for f in exceptions().families if f.name.startswith("sums.") for op in f.ops
}


def _sums(t: Traits) -> bool:
    return t.dtype in FORMATS and t.families & {"sums.exact", "sums.divided"} != set()


def _answers(t: Traits) -> bool:
    """Whether calls can be repeated with other values: of ops that write to no argument, and have one right answer."""
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
    op_checks=(
        OpCheck(
            elementwise.ULP,
            _floats,
            (elementwise.elementwise, samples.on_samples_too),
            always=_ALWAYS,
            axes=False,
        ),
        OpCheck(exact.EXACT, _sums, (exact.exact_sums,), always=_ALWAYS_SUMS, axes=False),
        OpCheck(trust.TRUST, _answers, (trust.trust,), axes=False),
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
