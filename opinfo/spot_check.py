"""Kept answers are not trusted silently: one in 32 that a run takes is asked for again."""

from __future__ import annotations

import random

#: One in so many.
ONE_IN = 32

# Chance that no seed of a run decides: each run looks at others. The system's own costs a system call for each answer, which
# is more than it takes to use it.
_CHANCE = random.Random()


def is_due() -> bool:
    """Whether the answer that is about to be taken is to be asked for again."""
    return _CHANCE.random() * ONE_IN < 1
