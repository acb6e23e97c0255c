"""What the planner knows of one op and dtype: flags of its database entry and facts of its samples.

A plain record without torch objects, so that applicability and planning are pure functions of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from opinfo.catalog import Op
from opinfo.exceptions import Exceptions
from opinfo.layouts import EXPAND, Layout
from opinfo.reference import value_answer
from opinfo.samples import Sample
from opinfo.seeding import direct_seeding
from opinfo.structure import tensors_of


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about (op, dtype) that decide which clauses apply."""

    op: str
    dtype: str
    ufunc: str  # unary | binary | reduction | ""
    families: frozenset[str]
    has_out: bool
    has_inplace: bool
    comparable_variants: bool  # the function has another variant that some sample can be given to
    declares_view: bool
    takes_memory_format: bool
    takes_python_scalar: bool
    promotes_int_to_float: bool
    nan_policy: bool  # a reduction that declares what it does with NaN
    dense: bool  # some sample passes strided tensors alone
    two_operands: bool  # … and two of them or more
    reads_strided: bool  # some sample passes a strided tensor that holds an element
    reads_expandable: bool  # … with a dimension longer than 1 that may be expanded
    returns_strided: bool  # some sample returns a strided tensor
    returns_tensors: bool  # some sample's result is one tensor or a tuple of tensors
    writes_self: (
        bool  # some sample's first argument is a strided tensor: in-place variants need one
    )
    overlaps: bool  # … with a dimension longer than 1: a target that can overlap itself
    returns_long: bool  # some sample returns a tensor with a dimension longer than 1
    samples: int  # samples that the database offers and the plan takes
    returns: bool  # the CPU takes at least one of them: otherwise there is no reference


def expand_rule(families: frozenset[str]) -> str:
    """``any`` dimension of an op's inputs may be expanded, only ``batch`` dimensions, or ``none``."""
    if "expand.none" in families:
        return "none"
    return "batch" if "expand.batch" in families else "any"


def mutates(families: frozenset[str]) -> bool:
    """Whether the op writes to arguments that it is given."""
    return any(name.startswith("mutates.") for name in families)


def may_expand(rule: str, dim: int | None, rank: int) -> bool:
    """Whether the rule lets this dimension have stride 0."""
    if dim is None or rule == "any":
        return True
    return rule == "batch" and dim < rank - 2


def probe(op: Op, dtype: str, samples: list[Sample], known: Exceptions) -> Traits:
    """Look at samples, and at what the CPU returns for the first few, to learn an op's traits."""
    families = known.families_of(op.id)
    rule = expand_rule(families)
    strided = [t for s in samples for t in s.tensors if t.layout == torch.strided and t.numel()]
    read = [t for s in samples for t in s.tensors[1 if "mutates.self" in families else 0 :]]
    expandable = any(
        may_expand(rule, dim, t.dim())
        for t in read
        if t.layout == torch.strided and t.numel()
        for expand in EXPAND[1:]
        if (dim := Layout("contiguous", expand=expand).geometry(t.shape).expanded) is not None
    )
    selves = [s.call.args[0] for s in samples if isinstance(s.call.args[0], torch.Tensor)]
    selves = [t for t in selves if t.layout == torch.strided]
    facts = _returns(op, samples, mutates=mutates(families))
    return Traits(
        op=op.id,
        dtype=dtype,
        ufunc=op.ufunc,
        families=families,
        has_out=op.has_out,
        has_inplace=op.inplace is not None,
        comparable_variants=facts.returns
        and (
            (op.method is not None and bool(selves))
            or facts.fits_self
            or (op.has_out and facts.tensors)
        ),
        declares_view=op.declares_view or "views" in families,
        takes_memory_format=op.takes_memory_format,
        takes_python_scalar=op.takes_python_scalar,
        promotes_int_to_float=op.promotes_int_to_float,
        nan_policy=op.nan_policy is not None,
        dense=any(s.tensors and all(t.layout == torch.strided for t in s.tensors) for s in samples),
        two_operands=any(
            len(s.tensors) > 1 and all(t.layout == torch.strided for t in s.tensors)
            for s in samples
        ),
        reads_strided=bool(strided),
        reads_expandable=expandable,
        returns_strided=facts.strided,
        returns_tensors=facts.tensors,
        writes_self=bool(selves),
        overlaps=any(n > 1 for t in selves if t.numel() for n in t.shape),
        returns_long=facts.long,
        samples=len(samples),
        returns=facts.returns,
    )


@dataclass
class _Results:
    """What the CPU returns over all samples of an op."""

    returns: bool = False  # something
    strided: bool = False  # a strided tensor
    tensors: bool = False  # one strided tensor, or a tuple of nothing else: what ``out=`` can take
    long: bool = False  # … whose first has elements and a dimension longer than 1
    fits_self: bool = False  # a result that an in-place variant can write to its first argument


def _returns(op: Op, samples: list[Sample], *, mutates: bool) -> _Results:
    found = _Results()
    with warnings.catch_warnings(), torch.no_grad(), direct_seeding():
        warnings.simplefilter("ignore")
        for sample in samples:
            answer = value_answer(op.function, sample.call, sample.tensors, mutates=mutates)
            if answer.raises is not None:
                continue
            found.returns = True
            tensors = tensors_of(answer.result)
            strided = [t for t in tensors if t.layout == torch.strided]
            found.strided |= bool(strided)
            single = isinstance(answer.result, torch.Tensor)
            whole = single or (
                isinstance(answer.result, (tuple, list)) and len(tensors) == len(answer.result)
            )
            if not strided or len(strided) < len(tensors) or not whole:
                continue
            found.tensors = True
            found.long |= strided[0].numel() > 0 and any(n > 1 for n in strided[0].shape)
            first = sample.call.args[0]
            if single and op.inplace is not None and isinstance(first, torch.Tensor):
                same = answer.result.shape == first.shape
                found.fits_self |= same and torch.can_cast(answer.result.dtype, first.dtype)
    return found
