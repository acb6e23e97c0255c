"""Prints what each task shows, to be looked at: ``python -m tests.transcripts``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.transcripts.scenario import play

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for task, screen in play(Path(scratch), dict(os.environ)):
            print(f"== {task.title}\n{screen}\n", flush=True)
