"""Writes the calls of a program in the formats that torch itself writes, and in ours."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conformance.recordings.recorder import CallRecorder
from conformance.recordings.wire import Recording
from opinfo.torch_private import quiet_kineto

Program = Callable[[], Any]
EXAMPLES = Path(__file__).parents[3] / "examples" / "recordings"


def example(name: str) -> Program:
    """Returns the function ``main`` of a program in ``examples/recordings``."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program: Program = module.main
    return program


def recorded(program: Program) -> Recording:
    """Returns the recording of a program by ``conform record``."""
    recorder = CallRecorder()
    with recorder.recording_program():
        program()
    return recorder.recording()


def execution_trace(program: Program, path: Path) -> Path:
    """Writes the execution trace of a program. Returns the path."""
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    try:
        program()
    finally:
        observer.stop()
        observer.unregister_callback()
    return path


def kineto(program: Program, path: Path) -> Path:
    """Writes the trace of a profile of a program. Returns the path."""
    quiet_kineto()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        program()
    profile.export_chrome_trace(str(path))
    return path
