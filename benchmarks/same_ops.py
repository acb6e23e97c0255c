"""The ops and the number of samples that the three ways of equal work share.

``BENCH_SAMPLES`` limits the samples of an op, ``BENCH_OPS`` (ids separated by commas) the ops.
"""

from __future__ import annotations

import os

from opinfo.catalog import catalogue
from opinfo.exceptions import exceptions

#: The most samples of an op; None for all.
LIMIT = int(os.environ.get("BENCH_SAMPLES", "0")) or None
_ONLY = os.environ.get("BENCH_OPS", "")


def same_ops() -> list[str]:
    """The ids of the ops that take float32 and whose results are determined by their inputs."""
    ops = _ONLY.split(",") if _ONLY else catalogue()
    return [
        op
        for op in ops
        if "float32" in catalogue()[op].dtypes and "values.free" not in exceptions().families_of(op)
    ]
