"""Compares runs with workers and runs in pytest's own process: for few ops, and for the whole of plan full."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from statistics import median

from benchmarks.figures import Figure
from benchmarks.running import seconds

_ROUNDS = 5
_FEW = "add,mm,sum"
_MORE = (
    "abs,acos,add,addmm,bmm,cat,clamp,cos,div.no_rounding_mode,exp,gather,log,mean,mm,mul,neg,prod,sin,sort,std,"
    "sub,sum,var,where"
)


def _pytest(*arguments: str) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        return seconds(
            ["-m", "pytest", "-q", "--device=cpu", f"--results={scratch}/run", *arguments]
        )


def measured() -> Iterator[Figure]:
    for ops, most in ((_FEW, 1.2), (_MORE, 1.05)):
        count = len(ops.split(","))
        took: dict[str, list[float]] = {"0": [], "auto": []}
        for _ in range(_ROUNDS + 1):
            for workers, times in took.items():
                times.append(_pytest("-n", workers, f"--ops={ops}"))
        alone, auto = (
            median(times[1:]) for times in took.values()
        )  # the first runs fill the caches
        print(f"{count} ops: {alone:.1f} s with -n 0, {auto:.1f} s with -n auto")
        yield Figure(f"{count} ops: -n auto / -n 0", auto / alone, most, ratio=True)


def measured_full() -> Iterator[Figure]:
    """Measure plan full. Takes a quarter of an hour, and twice that if the stride references are not cached yet."""
    _pytest("--plan=full", "-n", "2")  # fills the caches
    two, alone = (_pytest("--plan=full", "-n", workers) for workers in ("2", "0"))
    print(f"plan full: {alone:.0f} s with -n 0, {two:.0f} s with -n 2")
    yield Figure("plan full: -n 0 / -n 2", alone / two, 1.6, at_least=True, ratio=True)
