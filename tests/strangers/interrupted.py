"""Kills ``conform init`` at random moments, and looks whether it goes on to the same files, and leaves nothing elsewhere.

``python -m tests.strangers.interrupted [--kills N] [--seed S] [--ops GLOB,…]``
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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.plugin.running import CHECKOUT, environment
from tests.strangers.bench import MODULES

_FILES = ("descriptor.py", "expected.toml")


def _interruptible() -> None:
    """Ctrl-C has its usual effect, also where a shell started us in the background and has it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stranger is described: a working directory, a home and a folder for temporary files, all of them empty."""

    top: Path
    cache: Path
    options: tuple[str, ...]

    def start(self) -> subprocess.Popen[str]:
        """``conform init`` of the stranger with two indices, in a process group of its own."""
        for each in ("cwd", "home", "tmp"):
            (self.top / each).mkdir(parents=True, exist_ok=True)
        more = {"HOME": str(self.top / "home"), "TMPDIR": str(self.top / "tmp")}
        return subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", "conformance.cli", "init", "mytwin"),
                *("--module", "strange_two", "--device-string", "twin", *self.options),
            ],
            cwd=self.top / "cwd",
            env=environment(self.cache, PYTHONPATH=f"{MODULES}:{CHECKOUT}", **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_interruptible,
        )

    def finish(self) -> str:
        """Let init run to its end. Returns what it printed."""
        process = self.start()
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        return printed

    def written(self) -> Mapping[str, str]:
        """The files that init is for."""
        return {each: (self.top / "cwd" / "mytwin" / each).read_text("utf-8") for each in _FILES}

    def elsewhere(self) -> list[str]:
        """What lies outside of init's folder."""
        found = (each.relative_to(self.top).as_posix() for each in self.top.rglob("*"))
        ours = ("cwd/mytwin", "cwd/mytwin/")
        return [each for each in found if not each.startswith(ours) and "/" in each]


def stop(process: subprocess.Popen[str], how: signal.Signals) -> str:
    """Send a signal to init and all that it has started; SIGTERM to init alone, which ends what it has started. Returns what
    was printed."""
    with suppress(ProcessLookupError):  # it has just ended
        if how is signal.SIGTERM:
            process.send_signal(how)
        else:
            os.killpg(process.pid, how)
    printed = process.communicate()[0]
    latest = time.monotonic() + 10
    while left := _alive_in(process.pid):
        assert time.monotonic() < latest, (
            f"{how.name}: processes that init started are left: {left}"
        )
        time.sleep(0.1)
    return printed


def _alive_in(group: int) -> list[str]:
    """The processes of a group that have not ended, as the kernel describes them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            text = path.read_text()
            state, _, its_group, *_ = text.rpartition(")")[2].split()
            if int(its_group) == group and state not in "ZX":
                found.append(text)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--ops", default="neg")
    options.add_argument("--cache", type=Path)
    asked = options.parse_args()
    top = Path(tempfile.mkdtemp(prefix="interrupted-"))
    cache, given = asked.cache or top / "cache", (f"--ops={asked.ops}",)
    whole, cut = (Place(top / name, cache, given) for name in ("whole", "cut"))
    began = time.monotonic()
    whole.finish()
    wanted, seconds = whole.written(), time.monotonic() - began
    print(
        f"without a kill: {seconds:.0f} s; elsewhere: {whole.elsewhere() or 'nothing'}", flush=True
    )
    draw, wrong = random.Random(asked.seed), len(whole.elsewhere())
    for number in range(1, asked.kills + 1):
        how = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT))
        process = cut.start()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=draw.uniform(0, 0.6 * seconds))
        printed = stop(process, how)
        last = printed.splitlines()[-1:] or ["nothing printed"]
        print(f"{number}: {how.name} after: {last[0][:120]}", flush=True)
        if "Traceback" in printed or "INTERNALERROR" in printed:
            wrong += 1
            print(printed, flush=True)
        if process.returncode == 0 or number == asked.kills:
            if process.returncode:
                cut.finish()
            if cut.written() != wanted:
                wrong += 1
                print("the files differ from those of an init that nobody killed", flush=True)
            shutil.rmtree(cut.top / "cwd" / "mytwin")
    left = [each for each in cut.elsewhere() if not each.startswith("tmp/")]
    print(f"elsewhere: {left or 'nothing'}; wrong: {wrong + len(left)}; folder: {top}", flush=True)
    return min(wrong + len(left), 1)


if __name__ == "__main__":
    sys.exit(main())
