"""Remembers, for each storage in memory, which call of the program wrote to it last."""

from __future__ import annotations

from typing import Final

import torch

from conformance.locate.steps import Step
from opinfo.torch_private import StorageReference

#: Calls between two searches for storages that were freed.
_SWEEP: Final = 256


class Makers:
    """Maps each storage of a program to the number of the call that wrote to it last. Calls are numbered from 1."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageReference, int]] = {}

    def remember(
        self, step: Step, storages: list[torch.UntypedStorage], number: int
    ) -> tuple[int, tuple[int, ...]]:
        """Stores ``number`` as the last call that wrote to each storage that ``step`` writes. Returns a pair. The first
        element is 0, or, if a new result of this call lies in memory that still belongs to the result of an earlier
        call, the number of that call. The second element has the numbers of the calls that wrote the inputs of this
        call."""
        references = {each: StorageReference(storages[each]) for each in step.changed}
        targets = {each.storage for each in step.written}
        held = 0
        for each, reference in references.items():
            if each not in targets and reference.key in self._known:
                held = self._known[reference.key][1]
        inputs = {StorageReference(storages[each.storage]).key for each in step.inputs}
        made_by = {self._known[key][1] for key in inputs if key in self._known}
        for reference in references.values():
            self._known[reference.key] = reference, number
        if number % _SWEEP == 0:
            self._known = {k: v for k, v in self._known.items() if not v[0].expired}
        return held, tuple(sorted(made_by))
