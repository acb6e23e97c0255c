"""A site of real runs: every device that runs anywhere, twice, once with faults planted.

``python -m tests.dashboard.real_site FOLDER [DEVICE…]`` runs plan ``quick`` on each device, clean and
with faults, into ``FOLDER/runs``, builds ``FOLDER/site``, and prints the address of a failing cell
for ``python -m benchmarks.screenshots``. Runs that are there already are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from reports.dashboard.build import build

CHECKOUT = Path(__file__).resolve().parents[2]
DEVICES = ("cpu", "lazy", "simulated")

#: What is broken on the simulated device in its second run; digamma ends the process.
FAULTS = {
    "SIMULATED_FAULTS": "out.restride,views.wrong_offset,stride.ignore_channels_last,"
    "allocator.reset_peak_to_zero,streams.ignore_wait,process.segfault",
    "SIMULATED_FAULT_OP": "aten::digamma",
}


def run(device: str, folder: Path, broken: bool) -> None:
    """One run of plan ``quick``; its expectations stay those of the clean device."""
    if (folder / "run.conform").exists():
        print(f"{folder}: kept")
        return
    arguments = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--device", device]
    environment = dict(os.environ)
    if broken and device == "simulated":
        environment.update(FAULTS)
    elif broken:
        arguments += ["-p", "tests.dashboard.planted"]
    started = time.perf_counter()
    done = subprocess.run(
        [*arguments, f"--results={folder}"], cwd=CHECKOUT, env=environment, check=False
    )
    print(f"{folder}: exit {done.returncode} after {time.perf_counter() - started:.0f} s")
    if done.returncode not in (0, 1):
        sys.exit(f"expected a whole run (exit 0 or 1), got exit {done.returncode}: see above")


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m tests.dashboard.real_site FOLDER [DEVICE…]")
        return 4
    folder = Path(arguments[0]).resolve()
    for device in arguments[1:] or DEVICES:
        run(device, folder / "runs" / f"{device}-clean", broken=False)
        run(device, folder / "runs" / f"{device}-broken", broken=True)
    made = build([folder / "runs"], folder / "site")
    print(f"{folder / 'site'}: {made.runs} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
