"""Kills processes of runs at random moments: ``python -m tests.isolation.killing [--times N] [--seed S] [--victims …] [--families …]``.

Each time, a run of a few cells of ``distributed.*``, ``compile.programs`` or ``profiler.*`` starts, and SIGKILL ends one of its
processes: a rank of a case, a worker, the controller, or a process of the compiler. A killed controller's run goes on with
``--resume``. Expected is that no process, listening socket, shared memory or file is left ten seconds after the end,
except in the results folder and the cache; that no cell is lost; and that every cell ends as in a run that nobody disturbs. The
exit status is 0 if all of this is so.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from conformance.run.isolation.watch import read_entry
from devices.cell import CellKey, Outcome
from devices.files import cache_root
from tests.isolation.leftovers import Leftovers, Members
from tests.plugin.running import CHECKOUT, cells_of, environment

#: What is selected of each family: a few cells, so that a run takes some seconds.
RUNS = {
    "distributed": (
        *("--clauses", "distributed.*", "-k"),
        "subgroups or init_again or killed_rank or all_reduce_offset or redistribute_shard or freed_after",
    ),
    "compile": (
        *("--clauses", "compile.programs", "-k"),
        "strided_operands",
    ),
    "profiler": (
        *(
            "--clauses",
            "profiler.*",
            "-k",
            "nesting or threads or schedule or many_regions or started",
        ),
    ),
}
#: The processes that are killed, and the families in whose runs there are such processes.
VICTIMS = {
    "rank": ("distributed",),
    "worker": ("distributed", "compile", "profiler"),
    "controller": ("distributed", "compile", "profiler"),
    "compiler": ("compile",),
}
#: What a compiler's processes are called, and what their command line contains.
_COMPILERS = frozenset({"g++", "c++", "cc1plus", "as", "ld", "collect2", "clang++"})
_POOL = "compile_worker"
#: Seconds in which nothing may be left, and after which a run is taken to hang.
GONE, LIMIT = 10.0, 300.0
_WORKERS = ("gw0", "gw1")

#: The outcomes of a run's cells.
Outcomes = dict[CellKey, Outcome]


@dataclass
class Run:
    """A run that has started: its controller, its workers, and a mark in the environment of all its processes."""

    folder: Path
    process: subprocess.Popen[str]
    members: Members
    text: Callable[[], str]
    workers: list[int] = field(default_factory=list)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def wait_for_workers(self) -> None:
        while not self.workers and not self.is_over():
            entries = [read_entry(self.folder / "journal", name) for name in _WORKERS]
            pids = [entry.pid for entry in entries if entry is not None and entry.pid]
            self.workers = pids if len(pids) == len(_WORKERS) else []
            time.sleep(0.01)

    def victims(self, kind: str) -> list[int]:
        """Returns the processes of this kind that run now."""
        if kind == "controller":
            return [self.process.pid]
        if kind == "worker":
            return self.workers
        found = self.members.now()
        if kind == "compiler":
            return [
                p
                for p, line in found.items()
                if self.members.name(p) in _COMPILERS or _POOL in line
            ]
        return [
            pid for pid in found if self.members.leads_a_session(pid) and pid not in self.workers
        ]

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kills a process of this kind as soon as there is one. Returns False if the run ended before."""
        while not self.is_over():
            if found := self.victims(kind):
                with suppress(ProcessLookupError):
                    os.kill(chance.choice(found), signal.SIGKILL)
                    return True
            time.sleep(0.005)
        return False


