"""Ctrl-C and SIGTERM: a message at once, exit code 2, and results with which the run can be continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.plugin.running import CHECKOUT, LIMIT, environment

#: Each starts a run with workers, and waits for it.
pytestmark = pytest.mark.slow


def hears_sigint() -> None:
    """A shell that starts the tests in the background has SIGINT ignored, which a run would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def a_run_that_goes_on(folder: Path, cache: Path, workers: str) -> Iterator[subprocess.Popen[str]]:
    """A run of hundreds of cells, some of which have results when the block begins."""
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            f"-n={workers}",
            "--device=cpu",
            "--clauses=layout.*",
            f"--results={folder}",
            "--expectations=none",
        ],
        cwd=CHECKOUT,
        env=environment(cache),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=hears_sigint,
    )
    progress, until = folder / ".progress.jsonl", time.monotonic() + LIMIT
    try:
        while not (progress.is_file() and progress.read_bytes().count(b"\n") > 5):
            assert run.poll() is None and time.monotonic() < until, run.communicate()[0]
            time.sleep(0.1)
        yield run
    finally:
        run.kill()
        run.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_first_signal_stops_the_run_and_says_how_to_continue(
    tmp_path: Path, cache: Path, workers: str, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    with a_run_that_goes_on(folder, cache, workers) as run:
        run.send_signal(number)
        text, _ = run.communicate(timeout=LIMIT)
    assert "conformance: stopping; waiting for" in text and "press Ctrl-C again" in text
    assert run.returncode == 2 and "--resume" in text, text
    assert "Traceback" not in text and "INTERNALERROR" not in text, text
    assert (folder / ".progress.jsonl").is_file()


def test_the_second_signal_ends_the_run_at_once(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "run"
    with a_run_that_goes_on(folder, cache, "2") as run:
        run.send_signal(signal.SIGINT)
        for line in run.stdout or ():
            if "press Ctrl-C again" in line:
                break
        os.kill(run.pid, signal.SIGINT)
        text, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 2 and "--resume" in text, text
    assert "Traceback" not in text and (folder / ".progress.jsonl").is_file()
