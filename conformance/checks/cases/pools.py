"""Pools of processes that run one function of a case after another. Starting processes takes longer than most of these
functions, so the processes stay until one of them fails.

The module imports only what repro scripts contain.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from conformance.checks.cases.processes import (
    START_SECONDS,
    DeviceLocator,
    Orders,
    Rank,
    has_failed,
    is_result,
    packed,
    results_of,
    target_of,
)
from conformance.checks.cases.results import Result
from conformance.checks.child import Child, ChildLimits
from conformance.checks.group import Pool, rendezvous
from devices.failure import Kind

#: What each process of a pool runs; see ``target_of``.
_TARGET = "conformance.checks.cases.served:serve_cases"
#: Variables that pytest sets for each test.
_OF_PYTEST = "PYTEST_"


@dataclass(frozen=True, slots=True)
class _Running:
    """The pool of processes that this process has started. ``about`` has the settings for which it was started, such as
    the number of ranks. ``owner`` is the id of this process, because its forks must not use the pool. Closing ``kept``
    deletes the file at ``path``, through which the ranks find each other."""

    pool: Pool
    about: tuple[Any, ...]
    owner: int
    path: str
    kept: contextlib.ExitStack


_running: _Running | None = None


def in_pool(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    ranks: int,
    seconds: float,
    where: DeviceLocator,
    seed: str,
    default: Kind = Kind.STATE,
    patience: float = 50.0,
    first_time: Callable[[float], float] = float,
) -> list[Result]:
    """Runs a function in the processes of the pool and returns their results in order; see ``CaseContext.pooled``.
    Starts a new pool first if there is none with the right settings. Ends the pool if a process failed or raised an
    exception, because the state that it left might make the next case fail."""
    pool = _fitting_pool(ranks, where, first_time)
    name = function.__qualname__
    orders = Orders(function.__module__, name, arguments, where, seed, default, patience=patience)
    questions = [
        packed(replace(orders, rank=Rank(index, ranks, pool.path))) for index in range(ranks)
    ]
    results = results_of(pool.pool.ask(questions, first_time(seconds)))
    if not all(result.answered and result.passes for result in results):
        end_pool()
    return results


def end_pool() -> None:
    """Ends the pool of processes that this process has started, if there is one."""
    global _running
    if _running is not None and _running.owner == os.getpid():
        _running.pool.close()
        _running.kept.close()
    elif _running is not None:
        _running.pool.forget()
    _running = None


def _fitting_pool(
    ranks: int, where: DeviceLocator, first_time: Callable[[float], float]
) -> _Running:
    global _running
    about = (ranks, where, _environment(os.environ))
    fits = _running is not None and _running.owner == os.getpid() and _running.about == about
    if _running is None or not fits or not _running.pool.whole:
        end_pool()
        _running = _start(ranks, where, about, first_time)
    return _running


def _start(
    ranks: int,
    where: DeviceLocator,
    about: tuple[Any, ...],
    first_time: Callable[[float], float],
) -> _Running:
    limits = ChildLimits(start=first_time(START_SECONDS))
    target = target_of(_TARGET, where.script)
    children = [
        Child(target, packed(where), limits, {}, where.script, copied=True, stays=True)
        for _ in range(ranks)
    ]
    pool = Pool(children, is_result, has_failed)
    atexit.unregister(end_pool)
    atexit.register(end_pool)
    with contextlib.ExitStack() as kept:
        path = kept.enter_context(rendezvous())
        pool.start()
        return _Running(pool, about, os.getpid(), path, kept.pop_all())


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in variables.items() if not name.startswith(_OF_PYTEST)}
