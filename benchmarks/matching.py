"""Measures planning 250,000 cells and matching them with 1,000 blocks, without torch."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.figures import Figure
from benchmarks.running import ROOT

_OPS, _DTYPES, _CLAUSES = 1_250, 10, 20


@dataclass(frozen=True, slots=True)
class _Subject:
    op: str
    dtype: str


def measure() -> float:
    """The seconds to plan the cells and to find the expectation of each. Call it in a new process."""
    from devices.manifest import Manifest
    from devices.verdicts import Matcher
    from opinfo.exceptions import Exceptions
    from opinfo.plan import PlanSpec, build

    blocks = "\n".join(
        f"""
[[expect]]
clause = "layout.clause_{n % _CLAUSES}"
op = ["nn.functional.op_{n}", "linalg.op_{n % 97}*"]
dtype = "*"
outcome = "fail"
reason = "block {n}"
"""
        for n in range(1_000)
    )
    manifest = Manifest.parse(blocks.replace("layout.clause_", "layout.c"))
    subjects = [
        _Subject(f"{'linalg' if n % 3 else 'nn.functional'}.op_{n}", dtype)
        for n in range(_OPS)
        for dtype in (
            "float16",
            "bfloat16",
            "float32",
            "float64",
            "int8",
            "int16",
            "int32",
            "int64",
            "bool",
            "complex64",
        )
    ]
    clauses = [f"layout.c{n}" for n in range(_CLAUSES)]
    start = time.perf_counter()
    plan = build(
        PlanSpec("full", ("*",), 1),
        "cpu",
        subjects,
        lambda _: clauses,
        Exceptions((), ()),
        {},
        fake_only=True,
    )
    matcher = Matcher(manifest)
    matched = sum(matcher.expect(cell) is not None for cell in plan.cells)
    took = time.perf_counter() - start
    assert len(plan.cells) == 250_000, len(plan.cells)
    assert matched > 10_000, matched
    assert "torch" not in sys.modules
    return took


def measured() -> Iterator[Figure]:
    code = "from benchmarks.matching import measure; print(measure())"
    times = [
        float(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))
        for _ in range(5)
    ]
    yield Figure("plan and match 250,000 cells x 1,000 blocks, s", statistics.median(times), 3)
