"""Subprocesses that do what a device may do to them. Tests start them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import msgspec

from conformance.checks.child import Tell
from conformance.search.minimise.tasks import Answer, Orders, Task
from reports.model import Example


def serve(given: object, tell: Tell) -> None:
    """Do the tasks ``crash``, ``exit``, ``hang`` and ``print``; answer all others.

    ``unwell!!`` crashes, too. After it the device cannot be opened as often as there are exclamation marks, which are kept
    in the file that the device is named after.
    """
    orders = msgspec.convert(given, Orders[Task])
    if orders.bench.device == "raise":
        raise RuntimeError("no such device")
    marks = Path(orders.bench.device)
    if marks.is_file() and (left := marks.read_text()):
        marks.write_text(left[1:])
        os.kill(os.getpid(), signal.SIGSEGV)
    tell.ready()
    for task in orders.tasks:
        op = task.cell.unit
        if op.startswith("unwell"):
            marks.write_text(op.removeprefix("unwell"))
        if op == "crash" or op.startswith("unwell"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if op == "exit":
            os._exit(7)
        if op == "hang":
            time.sleep(600)
        if op == "print":
            print("noise " * 100_000)  # more than a pipe holds: nobody reads a backend's output
        example = Example(op, "contiguous", f"in {os.getpid()}")
        tell(msgspec.to_builtins(Answer(task, example, f"# {op}")))
