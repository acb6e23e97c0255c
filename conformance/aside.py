"""A process aside: work on the device that must not take the run with it when it crashes or hangs.

The process gets its orders as JSON on stdin and reports lines of JSON through a pipe of its own: what a
backend prints to stdout and stderr disturbs nobody.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from conformance.isolation import death_of
from devices.errors import ConformError

#: Seconds that the process may take to load torch and its op database, and to open the device.
START_SECONDS = 180.0

_START = """
import importlib, json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
importlib.import_module(given["module"]).main(given["orders"], int(sys.argv[1]))
"""

Tell = Callable[[dict[str, Any]], None]


class AsideDied(ConformError):
    """The process ended before it was done. ``how`` says in what way."""

    exit_code = 3

    def __init__(self, how: str, said: str) -> None:
        super().__init__(f"{how}{': ' + said if said else ''}")
        self.how = how


def teller(pipe: int) -> Tell:
    """What the process itself reports with."""
    stream = os.fdopen(pipe, "w", encoding="utf-8")

    def tell(document: dict[str, Any]) -> None:
        stream.write(json.dumps(document) + "\n")
        stream.flush()

    return tell


def reports_of(module: str, orders: dict[str, Any], silence: float) -> Iterator[dict[str, Any]]:
    """Start ``module.main(orders, pipe)`` in a fresh interpreter, and yield what it tells.

    It is killed where it is silent for more than ``silence`` seconds (START_SECONDS before its first
    line), and where this generator is closed. Raises AsideDied where it does not end by itself with
    status 0.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(writer)],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            pass_fds=(writer,),
        )
        os.close(writer)
        try:
            assert process.stdin is not None
            given = {"path": sys.path, "module": module, "orders": orders}
            try:
                process.stdin.write(json.dumps(given).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended at once: its status says how
            quiet = False
            for line in _lines(reader, silence):
                if line is None:
                    quiet = True
                    break
                yield json.loads(line)
            if quiet:
                process.kill()
                process.wait()
                raise AsideDied(f"was silent for {silence:g} s and was stopped", "")
            status = process.wait(timeout=60)
            if status:
                said.seek(0)
                text = said.read().decode(errors="replace").strip().splitlines()
                raise AsideDied(death_of(status), text[-1][:300] if text else "")
        finally:
            os.close(reader)
            if process.poll() is None:
                process.kill()
                process.wait()


def _lines(reader: int, silence: float) -> Iterator[str | None]:
    """Whole lines from a pipe until its end; None where nothing comes for too long."""
    held, patience = b"", START_SECONDS
    while True:
        deadline = time.monotonic() + patience
        while b"\n" not in held:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([reader], [], [], max(left, 0))
            if not ready:
                yield None
                return
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                return  # a line that was cut off belongs to the death
            held += chunk
        line, _, held = held.partition(b"\n")
        patience = silence
        yield line.decode()
