"""The precision suite: results are as near to the exact ones as their dtype allows."""

from __future__ import annotations

from conformance.checks.cases.cases import OpCheck, Suite
from conformance.suites.precision import elementwise, samples
from conformance.suites.precision.bounds import elementwise_ops, operands_of
from conformance.suites.precision.ulps import FORMATS
from opinfo.samples import Traits

_16_BITS = frozenset({"bfloat16", "float16"})


def _floats(t: Traits) -> bool:
    in_reach = (t.returns_floats and t.reads_floats) or bool(operands_of(t.op, t.ufunc))
    return t.dtype in FORMATS and in_reach and "values.free" not in t.families


#: Elementwise functions are asked in 16 bits by every plan: it takes milliseconds.
_ALWAYS = dict.fromkeys(("unary", "binary", *elementwise_ops()), _16_BITS)

SUITE = Suite(
    "precision",
    op_checks=(
        OpCheck(
            elementwise.ULP,
            _floats,
            (elementwise.elementwise, samples.on_samples_too),
            always=_ALWAYS,
        ),
    ),
)
