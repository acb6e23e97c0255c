"""Functions run at once, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from conformance.behaviour.judging import CheckFailed


def together(functions: Sequence[Callable[[], Any]], seconds: float) -> list[Any]:
    """Start all behind one barrier; their results in order.

    Raises what the first of them raised, and CheckFailed where one has not ended after ``seconds``
    (it is left behind: no thread can be stopped from outside).
    """
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException | None] = [None] * len(functions)
    barrier = threading.Barrier(len(functions))

    def run(place: int) -> None:
        try:
            barrier.wait(timeout=seconds)
            results[place] = functions[place]()
        except BaseException as error:  # told to the thread that waits
            errors[place] = error

    made = [
        threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(functions))
    ]
    for thread in made:
        thread.start()
    end = time.monotonic() + seconds
    for thread in made:
        thread.join(timeout=max(end - time.monotonic(), 0.0))
    for error in errors:
        if error is not None:
            raise error
    hanging = sum(thread.is_alive() for thread in made)
    if hanging:
        raise CheckFailed(f"{hanging} of {len(made)} threads had not ended after {seconds:g} s")
    return results
