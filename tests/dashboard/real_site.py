"""The example site, made of real runs of every device that runs anywhere.

``python -m tests.dashboard.real_site FOLDER [--torchax PYTHON] [--again DEVICE] [DEVICE…]`` runs plan ``quick`` on each device,
into ``FOLDER/runs/DEVICE-TIME``, and builds ``FOLDER/site`` from all runs in ``FOLDER/runs``. A device that has a complete run of today
does not run, so that the command can be called again after an interruption; ``--again`` runs it nevertheless. Called again on
another day, the command adds the runs of that day, and the pages show what changed. A record of an earlier day may be put into
``FOLDER/runs`` by hand.

- cpu and lazy run as they are.
- The simulated device runs as it is the first time, and from the second run on with faults planted in it.
- torchax runs only the ops in ``OPS``, because the whole plan takes hours there. PYTHON is the interpreter of an environment
  that has torchax; without it, this interpreter is used if it has torchax, and otherwise the site has no torchax.
- Other devices, such as cuda on a machine with a GPU, are added by their names.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from reports.dashboard.build import Built, Options, build
from reports.run import RECORD_FILE, load_run

CHECKOUT = Path(__file__).resolve().parents[2]
#: torchax's descriptor. The page has the module that the descriptor names, which makes torchax fit this version of torch.
TORCHAX = Path(__file__).with_name("torchax") / "descriptor.py"
PAGE = CHECKOUT / "docs" / "found.md"
DEVICES = ("cpu", "lazy", "simulated")
TITLE = "Example dashboard"
#: The end of the name of a run with planted faults.
PLANTED = "-planted"

#: What is broken on the simulated device from its second run on; digamma ends the process.
FAULTS = {
    "SIMULATED_FAULTS": "out.restride,views.wrong_offset,stride.ignore_channels_last,"
    "allocator.reset_peak_to_zero,streams.ignore_wait,process.segfault",
    "SIMULATED_FAULT_OP": "aten::digamma",
}
#: The ops that most public models call (reports/weights.json), of those in torch's database; and topk, which selects.
OPS = (
    "nn.functional.cross_entropy", "add", "nn.functional.linear", "nn.functional.dropout", "mul", "transpose", "zeros",
    "nn.functional.conv2d", "view", "flatten", "nn.functional.layer_norm", "reshape", "contiguous", "nn.functional.gelu",
    "cat", "nn.functional.embedding", "topk",
)  # fmt: skip

NO_CUDA = "No cuda: no GPU was at hand, and the record of the run that docs/cuda.md describes was not kept."


def command(device: str, folder: Path, python: str = sys.executable) -> list[str]:
    """The command of a run of a device, which continues one that was interrupted."""
    chosen = ["--device", device]
    if device == "torchax":
        # Each example that is minimised costs a process that imports jax.
        chosen = ["--descriptor", str(TORCHAX), f"--ops={','.join(OPS)}", "--minimise=20"]
    again = ["--resume"] if folder.exists() else []
    return [
        python, "-m", "conformance.cli", "run", "-q", "-n", "auto", *chosen, f"--results={folder}", *again,
    ]  # fmt: skip


def whole(folder: Path) -> bool:
    """True if a run has an outcome for each cell that it was to run."""
    if not (folder / RECORD_FILE).is_file():
        return False
    found = load_run(folder)
    return not set(found.parsed.selected).intersection(found.missing)


def folder_of(device: str, runs: Path, now: datetime, *, again: bool) -> Path:
    """The folder of a device's run of today: that of the newest one, which may have been interrupted; a new one if there is
    none or if the newest one is complete and the device runs again."""
    earlier = sorted(runs.glob(f"{device}-*"))
    today = f"{device}-{now:%Y-%m-%d}"
    if earlier and earlier[-1].name.startswith(today) and not (again and whole(earlier[-1])):
        return earlier[-1]
    planted = device == "simulated" and earlier
    return runs / f"{device}-{now:%Y-%m-%dT%H%M}{PLANTED if planted else ''}"


def run(device: str, runs: Path, python: str, *, again: bool) -> None:
    """Runs a device today, unless that was done; a further time if ``again``."""
    folder = folder_of(device, runs, datetime.now(timezone.utc), again=again)
    planted = folder.name.endswith(PLANTED)
    if whole(folder):
        print(f"{folder}: kept")
        return
    made = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(runs.parent)])}
    done = subprocess.run(
        command(device, folder, python),
        cwd=CHECKOUT, env={**made, **FAULTS} if planted else made, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1, 2):  # 2: a part of the plan
        sys.exit(
            f"{folder}: expected a run (exit 0, 1 or 2), got exit {done.returncode}: see above"
        )


def enabled(page: str) -> str:
    """The module ``torchax_enabled`` of docs/found.md."""
    found = re.search(r'```python\n("""torchax_enabled\.py""".*?)```', page, re.DOTALL)
    assert found is not None, f"{PAGE}: expected the module torchax_enabled.py in a block"
    return found[1]


def interpreter(asked: str | None) -> str | None:
    """The interpreter with torchax, or None."""
    return asked or (sys.executable if find_spec("torchax") is not None else None)


def build_site(runs: Path, folder: Path) -> Built:
    """Builds the site from all runs: those of torchax, and interrupted ones, as the parts that they are; the others as
    they would be published."""
    found = sorted(path.parent for path in runs.glob(f"*/{RECORD_FILE}"))
    note = "" if any(each.name.startswith("cuda-") for each in found) else NO_CUDA
    groups: dict[tuple[bool, bool], list[Path]] = {}
    for each in found:
        part = each.name.startswith("torchax-") or not whole(each)
        kind = part, each.name.endswith(PLANTED)
        groups.setdefault(kind, []).append(each)
    for number, ((part, planted), chosen) in enumerate(sorted(groups.items())):
        labels = {"branch": "planted faults"} if planted else {}
        # Fresh, because the site may show a part of a run that was continued.
        options = Options(TITLE, fresh=not number, labels=labels, publish=not part, note=note)
        made = build(chosen, folder, options)
    return made


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard.real_site")
    parser.add_argument("folder", type=Path)
    parser.add_argument("devices", nargs="*", metavar="DEVICE", help="more devices, such as cuda")
    parser.add_argument("--torchax", metavar="PYTHON", help="an interpreter that has torchax")
    parser.add_argument(
        "--again", metavar="DEVICE", action="append", default=[],
        help="run this device although it has a complete run of today; may be given several times",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    runs = given.folder.resolve() / "runs"
    devices = (*DEVICES, *given.devices)
    unknown = [each for each in given.again if each not in (*devices, "torchax")]
    if unknown:
        parser.error(
            f"--again: expected a device of the site ({', '.join((*devices, 'torchax'))}), got {unknown[0]}"
        )
    for device in devices:
        run(device, runs, sys.executable, again=device in given.again)
    python = interpreter(given.torchax)
    if python is None:
        print("torchax: left out, because this environment does not have it: give --torchax PYTHON")
    else:
        (runs.parent / "torchax_enabled.py").write_text(enabled(PAGE.read_text(encoding="utf-8")))
        run("torchax", runs, python, again="torchax" in given.again)
    made = build_site(runs, runs.parent / "site")
    print(f"{runs.parent / 'site'}: {made.devices} devices, {made.runs} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
