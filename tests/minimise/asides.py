"""Processes aside that do what a device may do to them. Named by tests as modules."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from conformance.aside import teller


def main(orders: dict[str, Any], pipe: int) -> None:
    """Do the tasks: ``crash``, ``exit``, ``hang``, ``print``; answer all others."""
    tell = teller(pipe)
    if orders.get("start") == "raise":
        raise RuntimeError("no such device")
    for task in orders["tasks"]:
        tell({"what": "begin"})
        op = task["cell"][1]
        if op == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if op == "exit":
            os._exit(7)
        if op == "hang":
            time.sleep(600)
        if op == "print":
            print("noise " * 100_000)  # more than a pipe holds: nobody reads a backend's output
        example = {"call": op, "layout": "contiguous", "message": f"in {os.getpid()}"}
        tell({"what": "answer", "example": example, "script": f"# {op}", "why": ""})
