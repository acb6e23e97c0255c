"""Measures the largest memory (resident set) of a worker over plan quick with an empty reference cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.figures import Figure
from benchmarks.running import ROOT


def measured() -> Iterator[Figure]:
    peak = 0
    with tempfile.TemporaryDirectory() as scratch:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-n",
                "2",
                "--device",
                "cpu",
                f"--results={scratch}/results",
            ],
            cwd=ROOT,
            env={**os.environ, "TORCH_CONFORMANCE_CACHE": str(Path(scratch) / "cache")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        controller = psutil.Process(process.pid)
        while process.poll() is None:
            for child in controller.children(recursive=True):
                try:
                    peak = max(peak, child.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue  # the process ended after it was listed
            time.sleep(0.2)
    yield Figure("largest worker, MB", peak / 1e6, 600)
