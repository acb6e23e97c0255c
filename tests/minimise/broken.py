"""Runs of the badly broken device (``tests/wrapped/broken.py``), for tests and for people.

``python -m tests.minimise.broken [PLAN]`` runs all of its ops in a plan (``core``: several hundred failing
cells), and prints how long minimising and finding causes took, and the causes with their examples.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from reports.causes import causes_of
from reports.gate import gate
from reports.run import load_run
from reports.summary import summarise
from tests.plugin.running import CHECKOUT, run_pytest
from tests.wrapped.causes import CAUSE_OF

DEVICE = CHECKOUT / "tests" / "wrapped" / "broken.py"


def arguments(folder: Path, ops: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of pytest for a run of these ops that prints its causes."""
    return (f"--descriptor={DEVICE}", "--ops", ",".join(ops), f"--results={folder}")


def main(plan: str = "quick") -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        ran = run_pytest(
            *(*arguments(folder, tuple(CAUSE_OF)), "-n", "2", "--plan", plan),
            cache=Path(name) / "cache",
        )
        run = load_run(folder)
        judged = gate(run, partial=True)
        new = judged.new
        started = time.perf_counter()
        causes = causes_of(run, new)
        seconds = time.perf_counter() - started
        told = [line for line in ran.text.splitlines() if "conformance: minimis" in line]
        print(*(line[line.index("conformance: ") :] for line in told), sep="\n")
        print(f"{len(new)} failing cells have {len(causes)} causes, found in {seconds:.3f} s\n")
        print(summarise(judged, verbosity=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
