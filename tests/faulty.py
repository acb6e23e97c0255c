"""An op of the database with a fault in this process: torch's own CPU as a device on which the op misbehaves."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable

import torch

from conformance.checks.call_hooks import UNWATCHED, Guard
from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from devices import registry
from opinfo.database import DATABASE
from opinfo.device import Device
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.reference import StrideReference
from opinfo.samples import Sample, probe
from opinfo.subject import Subject
from tests.planting.calls import Effect
from tests.planting.places import Here, in_front_of


class Moved:
    """The tensors that were moved to the faulty device, by which it differs from the CPU."""

    def __init__(self) -> None:
        self._moved: dict[int, torch.Tensor] = {}  # kept alive, so that no storage's id comes again

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.clone()
        if there.layout == torch.strided:
            self._moved[there.untyped_storage()._cdata] = there
        return there

    def here(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the storage of one that was moved."""
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._moved


def faulty(op: Subject, effect: Effect, here: Here | None) -> Subject:
    """An entry of the database whose function and in-place variant have a fault. Its reference stays as it is, and it
    still counts as a function that runs on the CPU too: the checks that compare it with itself there are made."""
    made = copy.copy(op)
    variants = {"function": op.function, "inplace": op.inplace}
    vars(made).update(
        {name: f and in_front_of(f, effect, here) for name, f in variants.items()},
    )
    return made


def run_faulty(
    op_id: str,
    dtype: str,
    samples: list[Sample],
    checks: Iterable[OpCheck],
    effect: Effect,
    guard: Guard = UNWATCHED,
    *,
    everywhere: bool = False,
) -> Recorder:
    """The cells of an op with a fault: those of the checks that apply to it. The fault affects calls with tensors that
    were moved to the device, or all calls."""
    op, known, checks, moved = DATABASE.subjects()[op_id], exceptions(), tuple(checks), Moved()
    traits = probe(op, dtype, [s for s in samples if not s.axis], known)
    planned = [
        check.clause
        for check in checks
        if check.applies(traits)
        and known.excluded(check.clause, op_id, dtype, fake_only=True) is None
    ]
    recorder = Recorder(op_id, dtype, planned)
    context = OpContext(
        subject=faulty(op, effect, None if everywhere else moved.here),
        dtype=dtype,
        traits=traits,
        samples=samples,
        device=Device(registry.get("cpu"), torch.device("cpu"), moved.move, identity),
        strides=StrideReference("cpu", None),
        recorder=recorder,
        known=known,
        guard=guard,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_checks(context, checks)
    return recorder
