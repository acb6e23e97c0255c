"""Runs of ``conform`` that tests of recordings make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def conform(
    *arguments: str, folder: Path = ROOT, seconds: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``conform ARGUMENTS`` in a folder, by default the checkout. The output and the messages are apart."""
    return subprocess.run(
        [sys.executable, "-m", "conformance.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
