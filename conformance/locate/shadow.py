"""Runs a copy of the program in float64: each call of the program is also made on the CPU with float64 tensors, which
come from earlier calls in float64, so that they are free of the rounding errors of the program."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from conformance.locate.step_judge import Contents
from conformance.locate.steps import (
    Operand,
    Step,
    WithTargets,
    arguments_with,
    keeping_random_state,
    substitute,
)
from opinfo.torch_private import StorageReference, negated

#: A result smaller than this many roundings of the inputs is zero but for rounding. Its relative error says nothing.
_CANCELLED = 64.0
#: Calls between two searches for storages that were freed.
_SWEEP = 256


@dataclass(slots=True)
class Errors:
    """The largest relative error of a call's inputs (``before``) and of its outputs (``after``), compared with the copy
    of the program that runs in float64. ``after`` is None if no output has floating-point elements, or if all outputs
    are zero except for rounding errors."""

    before: float
    after: float | None

    @property
    def growth(self) -> float:
        """The error of the outputs minus the error of the inputs, where an error above 1 counts as 1."""
        return 0.0 if self.after is None else min(self.after, 1.0) - min(self.before, 1.0)


@dataclass(slots=True)
class _Entry:
    reference: StorageReference
    dtype: torch.dtype  # of the device's elements
    flat: torch.Tensor  # in float64 or complex128, one for each element of the storage


@dataclass
class Shadow:
    """A copy of the program that runs on the CPU in float64, call by call.

    Integers, booleans, random numbers, and results for which the CPU has no float64 kernel are copied from the device,
    so that both programs take the same decisions.
    """

    _entries: dict[int, _Entry] = field(default_factory=dict)
    _calls: int = 0

    def follow(
        self, step: Step, storages: list[torch.UntypedStorage], before: Contents, after: Contents
    ) -> Errors:
        """Makes a call in float64 that the device has already made, and returns the relative errors of the device's
        inputs and outputs against it. ``storages`` are the storages of the call's tensors by number; ``before`` and
        ``after`` have their bytes before and after the device's call."""
        self._calls += 1
        if self._calls % _SWEEP == 0:
            self._entries = {k: v for k, v in self._entries.items() if not v.reference.expired}
        inputs = [self._tensor(each, storages, before) for each in step.inputs]
        known = [
            (_rms(mine), each, mine) for each, mine in zip(step.inputs, inputs) if _floats(each)
        ]
        entering = [_error(each.view(before[each.storage]), mine, rms) for rms, each, mine in known]
        scale = max((rms for rms, *_ in known), default=0.0)
        self._call(step, inputs, storages, after)
        errors = []
        for each in step.outputs:
            if each.storage in step.changed and _floats(each):
                mine = self._tensor(each, storages, after)
                rms = _rms(mine)
                if not known or rms > _CANCELLED * torch.finfo(each.dtype).eps * scale:
                    errors.append(_error(each.view(after[each.storage]), mine, rms))
        return Errors(max(entering, default=0.0), max(errors, default=None))

    def _call(
        self,
        step: Step,
        inputs: list[torch.Tensor],
        storages: list[torch.UntypedStorage],
        after: Contents,
    ) -> None:
        """Makes the call on the float64 tensors ``inputs`` and stores its outputs. If the CPU cannot make the call in
        float64, stores the device's outputs from ``after``."""
        outputs = [each for each in step.outputs if each.storage in step.changed and _floats(each)]
        found = self._results(step, inputs) if outputs else []
        whole = [tuple(each.shape) for each in found] == [each.shape for each in step.outputs]
        written = {*step.written} & {*step.inputs}  # not resized
        for place, each in enumerate(step.outputs):
            if each not in outputs or (whole and each in written):
                continue  # integers, views, and what the call in float64 has written itself
            entry = self._seed(each, storages, after)
            if whole and each.has_own_elements:
                entry.flat.as_strided(each.shape, each.stride, each.offset).copy_(found[place])

    def _results(self, step: Step, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if step.raised or step.traits & {"random", "uninitialized"}:
            return []
        given = arguments_with(step, dict(zip(step.inputs, inputs, strict=True)))
        given = substitute(given, torch.dtype, _widest)
        args, kwargs = substitute(given, torch.device, lambda _: torch.device("cpu"))
        try:
            with keeping_random_state(step.overload):
                return WithTargets(step.overload)(*args, **kwargs)
        except Exception:  # the CPU has no such kernel in float64; the device's results are taken
            return []

    def _tensor(
        self, each: Operand, storages: list[torch.UntypedStorage], contents: Contents
    ) -> torch.Tensor:
        """Returns the float64 copy of an operand. If it has no copy yet, or holds integers or booleans, it is made from
        the device's bytes in ``contents``."""
        if not _floats(each):
            return each.view(contents[each.storage].clone())
        entry = self._entries.get(StorageReference(storages[each.storage]).key)
        count = contents[each.storage].numel() // each.dtype.itemsize
        if entry is None or entry.dtype != each.dtype or entry.flat.numel() != count:
            entry = self._seed(each, storages, contents)
        view = entry.flat.as_strided(each.shape, each.stride, each.offset)
        view = view.conj() if each.conj else view
        return negated(view) if each.neg else view

    def _seed(
        self, each: Operand, storages: list[torch.UntypedStorage], contents: Contents
    ) -> _Entry:
        """Copies the whole storage of an operand from the device's bytes in ``contents`` into a new float64 entry, and
        returns the entry."""
        reference = StorageReference(storages[each.storage])
        data = contents[each.storage]
        count = data.numel() // each.dtype.itemsize
        flat = data[: count * each.dtype.itemsize].view(each.dtype)
        entry = _Entry(reference, each.dtype, flat.to(_widest(each.dtype), copy=True))
        self._entries[reference.key] = entry
        return entry


def _floats(each: Operand) -> bool:
    return each.dtype.is_floating_point or each.dtype.is_complex


def _widest(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _rms(tensor: torch.Tensor) -> float:
    """Returns the root mean square of the finite elements of a tensor."""
    sizes = tensor.abs()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.square().mean().sqrt()) if sizes.numel() else 0.0


def _error(found: torch.Tensor, true: torch.Tensor, rms: float) -> float:
    """Returns the relative error of the tensor ``found``: the root mean square of its difference from ``true``, divided
    by ``rms``, the root mean square of ``true``. Returns infinity if an element is finite in only one of the two;
    elements that are not finite in either are ignored."""
    difference = (found.to(true.dtype) - true).abs()
    both = ~(found.isfinite() & true.isfinite())
    if bool((found.isfinite() != true.isfinite()).any()):
        return float("inf")
    difference = difference.masked_fill(both, 0.0)
    apart = float(difference.square().mean().sqrt()) if difference.numel() else 0.0
    return 0.0 if not apart else apart / rms if rms else float("inf")
