"""Runs a Python program and records its calls: ``python -m conformance.recordings.launch OUTPUT VALUES PROGRAM …``.
``conform record`` starts this module instead of the program."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def launch(output: Path, program: list[str], *, elements: bool) -> None:
    """Runs a program as ``python PROGRAM …`` does, and records it. ``program`` begins with a file, ``-m MODULE`` or
    ``-c CODE``. Writes the recording when the program ends, even if it ends with an exception."""
    from conformance.recordings.recorder import CallRecorder
    from conformance.recordings.wire import write_recording

    recorder = CallRecorder(elements=elements)
    try:
        with recorder.recording_program():
            run_program(program)
    finally:
        write_recording(output, recorder.recording(command=" ".join(["python", *program])))


def run_program(program: list[str]) -> None:
    """Runs a program in this process as ``python PROGRAM …`` does: a file, ``-m MODULE`` or ``-c CODE``."""
    first, *rest = program
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    sys.path.pop(0)  # the current folder, which python -m adds, is not in the path of a script
    launch(Path(sys.argv[1]), sys.argv[3:], elements=sys.argv[2] == "values")
