"""What children do in the tests of ``conformance.checks.child``. Needs no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from conformance.checks.child import Tell


def answers(orders: Any, tell: Tell) -> None:
    print("noise " * 100_000)  # more than a pipe holds
    print("the last line", flush=True)
    torch: Any = sys.modules.get("torch")
    said = {"torch": torch is not None, "marked": hasattr(torch, "example")}
    said |= {"orders": orders, "pid": os.getpid(), "seen": os.environ.get("CONFORM_EXAMPLE")}
    tell({**said, "folder": os.getcwd(), "leads": os.getsid(0) == os.getpid()})


def counts(orders: int, tell: Tell) -> None:
    tell.ready()
    for number in range(orders):
        tell(number)


def raises(orders: Any, tell: Tell) -> None:
    raise RuntimeError("no such device")


def dies(orders: Any, tell: Tell) -> None:
    print("about to die", flush=True)
    tell("begun")
    os.kill(os.getpid(), signal.SIGSEGV)


def dies_with_a_fork_alive(orders: Any, tell: Tell) -> None:
    if os.fork() == 0:
        time.sleep(600)
    dies(orders, tell)


def hangs(orders: str, tell: Tell) -> None:
    if orders != "start":
        tell(os.getpid())
    while orders == "talking":
        tell("more")
        time.sleep(0.05)
    time.sleep(600)


def leaves_another(orders: Any, tell: Tell) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tell(other.pid)
    time.sleep(600)


def does_not_end(orders: Any, tell: Tell) -> None:
    tell("answered")
    time.sleep(600)


def speaks_once(orders: Any, tell: Tell) -> None:
    tell("begun")
    time.sleep(0.1)  # longer than a limit of 0
    tell("done")
