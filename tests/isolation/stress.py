"""Mishaps at random, and processes killed at random: ``python -m tests.isolation.stress [PLACEMENTS [KILLS [SEED]]]``.

Outside of the test suite, because it takes half an hour. Each placement plants three mishaps in cells of a run on the
simulated device, with 1, 2 or 4 workers in either mode, and expects those three cells to be lost, and every other
to be as in a calm run. Each kill sends SIGKILL to a worker at a random moment, and expects nothing to be lost; then,
in a run of its own, to the controller, whose run ``--resume`` brings to the same end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from conformance.run.isolation.watch import read_entry
from devices.cell import CellKey, Outcome
from devices.files import cache_root
from reports.model import CellResult
from tests.isolation.running import planted
from tests.plugin.running import CHECKOUT, ForkServer, cells_of, environment

OPS = "abs,acos,add,bmm,clamp,cos,mm,neg,sin,sort,sum,where"
BASE = (
    *("--device", "simulated", "--ops", OPS, "--clauses", "layout.*"),
    *("--expectations", "none", "--minimise", "0"),
)
#: Clauses that are the first of their group: a mishap at a group's beginning is theirs.
FIRST = (
    *("layout.values", "layout.variants", "layout.out_kept", "layout.out_resize"),
    *("layout.inplace", "layout.overlap_raises", "layout.determinism"),
)
#: Seconds after the workers are up in which a run is about to end, on the machine that this was written on.
_MOMENTS = 1.5
_BUILD = "from devices.simulated.backend.build import library; library()"
MISHAPS = {
    "segfault": Outcome.CRASH,
    "abort": Outcome.CRASH,
    "exit": Outcome.CRASH,
    "fork": Outcome.CRASH,
    "poison": Outcome.CRASH,
    "sleep": Outcome.HANG,
    "gil": Outcome.HANG,
    "spin": Outcome.HANG,
    "stop": Outcome.HANG,
}


def main(placements: int = 50, kills: int = 20, seed: int = 0) -> int:
    chance = random.Random(seed)
    wrong = 0
    # Takes minutes where it is not in the cache yet, and would pass for a run that stands still.
    subprocess.run([sys.executable, "-c", _BUILD], cwd=CHECKOUT, check=True)
    with tempfile.TemporaryDirectory() as scratch, ForkServer(cache_root()) as fork:
        base = Path(scratch)
        began = time.monotonic()
        ran = fork.pytest(*BASE, f"--results={base / 'calm'}")
        calm = cells_of(base / "calm")
        seconds = time.monotonic() - began
        print(f"calm run ({seconds:.0f} s): exit {ran.code}, {len(calm)} cells", flush=True)
        for turn in range(placements):
            wrong += _placement(fork, base / f"p{turn}", chance, calm)
        for turn in range(kills):
            wrong += _kill_worker(base / f"k{turn}", chance, calm)
        for turn in range(kills):
            wrong += _kill_controller(base / f"c{turn}", chance, calm)
    print(f"{placements} placements, {kills} kills of either kind: {wrong} wrong")
    return 1 if wrong else 0


def _placement(
    fork: ForkServer, folder: Path, chance: random.Random, calm: Mapping[CellKey, CellResult]
) -> int:
    cells = chance.sample([cell for cell in calm if cell.clause in FIRST], 3)
    poison = list(MISHAPS)
    chosen = {cell: chance.choice(poison) for cell in cells}
    # A call is made on the device in these groups alone, so that the poison is felt where it was put.
    chosen = {
        cell: "segfault" if what == "poison" and cell.clause != "layout.values" else what
        for cell, what in chosen.items()
    }
    workers, mode = chance.choice((1, 2, 4)), chance.choice(("load", "worksteal"))
    began = time.monotonic()
    ran = fork.pytest(
        *BASE,
        *("-p", "tests.isolation.planting", "-n", str(workers), "--dist", mode),
        *("--cell-timeout", "10", f"--results={folder}"),
        **planted({str(cell): what for cell, what in chosen.items()}),
    )
    expected = {cell: MISHAPS[what] for cell, what in chosen.items()}
    problems = [] if ran.code == 1 else [f"exit {ran.code}"]
    problems += _differences(folder, calm, expected)
    told = ", ".join(f"{what} in {cell}" for cell, what in chosen.items())
    _say(folder.name, f"{workers} workers, {mode}: {told}", time.monotonic() - began, problems)
    if problems:
        print(ran.text)
    return bool(problems)


def _kill_worker(folder: Path, chance: random.Random, calm: Mapping[CellKey, CellResult]) -> int:
    began = time.monotonic()
    with _started(folder) as (process, workers, text):
        victim = chance.choice(workers) if workers else None
        after = chance.uniform(0, _MOMENTS / 2)  # a worker ends before its controller does
        time.sleep(after)
        hit = victim is not None and process.poll() is None and _killed(victim)
        code = process.wait(timeout=600)
        problems = [] if code == 0 else [f"exit {code}"]
        problems += _differences(folder, calm, {})
        told = f"worker killed {after:.2f} s on ({hit=})"
        _say(folder.name, told, time.monotonic() - began, problems)
        if problems:
            print(text())
    return bool(problems)


def _kill_controller(
    folder: Path, chance: random.Random, calm: Mapping[CellKey, CellResult]
) -> int:
    began = time.monotonic()
    problems: list[str] = []
    with _started(folder) as (process, workers, text):
        after = chance.uniform(0, _MOMENTS)
        time.sleep(after)
        _killed(process.pid)
        code = process.wait(timeout=600)
        hit = code == -signal.SIGKILL  # else it had ended, and waited for nothing but its parent
        if not hit and code:
            problems.append(f"exit {code}")
        alive = [pid for pid in workers if not _ends(pid)] if hit else []
        problems += [f"worker {pid} lives on" for pid in alive]
        texts = [text()]
    if hit and not (folder / "run.conform").exists():  # else it was over but for its last words
        with _started(folder, "--resume") as (process, _, text):
            code = process.wait(timeout=600)
            texts.append(text())
        if code != 0:
            problems.append(f"--resume: exit {code}")
    problems += _differences(folder, calm, {})
    told = f"controller killed {after:.2f} s on ({hit=}) and gone on with"
    _say(folder.name, told, time.monotonic() - began, problems)
    if problems:
        print(*texts, sep="\n")
    return bool(problems)


@contextmanager
def _started(
    folder: Path, *more: str
) -> Iterator[tuple[subprocess.Popen[str], list[int], Callable[[], str]]]:
    """A run with two workers that are up: its process, theirs, and what it has printed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", *BASE, "-n", "2", *more]
    with tempfile.TemporaryFile("w+") as said:

        def text() -> str:
            said.seek(0)
            return said.read()

        process = subprocess.Popen(
            [*command, f"--results={folder}"],
            cwd=CHECKOUT, env=environment(cache_root()), stdout=said, stderr=said, text=True,
        )  # fmt: skip
        workers: list[int] = []
        while len(workers) < 2 and process.poll() is None:
            entries = [read_entry(folder / "journal", f"gw{number}") for number in range(2)]
            workers = [entry.pid for entry in entries if entry is not None and entry.pid]
            time.sleep(0.01)
        yield process, workers, text


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _ends(pid: int, seconds: float = 60) -> bool:
    """Whether the process ends by itself, in so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def _differences(
    folder: Path, calm: Mapping[CellKey, CellResult], expected: Mapping[CellKey, Outcome]
) -> list[str]:
    """What is not as in the calm run, but for what is expected."""
    try:
        found = cells_of(folder)
    except Exception as error:  # told, with the run's output
        return [f"{type(error).__name__}: {error}"]
    wrong = [f"{cell} is missing" for cell in calm if cell not in found]
    for cell, result in found.items():
        wanted = expected.get(cell, calm[cell].outcome)
        if result.outcome is not wanted:
            wrong.append(f"{cell}: {result.outcome}, expected {wanted}: {result.message}")
    return wrong


def _say(name: str, told: str, seconds: float, problems: list[str]) -> None:
    state = f"WRONG: {'; '.join(problems)}" if problems else "right"
    print(f"{name} ({seconds:.0f} s): {told}: {state}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
