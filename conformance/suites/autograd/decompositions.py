"""Gradients of decompositions, for the clause autograd.first. Their factors are unique only up to sign, phase or order, so
that gradients are computed through a function of the factors that is the same for all of them.

Repro scripts contain copies of the functions, so the functions need only torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from conformance.checks.ops.calls import Judge
from conformance.checks.ops.context import OpContext
from conformance.suites.autograd.first_order import DTYPES, FIRST, PLAIN, lays_of, of_inputs
from conformance.suites.autograd.gradient_judge import judge_gradients
from conformance.suites.autograd.gradients import differentiated
from conformance.suites.autograd.samples import Known, usable_of_torch
from opinfo.samples import Sample, Traits, choose
from opinfo.subject import DeterminatePart, Source

#: Number of samples, the layouts of the input, and the layouts of the cotangents of the first layout.
_SAMPLES = 6
_INPUTS = (PLAIN, "transposed", "contiguous+step_inner+offset")
_COTANGENTS = (PLAIN, "transposed")


def applies(t: Traits) -> bool:
    """Return True for decompositions that have a gradient in the dtype."""
    differentiable = t.dtype in DTYPES and t.dtype in t.subject.gradient_dtypes
    return has_determinate_part(t.families) and t.dense and differentiable


def has_determinate_part(families: Collection[str]) -> bool:
    """Return True for the families of an op whose result is not unique, but has a part that the inputs determine: the op
    draws no random numbers."""
    several = {"values.not_unique", "values.unordered"}.intersection(families)
    return bool(several) and "values.drawn" not in families


def check_decomposition(ctx: OpContext) -> None:
    """Check the gradients of the determinate part of a decomposition, for a few samples and layouts."""
    if not applies(ctx.traits):
        return
    with ctx.running(FIRST):
        for sample in choose(usable_of_torch(ctx), _SAMPLES):
            process, source = _process_of(ctx, sample)
            function = DeterminatePart(ctx.subject.function, process, source)
            known = Known(ctx, sample, replace(function, function=ctx.subject.reference))
            if not known.places:
                continue
            for laid in lays_of(ctx, sample, _INPUTS).values():
                for layout in _COTANGENTS if laid.case.id == PLAIN else (PLAIN,):
                    if not ctx.device.takes(layout):
                        continue
                    given = (known.places, known.cotangents(layout, laid.geometries))
                    name = laid.case.id if layout == PLAIN else f"grad={layout}"
                    reference = of_inputs(ctx, known, laid, differentiated, given)
                    about = (_JUDGES, differentiated, given, reference)
                    ctx.judge(*about, function=function, layout=name, check="gradient")


_JUDGES: dict[str, Judge] = {FIRST: judge_gradients}


def _process_of(ctx: OpContext, sample: Sample) -> tuple[Callable[[Any], Any], Source]:
    """Return the function that computes the determinate part of the result, and its source in a repro script. It is one of
    this module for eigenvalues and QR factors, otherwise that of torch's database."""
    own = _OWN.get(ctx.subject.id)
    if own is not None:
        return own, (own.__name__, (own,))
    given = ctx.dtype, sample.drawn
    return ctx.subject.process_of(*given), ctx.subject.source_of_process(*given)


def sums_over_eigenvalues(values: torch.Tensor) -> torch.Tensor:
    """Return the sums of the eigenvalues, of their squares and of their cubes, which do not depend on their order."""
    return torch.stack([(values**power).sum(-1) for power in (1, 2, 3)], -1)


def sums_over_eigenpairs(result: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums over the eigenvalues, and the sums of the magnitudes of the eigenvectors times their eigenvalues. They
    depend neither on the order of the pairs nor on the phases of the vectors."""
    values, vectors = result
    return sums_over_eigenvalues(values), vectors.abs().to(values.dtype) @ values.unsqueeze(-1)


def magnitudes_of_factors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return the magnitudes of the elements of the factors, which do not depend on the signs or phases of rows and
    columns."""
    return tuple(each.abs() for each in result)


_OWN: dict[str, Callable[[Any], Any]] = {
    "linalg.eigvals": sums_over_eigenvalues,
    "linalg.eig": sums_over_eigenpairs,
    "qr": magnitudes_of_factors,
    "linalg.qr": magnitudes_of_factors,
}
