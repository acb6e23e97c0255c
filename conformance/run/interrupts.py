"""The handler of Ctrl-C (SIGINT) and SIGTERM. The first signal stops the run and prints a message at once; the second
signal ends the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

_ENDED: Final = "ended at once; run the same command with --resume to continue"


def listen(waits_for: Callable[[], str], kill: Callable[[], None]) -> None:
    """Installs the handler of SIGINT and SIGTERM, unless a handler other than Python's own is already installed.
    ``waits_for`` returns a text about what the run must wait for, such as "2 workers"; ``kill`` ends the workers.

    A CI job that is cancelled gets SIGTERM. The run of such a job ends like a run that the user interrupts, and can be
    resumed.
    """
    screen = os.dup(2)  # pytest redirects the descriptor itself while a test runs
    came = 0

    def say(text: str) -> None:
        # Not through Python's streams: the signal may have come while one of them was writing.
        os.write(screen, f"\nconformance: {text}\n".encode())

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came += 1
        if came > 1:
            kill()
            say(_ENDED)
            os._exit(2)  # as an interrupted run; what a worker leaves behind ends with this process
        say(f"stopping; waiting for {waits_for()} (press Ctrl-C again to end at once)")
        raise KeyboardInterrupt

    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == default:
            signal.signal(number, handle)
