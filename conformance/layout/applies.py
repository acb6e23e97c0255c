"""Which layout clauses apply to an op and dtype: a pure function of its traits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opinfo.traits import Traits

_FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})
_INTEGER = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})
#: dtypes that have no arithmetic of their own on any backend: storage formats.
_STORAGE_ONLY_PREFIX = ("float8", "float4", "uint16", "uint32", "uint64", "complex32")


def applicable(traits: Traits) -> Iterator[str]:
    """Clause ids in the contract's order."""
    for clause, applies in _RULES.items():
        if applies(traits):
            yield clause


def _special(t: Traits) -> bool:
    if t.dtype == "bool":
        return t.ufunc in ("unary", "binary") and "special.no_bool" not in t.families
    return t.dtype in _FLOATING and (
        t.nan_policy or any(f.startswith("special.nan") for f in t.families)
    )


def _promotion(t: Traits) -> bool:
    if t.dtype.startswith(_STORAGE_ONLY_PREFIX):
        return False
    if t.ufunc == "binary":
        return True
    return t.ufunc == "unary" and t.promotes_int_to_float and t.dtype in _INTEGER


_RULES: dict[str, Callable[[Traits], bool]] = {
    "layout.values": lambda t: True,
    "layout.output_strides": lambda t: t.returns_strided,
    "layout.output_fresh": lambda t: (
        t.returns_strided and not t.declares_view and "mutates.self" not in t.families
    ),
    "layout.inputs_intact": lambda t: t.reads_strided,
    "layout.bounds": lambda t: (
        t.reads_strided
        or (t.has_out and t.returns_tensors and t.returns_strided)
        or (t.has_inplace and t.writes_self)
    ),
    "layout.out_kept": lambda t: t.has_out and t.returns_tensors,
    "layout.out_resize": lambda t: t.has_out and t.returns_tensors,
    "layout.inplace": lambda t: t.has_inplace and t.writes_self,
    "layout.variants": lambda t: t.comparable_variants,
    "layout.views": lambda t: t.declares_view and t.returns_strided and t.reads_strided,
    "layout.overlap_raises": lambda t: (
        (t.has_inplace and t.overlaps) or (t.has_out and t.returns_tensors and t.returns_long)
    ),
    "layout.expanded_read": lambda t: t.reads_expandable,
    "layout.as_strided": lambda t: any(f.startswith("as_strided.") for f in t.families),
    "layout.memory_format": lambda t: (
        t.takes_memory_format and t.returns_strided and "memory_format.not_here" not in t.families
    ),
    "layout.type_promotion": _promotion,
    "layout.special_values": _special,
    "layout.beta_zero": lambda t: any(f.startswith("beta_zero.") for f in t.families),
    "layout.empty_reduce": lambda t: t.ufunc == "reduction",
    "layout.fp32_precision": lambda t: t.dtype == "float32" and "fp32_precision" in t.families,
    "layout.determinism": lambda t: True,
}

#: The clauses that this suite checks, in the contract's order.
CHECKED = tuple(_RULES)
