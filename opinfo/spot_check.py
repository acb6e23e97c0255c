"""A random choice of cached results to verify: of all results that a run takes from the cache, one in 32 is computed
again."""

from __future__ import annotations

import random

#: One in ONE_IN cached answers is computed again.
ONE_IN = 32

# Independent of the run's seed, so that each run verifies different answers. random.SystemRandom would need a system call
# for each answer, which takes longer than using the answer.
_CHANCE = random.Random()


def is_due() -> bool:
    """Returns True, at random, if the next cached result should be computed again to verify the cache."""
    return _CHANCE.random() * ONE_IN < 1
