"""The example site, made of real runs: every device that runs anywhere, twice, the second time with faults planted.

``python -m tests.dashboard.real_site FOLDER [DEVICE…]`` runs plan ``quick`` on each device into ``FOLDER/runs`` and builds
``FOLDER/site``. A DEVICE is the name of a bundled one, or the path of a descriptor.py (torchax, for example, with the
descriptor that docs/found.md drafts). The faults are planted in torch's kernels or, on the simulated device, in the device. Runs that are
there already are kept, so that the command can be called again after an interruption.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from reports.dashboard.build import Options, build

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
    environment = dict(os.environ)
    if broken and device == "simulated":
        environment.update(FAULTS)
    started = time.perf_counter()
    done = subprocess.run(
        command(device, folder, broken), cwd=CHECKOUT, env=environment, check=False
    )
    print(f"{folder}: exit {done.returncode} after {time.perf_counter() - started:.0f} s")
    if done.returncode not in (0, 1):
        sys.exit(f"expected a whole run (exit 0 or 1), got exit {done.returncode}: see above")


def command(device: str, folder: Path, broken: bool) -> list[str]:
    """The command of a run. ``device`` is a name, or the path of a descriptor."""
    chosen = ["--descriptor", device] if Path(device).suffix == ".py" else ["--device", device]
    planted = ["-p", "tests.dashboard.planted"] if broken and device != "simulated" else []
    return [
        *(sys.executable, "-m", "pytest", "-q", "-n", "auto"),
        *(*chosen, *planted, f"--results={folder}", *(["--resume"] if folder.exists() else [])),
    ]


def name_of(device: str) -> str:
    """The name of a device's folders: the device's, or that of the folder of its descriptor."""
    return Path(device).resolve().parent.name if Path(device).suffix == ".py" else device


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m tests.dashboard.real_site FOLDER [DEVICE|DESCRIPTOR…]")
        return 4
    folder = Path(arguments[0]).resolve()
    devices = arguments[1:] or [*DEVICES]
    for broken, branch in ((False, "main"), (True, "planted-faults")):
        runs = [folder / "runs" / f"{name_of(each)}-{branch}" for each in devices]
        for device, place in zip(devices, runs):
            run(device, place, broken)
        made = build(runs, folder / "site", Options(labels={"branch": branch}))
    print(f"{folder / 'site'}: {made.devices} devices, {made.runs} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
