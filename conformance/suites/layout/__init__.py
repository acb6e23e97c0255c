"""The layout suite: checks of the values, strides and storage of the results of all ops. Which clauses apply to an op
and dtype depends only on their traits (see :class:`opinfo.samples.Traits`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from conformance.checks.cases.cases import OpCheck, Suite
from conformance.checks.cells import VARIANTS
from conformance.suites.layout import (
    as_strided,
    determinism,
    deterministic_gradients,
    fp32_precision,
    overlap,
    reads,
    rules,
    shared_memory,
    unfit_targets,
    variants,
    writes,
)
from opinfo.samples import Traits

_FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})
_INTEGER = rules.INTEGERS | {"bool"}
#: Dtypes without arithmetic on any backend: they are storage formats.
_STORAGE_ONLY_PREFIX = ("float8", "float4", "uint16", "uint32", "uint64", "complex32")


def _special(t: Traits) -> bool:
    if t.dtype == "bool":
        return t.ufunc in ("unary", "binary") and "special.no_bool" not in t.families
    if "special.divides" in t.families and t.dtype in rules.INTEGERS:
        return True
    return t.dtype in _FLOATING and (
        t.nan_policy or any(f.startswith("special.nan") for f in t.families)
    )


def _promotion(t: Traits) -> bool:
    if t.dtype.startswith(_STORAGE_ONLY_PREFIX):
        return False
    if t.ufunc == "binary":
        return True
    return t.ufunc == "unary" and t.promotes_int_to_float and t.dtype in _INTEGER


def _fresh(t: Traits) -> bool:
    return t.returns_elements and not t.declares_view and "mutates.self" not in t.families


def _takes_out(t: Traits) -> bool:
    return t.has_out and t.returns_tensors


def _bounds(t: Traits) -> bool:
    writes_self = t.has_inplace and t.writes_self
    return t.reads_strided or (_takes_out(t) and t.returns_strided) or writes_self


def _overlap(t: Traits) -> bool:
    return (t.has_inplace and t.overlaps) or (_takes_out(t) and t.returns_long)


def _expanded(t: Traits) -> bool:
    """Return True if some input can be expanded and the op determines the values of its result: nothing else is compared."""
    return t.reads_expandable and "values.free" not in t.families


def _memory_format(t: Traits) -> bool:
    here = "memory_format.not_here" not in t.families
    return t.takes_memory_format and t.returns_strided and here


def _views(t: Traits) -> bool:
    return t.declares_view and t.returns_strided and t.reads_strided


def _fp32_precision(t: Traits) -> bool:
    return t.dtype == "float32" and "fp32_precision" in t.families


def _in_a_family(prefix: str) -> Callable[[Traits], bool]:
    return lambda t: any(family.startswith(prefix) for family in t.families)


_Unsampled = partial(OpCheck, sampled=False)
_READS = (reads.reads,)
_SHARED = (reads.reads, shared_memory.shared_memory)
_BOUNDS = (reads.reads, shared_memory.shared_memory, writes.out_kept, writes.in_place)


def _repeats(t: Traits) -> bool:
    """Return True if two equal calls of the op give equal results. This is not so for a recorded call of a random
    op, which does not seed the generator as the calls of torch's database do."""
    return not t.recorded or "values.free" not in t.families


SUITE = Suite(
    "layout",
    op_checks=(  # in the contract's order
        OpCheck("layout.values", lambda t: True, _SHARED, reduced=True),
        OpCheck("layout.output_strides", lambda t: t.returns_strided, _READS),
        OpCheck("layout.output_fresh", _fresh, _READS),
        OpCheck("layout.inputs_intact", lambda t: t.reads_strided, _SHARED),
        OpCheck(writes.BOUNDS, _bounds, _BOUNDS),
        OpCheck(writes.OUT_KEPT, _takes_out, (writes.out_kept,)),
        OpCheck(unfit_targets.OUT_RESIZE, _takes_out, (unfit_targets.out_resize,)),
        OpCheck(writes.IN_PLACE, lambda t: t.has_inplace and t.writes_self, (writes.in_place,)),
        OpCheck(VARIANTS, lambda t: t.comparable_variants, (variants.variants,)),
        OpCheck("layout.views", _views, _READS),
        OpCheck(overlap.OVERLAP, _overlap, (overlap.overlap,)),
        OpCheck("layout.expanded_read", _expanded, _READS),
        _Unsampled(as_strided.AS_STRIDED, _in_a_family("as_strided."), (as_strided.as_strided,)),
        _Unsampled(rules.MEMORY_FORMAT, _memory_format, (rules.memory_format,)),
        _Unsampled(rules.TYPE_PROMOTION, _promotion, (rules.type_promotion,)),
        _Unsampled(rules.SPECIAL_VALUES, _special, (rules.special_values,)),
        _Unsampled(rules.BETA_ZERO, _in_a_family("beta_zero."), (rules.beta_zero,)),
        _Unsampled(rules.EMPTY_REDUCE, lambda t: t.ufunc == "reduction", (rules.empty_reduce,)),
        _Unsampled(fp32_precision.PRECISION, _fp32_precision, (fp32_precision.precision,)),
        OpCheck(
            determinism.DETERMINISM,
            _repeats,
            (determinism.determinism, deterministic_gradients.deterministic_gradients),
        ),
    ),
)
