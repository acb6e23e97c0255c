"""The allocator's counters, read at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Counters:
    """``torch.accelerator.memory.memory_stats`` of one index. Bytes, unless the name says otherwise."""

    all: Mapping[str, int]

    @classmethod
    def of(cls, device: torch.device) -> Counters:
        return cls(dict(torch.accelerator.memory.memory_stats(device)))

    def __getitem__(self, name: str) -> int:
        return self.all[name]

    def get(self, name: str, default: int = 0) -> int:
        return self.all.get(name, default)

    @property
    def allocated(self) -> int:
        return self.all["allocated_bytes.all.current"]

    @property
    def active(self) -> int:
        return self.all["active_bytes.all.current"]

    @property
    def reserved(self) -> int:
        return self.all["reserved_bytes.all.current"]

    @property
    def requested(self) -> int:
        return self.all["requested_bytes.all.current"]

    @property
    def peak(self) -> int:
        """The most that was allocated since the last reset."""
        return self.all["allocated_bytes.all.peak"]
