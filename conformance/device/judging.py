"""What several modules of the device suite ask."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from conformance.behaviour.context import Context
from conformance.behaviour.judging import CheckFailed, NotShown

FORK_SECONDS = 8.0
SCRIPT_SECONDS = 180.0


def is_accelerator(context: Context) -> bool:
    """Whether ``torch.accelerator`` serves this device."""
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == context.kind


def counted(context: Context) -> int:
    """How many devices there are, as torch says where it does; else as declared."""
    if is_accelerator(context):
        return torch.accelerator.device_count()
    module: Any = getattr(torch, context.kind, None)
    count = getattr(module, "device_count", None)
    return int(count()) if count is not None else context.descriptor.device_count()


def computes(device: torch.device) -> list[float]:
    """A tiny op on a device, read back."""
    x = torch.tensor([1.0, 2.0, 3.0], device=device)
    return list((x * 2 + 1).tolist())


def forked(function: Callable[[], str]) -> str:
    """What a function says in a fork of this process: ``returned TEXT``, ``raised TYPE: TEXT``, or how the child
    ended without a word. Nothing of the child's but the function is run."""
    if not hasattr(os, "fork"):
        raise NotShown("this system has no fork")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads: the child runs one function
        child = os.fork()
    if child == 0:
        try:
            try:
                text = f"returned {function()}"
            except BaseException as error:
                text = f"raised {type(error).__name__}: {error}"
            os.write(writer, text.encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], FORK_SECONDS)
    said = os.read(reader, 4000).decode(errors="replace") if ready else ""
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        return said
    return f"hung for {FORK_SECONDS:g} s" if not ready else f"ended with status {status}"


def fresh(code: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What a program prints as JSON in its last line, run by a fresh interpreter that has imported nothing.

    Raises CheckFailed where it fails or is not done in time.
    """
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**given, **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SCRIPT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        seconds = time.monotonic() - started
        raise CheckFailed(f"a fresh process had not ended after {seconds:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1][:300]
        raise CheckFailed(f"a fresh process ended with status {done.returncode}: {last}")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def preparation(context: Context) -> str:
    """Source that imports the device's module, and nothing more."""
    module = context.descriptor.module
    return "import torch\n" + (f"import {module}\n" if module else "")


def beginning(context: Context) -> str:
    """Source of what is to be called before the device is used; ``pass`` where nothing is."""
    descriptor = context.descriptor
    return f"{descriptor.module}.{descriptor.init}()" if descriptor.init else "pass"