class Bench:
    """Runs in folders below one folder, which has a home and a folder for temporary files too."""

    def __init__(self, base: Path, device: str) -> None:
        self._base, self._device = base, device
        self._home, self._temporary = base / "home", base / "tmp"
        for each in (self._home, self._temporary):
            each.mkdir()
        self._calm: dict[str, tuple[Outcomes, float]] = {}

    def forget_libraries(self) -> None:
        """Deletes what the C++ compiler made in other runs from the cache, so that the next run starts the compiler."""
        shutil.rmtree(cache_root() / "compiler" / "libraries", ignore_errors=True)

    def leftovers(self) -> Leftovers:
        return Leftovers((self._home, self._temporary), CHECKOUT)

    @contextmanager
    def started(self, family: str, folder: Path, *more: str) -> Iterator[Run]:
        mark = uuid.uuid4().hex
        self.forget_libraries()
        command = [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:randomly",
                "-p",
                "no:cacheprovider",
                "-n",
                "2",
            ),
            *(
                "--device",
                self._device,
                *RUNS[family],
                "--minimise",
                "0",
                *more,
                f"--results={folder}",
            ),
        ]
        given = environment(cache_root(), HOME=str(self._home), TMPDIR=str(self._temporary))
        with tempfile.TemporaryFile("w+") as said:

            def text() -> str:
                said.seek(0)
                return said.read()

            process = subprocess.Popen(
                command, cwd=CHECKOUT, env={**given, Members.VARIABLE: mark},
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True,
            )  # fmt: skip
            try:
                yield Run(folder, process, Members(mark), text)
            finally:
                process.kill()
                process.wait()

    def calm(self, family: str) -> tuple[Outcomes, float]:
        """Returns the cells of a run that nobody disturbs, and its seconds from the moment when the workers are up."""
        if family not in self._calm:
            folder = self._base / f"calm-{family}"
            with self.started(family, folder) as run:
                run.wait_for_workers()
                began = time.monotonic()
                code = run.process.wait(timeout=LIMIT)
                seconds = time.monotonic() - began
                if code != 0:
                    raise SystemExit(f"the calm run of {family} exits with {code}:\n{run.text()}")
            self._calm[family] = outcomes(folder), seconds
            print(
                f"calm run of {family}: {len(self._calm[family][0])} cells, {seconds:.1f} s",
                flush=True,
            )
        return self._calm[family]


def outcomes(folder: Path) -> Outcomes:
    return {key: result.outcome for key, result in cells_of(folder).items()}


def attempt(
    bench: Bench, kind: str, family: str, folder: Path, chance: random.Random
) -> tuple[bool, str, list[str]]:
    """Starts a run and kills a process. Returns whether a process was killed, when, and what was wrong afterwards."""
    calm, seconds = bench.calm(family)
    left, problems, texts = bench.leftovers(), [], []
    with bench.started(family, folder) as run:
        run.wait_for_workers()
        after = chance.uniform(0, seconds)
        time.sleep(after)
        left.watch(run.members)
        if not run.kill(kind, chance):
            return False, "", []
        code = run.process.wait(timeout=LIMIT)
        problems += left.found_after(GONE, run.members)
        texts.append(run.text())
    if kind == "controller" and not (folder / "run.conform").exists():
        with bench.started(family, folder, "--resume") as run:
            code = run.process.wait(timeout=LIMIT)
            problems += left.found_after(GONE, run.members)
            texts.append(run.text())
    if code not in (0, -signal.SIGKILL):
        problems.append(f"exit {code}")
    problems += differences(folder, calm)
    if problems:
        print(*texts, sep="\n", flush=True)
    return True, f"{after:.2f} s after the start", problems


def differences(folder: Path, calm: Outcomes) -> list[str]:
    """Returns what differs from the calm run, as sentences."""
    try:
        found = cells_of(folder)
    except Exception as error:  # shown with the output of the run
        return [f"{type(error).__name__}: {error}"]
    wrong = [f"{cell} is missing" for cell in calm if cell not in found]
    for cell, result in found.items():
        if result.outcome is not calm.get(cell):
            wrong.append(f"{cell}: {result.outcome.value}: {result.message}")
    if stray := sorted(
        each.name for each in folder.iterdir() if each.name in ("scratch", "progress")
    ):
        wrong.append(f"left in the results folder: {', '.join(stray)}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.isolation.killing", description=__doc__)
    parser.add_argument(
        "--times", type=int, default=30, help="number of kills (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same moments for the same seed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--victims", nargs="+", choices=[*VICTIMS], default=[*VICTIMS])
    parser.add_argument("--families", nargs="+", choices=[*RUNS], default=[*RUNS])
    given = parser.parse_args(arguments)
    victims = [each for each in given.victims if {*VICTIMS[each]} & {*given.families}]
    chance, wrong = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory(prefix="killing-") as scratch:
        bench = Bench(Path(scratch), given.device)
        turn = tries = 0
        while turn < given.times and tries < 3 * given.times:
            tries += 1
            kind = victims[turn % len(victims)]
            family = chance.choice([each for each in VICTIMS[kind] if each in given.families])
            began = time.monotonic()
            hit, when, problems = attempt(bench, kind, family, bench_folder(scratch, tries), chance)
            if not hit:
                continue  # the run ended before
            turn += 1
            wrong += bool(problems)
            state = f"WRONG: {'; '.join(problems)}" if problems else "right"
            took = time.monotonic() - began
            print(f"{turn}: {kind} of {family}, {when} ({took:.0f} s): {state}", flush=True)
    print(f"{turn} kills, seed {given.seed}: {wrong} wrong")
    return 1 if wrong or turn < given.times else 0


def bench_folder(scratch: str, number: int) -> Path:
    return Path(scratch) / f"run-{number}"


if __name__ == "__main__":
    sys.exit(main())
