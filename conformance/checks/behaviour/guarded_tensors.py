"""Puts the tensors of one call on the device in given layouts, with known bytes around them, and checks that the call
changes neither the tensors nor these bytes.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import DENSE, GuardedTensor
from devices.failure import Kind


class GuardedTensors:
    """Tensors that a case puts on the device. :meth:`check_intact` checks that no byte of their storages has
    changed."""

    def __init__(self, context: CaseContext) -> None:
        self.context = context
        self.tensors: list[tuple[str, GuardedTensor]] = []

    def put(self, values: torch.Tensor, layout: str, what: str) -> GuardedTensor:
        """Copies the values to the device in the given layout, or contiguous if the device cannot build this layout.
        ``what`` describes the tensor for messages, such as "an input"."""
        taken = layout if self.context.opened.takes(layout) else DENSE
        made = self.context.guarded(values, taken)
        self.tensors.append((what, made))
        return made

    def put_indices(self, values: torch.Tensor, layout: str, what: str) -> torch.Tensor:
        """Copies an integer tensor, which may contain indices, to the device. If ``layout`` is not contiguous, each
        element is followed in memory by another integer of the tensor. A kernel that ignores the stride then reads
        indices that are wrong but valid, and does not crash."""
        values = values.detach().contiguous()
        if layout == DENSE or values.dim() == 0 or not self.context.opened.slices:
            return self.put(values, DENSE, what).view
        pairs = torch.stack([values, values.flatten().roll(1).view(values.shape)], -1)
        return self.put(pairs, DENSE, what).view.select(-1, 0)

    def check_intact(self, at: str) -> None:
        """Checks that no byte of any storage has changed."""
        for what, tensor in self.tensors:
            whole = tensor.intact()
            found = "" if whole else tensor.damage()
            text = f"{what} or the bytes around it changed"
            self.context.check(whole, text, found=found, kind=Kind.BYTES, at=at)
