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
    """Do the tasks ``crash``, ``exit``, ``hang`` and ``print``; answer all others. ``unwell!!`` crashes,
    and then the device, which is a file, cannot be opened as often as it has exclamation marks."""
    orders = msgspec.convert(given, Orders[Task])
    if orders.bench.device == "raise":
        raise RuntimeError("no such device")
    unwell = Path(orders.bench.device)
    if unwell.is_file() and (times := unwell.read_text()):
        unwell.write_text(times[1:])
        os.kill(os.getpid(), signal.SIGSEGV)
    tell.ready()
    for task in orders.tasks:
        op = task.cell.op
        if op.startswith("unwell"):
            unwell.write_text(op.removeprefix("unwell"))
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
