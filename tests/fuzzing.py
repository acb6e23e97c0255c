"""How many examples the property tests try: few in the suite, as many as are asked for by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, settings

_Test = TypeVar("_Test", bound=Callable[..., None])

#: ``CONFORM_FUZZ_EXAMPLES=10000 pytest tests/devices/test_manifest_fuzz.py …`` tries that many.
VARIABLE = "CONFORM_FUZZ_EXAMPLES"


def examples(usual: int) -> Callable[[_Test], _Test]:
    """Hypothesis' settings for a test: derandomised, without a database, so that it cannot be flaky."""
    return settings(
        max_examples=int(os.environ.get(VARIABLE) or usual),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
