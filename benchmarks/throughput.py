"""Measures plan quick with every clause family, in checks per second: first with empty caches, then with filled ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.running import seconds
from reports.run import load_run


def measured() -> Iterator[Figure]:
    """Measure on cpu."""
    yield from _on("cpu", {"cold": 90, "warm": 60})


def measured_simulated() -> Iterator[Figure]:
    """Measure on the simulated device. The first run includes building the device."""
    yield from _on("simulated", {"cold": 150, "warm": 75})


def _on(device: str, budgets: dict[str, float]) -> Iterator[Figure]:
    times = {}
    with tempfile.TemporaryDirectory() as scratch:
        for state, budget in budgets.items():
            results = Path(scratch) / f"results-{state}"
            took = times[state] = seconds(
                ["-m", "pytest", "-q", "-n", "auto", "--device", device, f"--results={results}"],
                {"TORCH_CONFORMANCE_CACHE": str(Path(scratch) / "cache")},
            )
            checks = sum(r.checks for r in load_run(results).results.values())
            print(f"{state}: {checks:,} checks in {took:.1f} s, {checks / took:,.0f} a second")
            yield Figure(f"plan quick on {device}, {state}, s", took, budget)
    if device == "cpu":
        apart = times["cold"] / times["warm"]
        yield Figure(f"plan quick on {device}: cold / warm", apart, 1.5, ratio=True)
