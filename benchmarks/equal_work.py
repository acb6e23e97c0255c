"""Equal work against upstream's way, end to end and per added sample."""

from __future__ import annotations

import statistics

from benchmarks.running import seconds, verdict

ROUNDS = 3


def _pytest(file: str, samples: int) -> float:
    command = ["-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:randomly", f"benchmarks/{file}"]
    return seconds(command, {"BENCH_SAMPLES": str(samples), "PYTORCH_TEST_WITH_SLOW": "1"})


def main() -> bool:
    """Every sample of every op, then one sample an op: the difference is what added samples cost."""
    whole, added = [], []
    for round_ in range(ROUNDS):
        theirs, ours = _pytest("upstream_way.py", 0), _pytest("our_way.py", 0)
        theirs_one, ours_one = _pytest("upstream_way.py", 1), _pytest("our_way.py", 1)
        whole.append(theirs / ours)
        added.append((theirs - theirs_one) / (ours - ours_one))
        print(
            f"round {round_ + 1}: upstream {theirs:.1f} s, ours {ours:.1f} s; with one sample an op "
            f"{theirs_one:.1f} s and {ours_one:.1f} s"
        )
    held = verdict("end to end, upstream / ours", statistics.median(whole), 6, at_least=True)
    return (
        verdict("per added sample, upstream / ours", statistics.median(added), 12, at_least=True)
        and held
    )
