"""The same verdicts on a crowded machine: runs while other processes spin are compared with a run on the quiet machine.

``python -m tests.strangers.loaded [NAME…] [--ops GLOB,…] [--clauses GLOB,…] [--spinners 20] [--times 3] [-n 2]
[--beside 1]`` takes devices that come with the suite (``simulated-device``, ``cpu-device``) and strangers (device
strings, or ``all`` of them; ``simulated-device``, ``sleepy`` and the C++ one, ``simulated``, by default). For each device it
runs the ops of ``--ops``, then the cells of ``--clauses``; without both options it runs everything. The first run is on
the quiet machine, the next ``--times`` runs are beside the spinners (``--spinners 0`` starts none). ``--beside`` is the
number of devices that run at the same time. The exit status is 1 if a cell ended differently. ``conform init``
describes strangers first. This is not a test: it takes minutes, and slows the machine down.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devices.cell import CellKey
from reports.model import CellResult, RunError
from tests.plugin.running import Ran, cells_of, run_conform
from tests.strangers.bench import STRANGERS, FirstDay

#: Spins until it is killed, or the process that started it has ended.
_SPINS = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)\nwhile True: pass"

#: What the names of devices that come with the suite end in here: ``simulated`` is the stranger that is built on its driver.
_OWN = "-device"

#: Runs with these options into this folder.
Run = Callable[[tuple[str, ...], Path], Ran]


@contextlib.contextmanager
def crowd(count: int) -> Iterator[None]:
    """So many processes that compute for ever."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPINS]) for _ in range(count)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


def differences(
    quiet: Mapping[CellKey, CellResult], loaded: Mapping[CellKey, CellResult]
) -> list[str]:
    """The cells that ended otherwise, and how."""

    def said(result: CellResult | None) -> str:
        return f"{result.outcome} ({result.verdict})" if result else "no result"

    return [
        f"{key}: {said(quiet.get(key))} in peace, {said(loaded.get(key))} in a crowd"
        for key in sorted({*quiet, *loaded})
        if said(quiet.get(key)) != said(loaded.get(key))
    ]


def _own(name: str, cache: Path, folder: Path, workers: str) -> Run:
    def run(options: tuple[str, ...], results: Path) -> Ran:
        given = ("run", "-q", "--tb=no", workers, f"--device={name}", f"--results={results}")
        return run_conform(*given, *options, cache=cache, cwd=folder)

    return run


def _stranger(name: str, cache: Path, folder: Path, ops: str, workers: str) -> Run:
    stranger = next(each for each in STRANGERS if each.device == name)
    day = FirstDay(stranger, folder, cache, ops)
    day.init("--fast")

    def run(options: tuple[str, ...], results: Path) -> Ran:
        given = ("run", "-q", "--tb=no", workers, f"--descriptor={folder / stranger.name}")
        return day.conform(*given, f"--results={results}", *options)

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["simulated-device", "sleepy", "simulated"])
    parser.add_argument(
        "--ops", default="", help="these ops; everything, without --ops and --clauses"
    )
    parser.add_argument("--clauses", default="", help="then the cells of these clauses")
    parser.add_argument("--spinners", type=int, default=20)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("-n", type=int, default=2, dest="workers", help="workers of each run")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--beside", type=int, default=1, help="devices at a time in the crowd")
    parser.add_argument("--keep", type=Path, help="work here, and leave it there")
    asked = parser.parse_args()
    top = asked.keep or Path(tempfile.mkdtemp(prefix="loaded-"))
    cache = asked.cache or top / "cache"
    names = [each.device for each in STRANGERS] if asked.names == ["all"] else asked.names
    globs = {"ops": asked.ops, "clauses": asked.clauses}
    selections = [(f"--{option}={given}",) for option, given in globs.items() if given] or [()]
    runs = [
        (_runner(name, cache, top / name, asked), options, top / name / f"{number}")
        for name in names
        for number, options in enumerate(selections)
    ]
    quiet = [_ran(run, options, folder / "quiet") for run, options, folder in runs]
    differ = 0
    for turn in range(asked.times):
        with crowd(asked.spinners), ThreadPoolExecutor(asked.beside) as pool:
            loaded = [
                pool.submit(_ran, run, options, folder / f"crowd-{turn}")
                for run, options, folder in runs
            ]
            for (_, _, folder), before, after in zip(runs, quiet, loaded, strict=True):
                found = differences(before, after.result())
                differ += len(found)
                for each in found:
                    print(f"    {folder.parent.name}: {each}", flush=True)
    print(f"{differ} cells ended otherwise in a crowd of {asked.spinners}")
    return min(differ, 1)


def _runner(name: str, cache: Path, folder: Path, asked: argparse.Namespace) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    workers = f"-n{asked.workers}"
    if name.endswith(_OWN):
        return _own(name.removesuffix(_OWN), cache, folder, workers)
    return _stranger(name, cache, folder, asked.ops, workers)


def _ran(run: Run, options: tuple[str, ...], results: Path) -> dict[CellKey, CellResult]:
    """The cells of a run. Says how long it took."""
    began = time.monotonic()
    ran = run(options, results)
    try:
        cells = cells_of(results)
    except RunError:
        sys.exit(f"a run wrote no results:\n{ran.text.strip()}")
    which = f"{results.parent.parent.name} {' '.join(options)} {results.name}"
    print(f"  {which}: {len(cells)} cells in {time.monotonic() - began:.0f} s", flush=True)
    return cells


if __name__ == "__main__":
    sys.exit(main())
