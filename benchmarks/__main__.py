"""Run the benchmarks and print what they measured: ``python -m benchmarks [NAME …]``.

Figures are ratios of runs in turn, A B A B …, because machines drift; medians are quoted.
"""

from __future__ import annotations

import sys

try:
    import psutil  # noqa: F401  # of the extra "bench"
except ModuleNotFoundError:
    sys.exit("error: the benchmarks need psutil: python -m pip install 'torch-conformance[bench]'")

from benchmarks import (
    dashboard,
    equal_work,
    manifest,
    matching,
    memory,
    merging,
    overhead,
    phases,
    throughput,
    workers,
)

BENCHMARKS = {
    "equal-work": equal_work.main,
    "matching": matching.main,
    "manifest": manifest.main,
    "throughput": throughput.main,
    "memory": memory.main,
    "merging": merging.main,
    "overhead": overhead.main,
    "phases": phases.main,
    "dashboard": dashboard.main,
    "workers": workers.main,
    "full-plan": workers.full_plan,
}


def main(names: list[str]) -> int:
    unknown = [n for n in names if n not in BENCHMARKS]
    if unknown:
        print(
            f"error: unknown benchmark {unknown[0]!r}: expected {', '.join(BENCHMARKS)}",
            file=sys.stderr,
        )
        return 4
    held = True
    for name in names or BENCHMARKS:
        print(f"== {name}")
        held &= BENCHMARKS[name]()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
