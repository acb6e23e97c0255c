"""Measures where the time of a run goes: every ``STEP``-th op and dtype of plan full on cpu, in this process.

The profiler adds up the time in the functions below, first with empty and then with filled caches, and the rest.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.suites.layout import SUITE
from devices import registry
from opinfo.catalog import catalogue
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.plan import plan_spec
from opinfo.reference import ReferenceCache, StrideReference, forget_dispatches
from opinfo.samples import choose, draw, probe

STEP = 25

#: The (file, function) pairs whose cumulative times make up each phase. None of these functions calls another.
PHASES = {
    "drawing and choosing samples": (("samples.py", "draw"), ("samples.py", "choose")),
    "learning traits": (("traits.py", "probe"),),
    "stride references (FakeTensor)": (("reference.py", "answer"),),
    "value references (CPU)": (("reference.py", "value_answer"),),
    "building guarded buffers": (("guarded.py", "__init__"),),
    "calling the ops": (("context.py", "run"),),
    "comparing results": (("context.py", "differs"),),
    "comparing the bytes around them": (
        ("calls.py", "check_inputs"),
        ("guarded.py", "outside_intact"),
    ),
}


def measured() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        for state in ("cold", "warm"):
            profile = cProfile.Profile()
            start = time.perf_counter()
            profile.enable()
            items = _run(Path(scratch))
            profile.disable()
            took = time.perf_counter() - start
            print(f"{state}: {items} op-dtype pairs in {took:.1f} s under the profiler")
            _table(pstats.Stats(profile), took)
    yield from ()  # a profile has no budget


def _table(stats: pstats.Stats, took: float) -> None:
    spent = {}
    entries = stats.stats  # type: ignore[attr-defined]
    for phase, functions in PHASES.items():
        spent[phase] = sum(
            entry[3]
            for (file, _, name), entry in entries.items()
            if any(
                file.endswith(f"opinfo/{f}") or file.endswith(f"layout/{f}")
                for f, n in functions
                if n == name
            )
        )
    spent["directed checks, recording, the rest"] = took - sum(spent.values())
    for phase, seconds in spent.items():
        print(f"  {phase:40} {seconds:7.1f} s {100 * seconds / took:5.1f} %")


def _run(cache_root: Path) -> int:
    device, known, spec = open_device(registry.get("cpu")), exceptions(), plan_spec("full")
    pairs = [(op, d) for op in catalogue().values() for d in sorted(op.dtypes)][::STEP]
    for op, dtype in pairs:
        samples = choose(draw(op, dtype), spec.samples)
        traits = probe(op, dtype, samples, known)
        if not traits.returns:
            continue
        cache = ReferenceCache(cache_root, "bench", "cpu", f"{op.id}-{dtype}")
        clauses = [
            c for c in SUITE.applying(traits) if not known.excluded(c, op.id, dtype, fake_only=True)
        ]
        run_checks(
            OpContext(
                subject=op,
                dtype=dtype,
                traits=traits,
                samples=samples,
                device=device,
                strides=StrideReference("cpu", cache),
                recorder=Recorder(op.id, dtype, clauses),
                known=known,
            ),
            SUITE.op_checks,
        )
        cache.save()
        forget_dispatches()
    return len(pairs)
