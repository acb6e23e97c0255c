"""Running the suite from tests: as a command of its own, or forked from a process that has torch loaded.

A run spends 6 s on loading torch and its op database and 2 s on planning. The tests of the command line
need two dozen runs, so that most are forked: the child is a whole process that calls ``pytest.main``.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from conformance.checks.clock import ends_within
from devices.cell import CellKey
from reports.run import CellResult, load_run

CHECKOUT = Path(__file__).resolve().parents[2]
_SERVER = Path(__file__).with_name("forkserver.py")
#: Seconds in which a command could run, before it is taken to hang.
LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished process: its exit status, and stdout and stderr together."""

    code: int
    text: str


def environment(cache: Path, **more: str) -> dict[str, str]:
    """This process' environment without what an outer pytest or a CI put there."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "GITHUB_"))
    }
    return {**inherited, "TORCH_CONFORMANCE_CACHE": str(cache), "COLUMNS": "200", **more}


def run_pytest(*arguments: str, cache: Path, **env: str) -> Ran:
    """``python -m pytest`` in the checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", *arguments],
        cwd=CHECKOUT,
        env=environment(cache, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1800,
    )
    return Ran(done.returncode, done.stdout)


class ForkServer:
    """A process with torch and its op database loaded, which forks one child for each request."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER)],
            cwd=CHECKOUT,
            env=environment(cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()  # it has nothing to finish, and unloading torch takes 2 s
        self._process.wait()

    def pytest(self, *arguments: str, workers: str | None = "0", **env: str) -> Ran:
        """``pytest ARGUMENTS`` in the checkout; nothing is minimised where that is not asked for, and without
        ``-n`` items run in the child itself (``workers`` None leaves that to the suite)."""
        quick = () if "--minimise" in arguments else ("--minimise", "0")
        if workers is not None and "-n" not in arguments:
            quick = (*quick, "-n", workers)  # a worker of its own would load torch again
        # The process has imported torch, and with it hypothesis, before pytest sees hypothesis' plugin.
        loaded = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")
        return self._ask("pytest", ["-p", "no:randomly", *loaded, *quick, *arguments], env)

    def script(self, path: Path, **env: str) -> Ran:
        """``python PATH``, with torch loaded already."""
        return self._ask("script", [str(path)], env)

    def _ask(self, kind: str, arguments: list[str], env: Mapping[str, str]) -> Ran:
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"kind": kind, "arguments": arguments, "env": dict(env)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the fork server ended with status {self._process.wait()}"
        code, text = json.loads(answer)
        return Ran(int(code), str(text))


@contextmanager
def only_one(root: Path, name: str) -> Iterator[None]:
    """Let one of several xdist workers of the outer run through at a time."""
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cells_of(folder: Path) -> dict[CellKey, CellResult]:
    """The cells that a run wrote down."""
    return dict(load_run(folder).results)


def run_conform(*arguments: str, cache: Path, cwd: Path = CHECKOUT, **env: str) -> Ran:
    """``conform ARGUMENTS``, in the checkout unless told otherwise."""
    command = [sys.executable, "-m", "conformance.cli", *arguments]
    with tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(cache, **env),
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        in_time = ends_within(child, LIMIT)
        if not in_time:
            child.kill()
        status = child.wait()
        printed.seek(0)
        text = printed.read()
    assert in_time, f"{command} had not ended after {LIMIT:g} s:\n{text}"
    return Ran(status, text)
