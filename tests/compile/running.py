"""Runs the cells of the compile suite in this process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from conformance.checks.call_hooks import UNWATCHED, Guard
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.suites.compile import SUITE
from conformance.suites.compile.compiled_samples import WHOLE
from devices import registry
from opinfo.axes import samples_of
from opinfo.database import DATABASE
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference
from opinfo.samples import Sample, Traits, choose, probe

EQUAL, META = "compile.eager_equals_compiled", "compile.meta_agrees"


def record_of(clause: str, op: str, dtype: str = "float32", **given: Any) -> CellRecord:
    """The cell of an op, in a context with what is ``given``."""
    context = context_of(clause, op, dtype, **given)
    run_checks(context, SUITE.op_checks)
    return context.recorder.cells[clause]


def context_of(
    clause: str,
    op: str,
    dtype: str = "float32",
    *,
    device: str = "cpu",
    variant: str = WHOLE,
    guard: Guard = UNWATCHED,
) -> OpContext:
    """The context in which the cell of an op runs."""
    subject, traits, chosen = drawn_for(op, dtype, device)
    opened = open_device(registry.get(device))
    assert clause in set(SUITE.applying(traits)), f"{clause} does not apply to {op}[{dtype}]"
    recorder = Recorder(op, dtype, [clause], variant=variant)
    strides = StrideReference(opened.descriptor.torch_type, None)
    about = (subject, dtype, traits, chosen, opened, strides, recorder)
    return OpContext(*about, exceptions(), guard)


@lru_cache(maxsize=8)
def drawn_for(op: str, dtype: str, device: str = "cpu") -> tuple[Any, Traits, list[Sample]]:
    """The op, its traits, and the samples of its cells."""
    known, declared = exceptions(), registry.get(device).dtypes
    subject = DATABASE.subjects()[op]
    drawn = DATABASE.samples(subject, dtype)
    traits = probe(subject, dtype, choose(drawn, 16), known)
    return subject, traits, list(samples_of(subject, dtype, 16, declared, drawn))
