"""Subprocesses that do what a device may do to them. Tests start them."""

from __future__ import annotations

import os
import signal
import time

import msgspec

from conformance.checks.child import Tell
from conformance.search.minimise.tasks import Answer, Orders, Task
from reports.model import Example


def serve(given: object, tell: Tell) -> None:
    """Do the tasks ``crash``, ``exit``, ``hang`` and ``print``; answer all others."""
    orders = msgspec.convert(given, Orders[Task])
    if orders.bench.device == "raise":
        raise RuntimeError("no such device")
    tell.ready()
    for task in orders.tasks:
        op = task.cell.op
        if op == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if op == "exit":
            os._exit(7)
        if op == "hang":
            time.sleep(600)
        if op == "print":
            print("noise " * 100_000)  # more than a pipe holds: nobody reads a backend's output
        example = Example(op, "contiguous", f"in {os.getpid()}")
        tell(msgspec.to_builtins(Answer(task, example, f"# {op}")))
