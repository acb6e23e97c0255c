"""Seeding that costs what seeding costs.

``torch.manual_seed`` also queues a call for every backend that is not there, each with a formatted stack trace
(100 to 480 us), and the queue is never emptied: some ops of the database call it each time they run, and a long
run would hold gigabytes of traces.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed torch's default CPU generator, random and numpy directly."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def direct_seeding(torch_type: str = "cpu") -> Iterator[None]:
    """Let ``torch.manual_seed`` seed the CPU's generator and those of ``torch_type``, and nothing else."""
    module = getattr(torch, torch_type, None) if torch_type != "cpu" else None
    seed_device = getattr(module, "manual_seed_all", None)

    def manual_seed(seed: int) -> torch.Generator:
        if seed_device is not None:
            seed_device(int(seed))
        return torch.default_generator.manual_seed(int(seed))

    original = torch.manual_seed
    torch.manual_seed = manual_seed
    try:
        yield
    finally:
        torch.manual_seed = original
