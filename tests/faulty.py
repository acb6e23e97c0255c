"""A fault in Python in front of one op, in this process: torch's own CPU as a device on which the op misbehaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from conformance.checks.call_hooks import UNWATCHED, Guard
from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from devices import registry
from opinfo.catalog import Op, catalogue
from opinfo.compare import tensors_of
from opinfo.device import Device
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.reference import StrideReference
from opinfo.samples import Sample, probe

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]


class FaultyDevice:
    """The CPU, with an op that misbehaves on tensors that were moved there and on no others."""

    def __init__(self, wrap: Wrap, *, everywhere: bool = False) -> None:
        self._wrap, self._everywhere = wrap, everywhere
        self._moved: dict[int, torch.Tensor] = {}  # kept alive, so that no storage's id comes again
        cpu = registry.get("cpu")
        self.device = Device(cpu, torch.device("cpu"), self._move, identity)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.clone()
        if there.layout == torch.strided:
            self._moved[there.untyped_storage()._cdata] = there
        return there

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._moved

    def spoil(self, function: Function) -> Function:
        """The function with the fault on this device's tensors."""
        faulty = self._wrap(function)

        @wraps(function)
        def anywhere(*args: Any, **kwargs: Any) -> Any:
            here = self._everywhere or any(map(self._is_here, tensors_of((args, kwargs))))
            return (faulty if here else function)(*args, **kwargs)

        return anywhere


class FaultyOp(Op):
    """An entry of the database that runs on a faulty device."""

    def __init__(self, op: Op, device: FaultyDevice) -> None:
        super().__init__(op.info)
        inplace = device.spoil(op.inplace) if op.inplace is not None else None
        self.__dict__.update(_function=device.spoil(op.function), _inplace=inplace)

    @property
    def function(self) -> Function:
        function: Function = self.__dict__["_function"]
        return function

    @property
    def inplace(self) -> Function | None:
        inplace: Function | None = self.__dict__["_inplace"]
        return inplace


def run_faulty(
    op_id: str,
    dtype: str,
    samples: list[Sample],
    checks: Iterable[OpCheck],
    device: FaultyDevice,
    guard: Guard = UNWATCHED,
) -> Recorder:
    """The cells of an op on a faulty device: those of the checks that apply to it."""
    op, known, checks = catalogue()[op_id], exceptions(), tuple(checks)
    traits = probe(op, dtype, [s for s in samples if not s.axis], known)
    planned = [
        check.clause
        for check in checks
        if check.applies(traits)
        and known.excluded(check.clause, op_id, dtype, fake_only=True) is None
    ]
    recorder = Recorder(op_id, dtype, planned)
    context = OpContext(
        subject=FaultyOp(op, device),
        dtype=dtype,
        traits=traits,
        samples=samples,
        device=device.device,
        strides=StrideReference("cpu", None),
        recorder=recorder,
        known=known,
        guard=guard,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_checks(context, checks)
    return recorder
