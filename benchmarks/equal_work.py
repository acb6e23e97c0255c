"""Compares this harness with upstream's way on equal work, for whole runs and for each added sample.

The bare way draws the same samples, calls the same ops and does nothing else, so it is a bound for both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.figures import Figure
from benchmarks.running import processor_seconds

ROUNDS = 3


def _pytest(file: str) -> list[str]:
    return [
        "-m",
        "pytest",
        "-q",
        "-x",
        "--tb=short",
        "-p",
        "no:randomly",
        f"benchmarks/{file}",
    ]


WAYS = {
    "upstream": _pytest("upstream_way.py"),
    "ours": _pytest("our_way.py"),
    "bare": ["-m", "benchmarks.bare_way"],
}


def measured() -> Iterator[Figure]:
    """Measure with every sample of every op, then with one sample of each op. The difference is the cost of the added
    samples."""
    whole: dict[str, list[float]] = {way: [] for way in WAYS}
    added: dict[str, list[float]] = {way: [] for way in WAYS}
    for round_ in range(ROUNDS):
        for way, command in WAYS.items():
            every, one = (
                processor_seconds(
                    command, {"BENCH_SAMPLES": str(limit), "PYTORCH_TEST_WITH_SLOW": "1"}
                )
                for limit in (0, 1)
            )
            whole[way].append(every)
            added[way].append(every - one)
            print(
                f"round {round_ + 1}, {way}: {every:.1f} s of processor time, {one:.1f} s with one "
                f"sample an op"
            )
    for name, times, least, most in (
        ("end to end", whole, 8, 1.4),
        ("per added sample", added, 7, 1.6),
    ):
        ratio = _ratio(times, "upstream", "ours")
        yield Figure(f"{name}: upstream / ours", ratio, least, at_least=True, ratio=True)
        yield Figure(f"{name}: ours / bare", _ratio(times, "ours", "bare"), most, ratio=True)


def _ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """The median over all rounds of the ratio of two ways' times."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))
