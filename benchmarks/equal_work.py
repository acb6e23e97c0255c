"""Equal work against upstream's way, end to end and per added sample, and what is left for a harness to win.

The bare way draws the same samples and calls the same ops and does nothing else, so it bounds both ratios.
"""

from __future__ import annotations

import statistics

from benchmarks.running import processor_seconds, verdict

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


def main() -> bool:
    """Every sample of every op, then one sample an op: the difference is what added samples cost."""
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
    held = True
    for name, times, budget in (("end to end", whole, 6), ("per added sample", added, 12)):
        held &= verdict(f"{name}, upstream / ours", _ratio(times, "ours"), budget, at_least=True)
        print(f"  upstream / bare, what no harness can pass: {_ratio(times, 'bare'):.2f}")
    return held


def _ratio(times: dict[str, list[float]], way: str) -> float:
    """The median of the rounds' ratios of upstream's time to this way's."""
    return statistics.median(u / t for u, t in zip(times["upstream"], times[way], strict=True))
