"""Measures the times of functions on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

#: The number of timed turns, and the least time of a turn in ns. A turn calls a function as often as needed.
_TURNS, _LEAST = 15, 200_000


def median_times(
    functions: Sequence[Callable[..., Any]], args: Any, kwargs: Any, wait: Callable[[], None]
) -> tuple[list[float], list[Any]]:
    """Returns the median time of a call of each function with the same arguments, in microseconds, and the last result of
    the first function in each turn. The functions are called alternately, so that a change of the machine's speed affects
    all of them. ``wait`` is called to wait until the device has finished."""
    counts = []
    for function in functions:
        count = 1
        while (took := _time(function, args, kwargs, wait, count)[0]) < _LEAST and count < 4096:
            count *= 2 if took * 4 > _LEAST else 4
        counts.append(count)
    times: list[list[float]] = [[] for _ in functions]
    results = []
    for _ in range(_TURNS):
        for place, (function, count) in enumerate(zip(functions, counts)):
            took, result = _time(function, args, kwargs, wait, count)
            times[place].append(took / count / 1000)
            if not place:
                results.append(result)
    return [sorted(each)[len(each) // 2] for each in times], results


def _time(
    function: Callable[..., Any], args: Any, kwargs: Any, wait: Callable[[], None], count: int
) -> tuple[int, Any]:
    """Returns the time of ``count`` calls in nanoseconds, and the result of the last one."""
    result = None
    wait()
    start = perf_counter_ns()
    for _ in range(count):
        result = function(*args, **kwargs)
    wait()
    return perf_counter_ns() - start, result
