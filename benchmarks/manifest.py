"""Measures a manifest of 10,000 blocks with 250,000 planned cells: read, lint, update from two runs, explain."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date

from benchmarks.figures import Figure
from benchmarks.running import ROOT

_BLOCKS, _CLAUSES, _OPS = 10_000, 20, 1_250
_DTYPES = (
    "bfloat16", "bool", "complex64", "float16", "float32", "float64", "int16", "int32", "int64", "int8",
)  # fmt: skip
#: The budget of each step in seconds. A person waits for each.
LIMITS = {"read": 2, "lint": 5, "update": 10, "explain": 3}


def measure() -> dict[str, float]:
    """The processor seconds of each step. Processor time is used because the machine may be busy. Call it in a new
    process."""
    from devices.cell import CellKey, Observed, Outcome
    from devices.lifecycle.evidence import Evidence, Seen
    from devices.lifecycle.inspection import explain, lint
    from devices.lifecycle.text import canonical, render
    from devices.lifecycle.update import update
    from devices.manifest import Block, ExpectedOutcome, Manifest

    def block(number: int) -> Block:
        return Block(
            line=0,
            clause=(f"layout.c{number % _CLAUSES}",),
            op=(f"op_{number % _OPS}",),
            dtype=(_DTYPES[number // _OPS % len(_DTYPES)],),
            layouts=frozenset({"transposed", "contiguous+offset"}),
            outcome=ExpectedOutcome.FAIL,
            reason=f"cause {number}",
        )

    text = "\n\n".join(render(block(number)) for number in range(_BLOCKS)) + "\n"
    text = canonical(text, Manifest.parse(text))
    cells = [
        CellKey(f"layout.c{clause}", f"op_{op}", dtype)
        for clause in range(_CLAUSES)
        for op in range(_OPS)
        for dtype in _DTYPES
    ]
    today, facts = date(2027, 1, 1), {"torch": "2.13.0"}
    took: dict[str, float] = {}

    start = time.process_time()
    manifest = Manifest.parse(text)
    took["read"] = time.process_time() - start
    assert len(manifest.blocks) == _BLOCKS

    start = time.process_time()
    problems = lint(manifest, cells, facts, today, text)
    took["lint"] = time.process_time() - start
    assert problems == [], problems[0]

    ran = frozenset({"transposed", "contiguous+offset", "contiguous"})
    as_listed = Seen(Observed(Outcome.FAIL, ran - {"contiguous"}), ran)
    fewer, passed = (
        Seen(Observed(Outcome.FAIL, frozenset({"transposed"})), ran),
        Seen(Observed(Outcome.PASS), ran),
    )
    expected = [CellKey(each.clause[0], each.op[0], each.dtype[0]) for each in manifest.blocks]
    seen = dict.fromkeys(cells, passed) | dict.fromkeys(expected, as_listed)
    seen |= dict.fromkeys(expected[::100], passed) | dict.fromkeys(expected[1::100], fewer)

    def run(name: str) -> Evidence:
        return Evidence(name, "npu", "full", "1", "2.13.0", "", name, facts, cells, dict(seen))

    start = time.process_time()
    done = update(text, manifest, [run("a"), run("b")], today)
    took["update"] = time.process_time() - start
    assert (len(done.removed), len(done.narrowed)) == (100, 100), done.removed[:1]

    start = time.process_time()
    explained = explain(Manifest.parse(text), expected[5_000], facts)
    took["explain"] = time.process_time() - start
    assert explained.match.expectation is not None
    assert "torch" not in sys.modules
    return took


def measured() -> Iterator[Figure]:
    code = "import json; from benchmarks.manifest import measure; print(json.dumps(measure()))"
    runs = [
        json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True))
        for _ in range(3)
    ]
    for what, limit in LIMITS.items():
        took = statistics.median(run[what] for run in runs)
        yield Figure(f"{what} 10,000 blocks x 250,000 cells, processor s", took, limit)
