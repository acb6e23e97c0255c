"""Runs a Python program and records its calls: ``python -m conformance.recordings.launch OUTPUT VALUES PROGRAM …``.
``conform record`` starts this module instead of the program."""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any


def launch(output: Path, program: list[str], *, elements: bool) -> None:
    """Runs a program as ``python PROGRAM …`` does, and records its aten calls. ``program`` begins with a file, ``-m
    MODULE`` or ``-c CODE``. The recording is written to ``output`` when the program ends, even if it ends with an
    exception. With ``elements``, the elements of the tensors are recorded too."""
    from conformance.recordings.recorder import CallRecorder
    from conformance.recordings.wire import write_recording

    recorder = CallRecorder(elements=elements)

    def finish(_: str) -> None:
        write_recording(output, recorder.recording(command=" ".join(["python", *program])))

    run_to_end(program, recorder.recording_program(), finish)


def run_to_end(
    program: list[str], following: AbstractContextManager[Any], finish: Callable[[str], None]
) -> None:
    """Runs a program within the context ``following``, and calls ``finish`` once when it ends: after its last statement
    and the end of its threads, after an exception, on ``os._exit``, or on SIGTERM. The argument of ``finish`` is the
    reason if the program failed, otherwise an empty string. It is not called in processes that the program forks."""
    from devices.errors import in_a_line

    process, ends, before = os.getpid(), list[str](), threading.enumerate()

    def end(ended: str) -> None:
        if not ends and os.getpid() == process:
            ends.append(ended)
            finish(ended)

    ended = ""
    with _before_early_ends(end):
        try:
            with following:
                try:
                    run_program(program)
                finally:
                    _join_threads_but(before)
        except SystemExit as error:
            ended = _exit_text(error.code)
            raise
        except BaseException as error:
            ended = in_a_line(error)
            if sys.excepthook is sys.__excepthook__:
                sys.excepthook = _as_without_launcher
            raise
        finally:
            end(ended)


@contextmanager
def _before_early_ends(end: Callable[[str], None]) -> Iterator[None]:
    """Within the context, ``os._exit`` first calls ``end``, and SIGTERM raises SystemExit unless the program has its
    own handler for it."""
    original, process = os._exit, os.getpid()

    def leave(status: int) -> None:
        try:
            end(_exit_text(status))
        finally:
            original(status)

    def terminate(number: int, _: Any) -> None:
        if (
            os.getpid() != process
        ):  # a process that the program has forked ends as it would without us
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        sys.exit(128 + number)

    os._exit = leave  # type: ignore[assignment]
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        os._exit = original


def _as_without_launcher(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """Prints an exception as Python does that runs the program itself: without the frames that lead to the program."""
    last, each = None, frames
    while each is not None:
        if each.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            last = each
        each = each.tb_next
    shown = frames if last is None else last.tb_next
    sys.__excepthook__(kind, error.with_traceback(shown), shown)


def _exit_text(code: Any) -> str:
    if code is None or (isinstance(code, int) and code == 0):
        return ""
    return f"exit code {code if isinstance(code, int) else 1}"


def _join_threads_but(before: Collection[threading.Thread]) -> None:
    """Waits until the program's non-daemon threads have ended, as Python does at its exit. Their calls belong to the
    program; those of the threads that were there ``before`` do not."""
    for each in threading.enumerate():
        if each not in before and not each.daemon:
            each.join()


def run_program(program: list[str]) -> None:
    """Runs a program in this process as ``python PROGRAM …`` does: a file, ``-m MODULE`` or ``-c CODE``."""
    first, *rest = program
    if first == "-m":
        sys.argv = rest
        _add_to_path(os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        _add_to_path("")
        _run_main(compile(rest[0], "<string>", "exec"))
    else:
        sys.argv = [first, *rest]
        path = os.path.abspath(first)
        if os.path.isdir(path) or zipfile.is_zipfile(path):
            runpy.run_path(first, run_name="__main__")
            return
        _add_to_path(os.path.dirname(os.path.realpath(path)))
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec")
        _run_main(code, path)


def _add_to_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _run_main(code: Any, path: str = "") -> None:
    """Runs code in a new module ``__main__``, which stays in ``sys.modules`` until the process ends, because pickle and
    multiprocessing look up objects there."""
    main = ModuleType("__main__")
    if path:
        main.__file__ = path
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    # The current folder, which python -m adds, is not in the path of a script.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    launch(Path(sys.argv[1]), sys.argv[3:], elements=sys.argv[2] == "values")
