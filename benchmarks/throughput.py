"""The whole covering set: plan quick on cpu in checks per second, reference cache cold and warm."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.running import seconds, verdict
from reports.run import load_run


def main() -> bool:
    held = True
    with tempfile.TemporaryDirectory() as scratch:
        for state, budget in (("cold", 120), ("warm", 60)):
            results = Path(scratch) / f"results-{state}"
            took = seconds(
                ["-m", "pytest", "-q", "-n", "auto", "--device", "cpu", f"--results={results}"],
                {"TORCH_CONFORMANCE_CACHE": str(Path(scratch) / "cache")},
            )
            run = load_run(results)
            checks = sum(r.checks for r in run.results.values())
            print(f"{state}: {checks:,} checks in {took:.1f} s, {checks / took:,.0f} a second")
            held &= verdict(f"plan quick, {state} reference cache, s", took, budget, at_least=False)
    return held
