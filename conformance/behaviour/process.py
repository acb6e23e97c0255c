"""A function in a process of its own: for what ends, forks or poisons one, or needs a fresh one.

The child is a fresh interpreter. It gets its orders on stdin and answers through a pipe of its own, so
that what a backend prints disturbs nobody; what it printed is kept.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Seconds that loading torch and opening the device may take, beside the limit of what is run.
START_SECONDS = 120.0

_START = """
import json, sys
orders = json.load(sys.stdin)
sys.path[:] = orders["path"]
if orders["loader"]:
    exec(compile(orders["loader"], "<loader>", "exec"))
    install(orders["sources"])
import importlib
importlib.import_module("conformance.behaviour.process").main(orders, int(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Where:
    """How a fresh process finds the device, and the modules of the check.

    ``sources`` and ``loader`` are set in a repro script alone: it brings its modules along.
    """

    device: str = ""  # a registered name
    path: str = ""  # or the path of a descriptor
    module: str = ""  # or the module that holds it, in a repro script
    sources: Mapping[str, str] = field(default_factory=dict)
    loader: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. ``returncode`` is negative for a signal, None where its time was over."""

    returncode: int | None
    printed: str
    answered: bool = False  # the function returned, or its check ended
    value: Any = None  # what it returned
    checks: int = 0
    failed: str = ""  # the check that failed there
    not_shown: str = ""
    not_in_flight: bool = False  # … because work was over too soon
    raised: str = ""  # "Type: message" of any other exception
    raised_type: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def how(self) -> str:
        """How it ended, for people."""
        if self.returncode is None:
            return "had not ended when its time was over"
        if self.returncode < 0:
            try:
                return f"was killed by {signal.Signals(-self.returncode).name}"
            except ValueError:
                return f"was killed by signal {-self.returncode}"
        return f"exited with status {self.returncode}"


def run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    where: Where,
    seed: str,
    environment: Mapping[str, str],
    seconds: float,
    patience: float = 50.0,
    fresh: bool = False,
) -> Ended:
    """Run ``function(context, *arguments)`` in a fresh process; see ``Context.child``."""
    orders = {
        "path": sys.path,
        "module": function.__module__,
        "function": function.__qualname__,
        "arguments": repr(arguments),
        "seed": seed,
        "patience": patience,
        "fresh": fresh,
        "device": where.device,
        "descriptor": where.path,
        "descriptor_module": where.module,
        "sources": dict(where.sources),
        "loader": where.loader,
    }
    return started(orders, environment, seconds)


def started(orders: Mapping[str, Any], environment: Mapping[str, str], seconds: float) -> Ended:
    """Start the process, and wait for its end or for that of its time."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(writer)],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            pass_fds=(writer,),
            env={**os.environ, **environment},
            start_new_session=True,
        )
        os.close(writer)
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(orders).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended at once: its status says how
            began, behind = _line(reader, b"", time.monotonic() + START_SECONDS)
            answer, _ = _line(reader, behind, time.monotonic() + seconds) if began else (b"", b"")
            # An answer does not end the wait: that a process exits cleanly may be what is judged.
            code = _end(process, seconds)
        finally:
            os.close(reader)
            _kill(process)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    told: dict[str, Any] = json.loads(answer) if answer else {}
    if told:
        told["value"] = ast.literal_eval(told["value"])
        told["answered"] = True
    return Ended(code, text, **told)


def _line(reader: int, held: bytes, end: float) -> tuple[bytes, bytes]:
    """The next line that the child tells, and what came behind it. The line is empty where the child ends
    without one, or the time does."""
    while b"\n" not in held:
        ready, _, _ = select.select([reader], [], [], max(end - time.monotonic(), 0.0))
        chunk = os.read(reader, 1 << 16) if ready else b""
        if not chunk:
            return b"", b""
        held += chunk
    line, _, behind = held.partition(b"\n")
    return line, behind


def _end(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started in its session."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- in the child


def main(orders: dict[str, Any], pipe: int) -> None:
    """Call the function with a context of its own, and tell what became of it."""
    from conformance.behaviour.context import Context
    from conformance.behaviour.judging import CheckFailed, NotInFlight, NotShown
    from opinfo.device import open_device

    where = Where(
        orders["device"],
        orders["descriptor"],
        orders["descriptor_module"],
        orders["sources"],
        orders["loader"],
    )
    opened = open_device(described(where), unused=orders["fresh"])
    context = Context(opened, orders["seed"], orders["patience"], where=where)
    function: Any = importlib.import_module(orders["module"])
    for part in orders["function"].split("."):
        function = getattr(function, part)
    told: dict[str, Any] = {"value": repr(None)}
    os.write(pipe, b"begun\n")  # from now on its own time runs
    try:
        told["value"] = repr(function(context, *ast.literal_eval(orders["arguments"])))
        ast.literal_eval(told["value"])
    except CheckFailed as error:
        told["failed"] = str(error) or "a check failed"
    except NotShown as error:
        told["not_shown"] = str(error)
        told["not_in_flight"] = isinstance(error, NotInFlight)
    except Exception as error:  # the parent's case says whether it should have been raised
        told |= {
            "value": repr(None),
            "raised": f"{type(error).__name__}: {error}",
            "raised_type": type(error).__name__,
        }
    told["checks"] = context.checks
    told["notes"] = context.notes
    with os.fdopen(pipe, "w") as stream:
        stream.write(json.dumps(told) + "\n")


def described(where: Where) -> Any:
    """The descriptor of the device. Raises ConformError where there is none."""
    if where.module:
        return importlib.import_module(where.module).DESCRIPTOR
    from pathlib import Path

    registry = importlib.import_module("devices.registry")
    return registry.load_file(Path(where.path)) if where.path else registry.get(where.device)
