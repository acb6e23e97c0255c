"""Runs functions of cases in subprocesses, alone or in a group of processes that work together, and returns their
results.

Repro scripts contain a copy of this module, so it imports only modules that they contain too.
"""

from __future__ import annotations

import base64
import importlib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.checks.cases.results import Result
from conformance.checks.child import Child, ChildLimits, ask
from conformance.checks.group import Group, Member, rendezvous
from devices.descriptor import Descriptor
from devices.failure import Kind

#: Seconds for loading torch and opening the device in a subprocess, in addition to the limit of the function.
START_SECONDS = 120.0

#: What a subprocess runs, in the suite; in a repro script, the function of the same name in ``__main__``.
_TARGET = "conformance.checks.cases.served:serve_case"


@dataclass(frozen=True, slots=True)
class DeviceLocator:
    """The location of the device's descriptor and of the modules that a check uses. A fresh process loads them from there."""

    device: str = ""  # a registered name
    path: str = ""  # or the path of a descriptor
    module: str = ""  # or the module that defines DESCRIPTOR, in a repro script
    script: str = ""  # the path of the repro script, which a fresh process runs

    def described(self) -> Descriptor:
        """Returns the descriptor of the device. Raises ConformError if it cannot be found."""
        if self.module:
            found = importlib.import_module(self.module).DESCRIPTOR
        else:
            registry = importlib.import_module("devices.registry")
            found = registry.load_file(Path(self.path)) if self.path else registry.get(self.device)
        assert isinstance(found, Descriptor)
        return found


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of a process in a group of ``count`` processes. ``rendezvous`` is the path of an empty file through
    which the processes find each other. ``tell`` sends a message to the parent process."""

    index: int
    count: int
    rendezvous: str
    tell: Callable[[Any], None] = print  # replaced in the process

    def reached(self, step: str) -> None:
        """Reports progress. Call it before each step that waits for other ranks: if the group takes too long, the ranks
        that made the fewest reports are to blame."""
        self.tell({"reached": step})


@dataclass(frozen=True, slots=True)
class Orders:
    """The task of a subprocess: a function, given by its module and its name, its arguments, and the values from which
    its context is built. If ``fresh`` is True, the device must not have been used before the function starts.
    ``memory`` limits the address space of the subprocess, if the device's tensors lie in the host's memory: it can grow
    by about this number of bytes; 0 means no limit."""

    module: str
    function: str
    arguments: tuple[Any, ...]
    where: DeviceLocator
    seed: str
    default: Kind = Kind.STATE
    patience: float = 50.0
    fresh: bool = False
    rank: Rank | None = None
    memory: int = 0


def _child(
    orders: Orders,
    seconds: float,
    first_time: Callable[[float], float],
    environment: Mapping[str, str] | None = None,
    copied: bool = False,
) -> Child:
    total = first_time(seconds)
    limits = ChildLimits(start=first_time(START_SECONDS), total=total, exit=total)
    script = orders.where.script
    return Child(
        target_of(_TARGET, script), packed(orders), limits, environment or {}, script, copied
    )


def target_of(target: str, script: str) -> str:
    """Returns the function that a subprocess calls, as ``module:function``: ``target`` itself in the suite, or its copy
    in the module ``__main__`` if ``script`` names a repro script."""
    return f"__main__:{target.partition(':')[2]}" if script else target


def in_process(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    where: DeviceLocator,
    seed: str,
    default: Kind = Kind.STATE,
    environment: Mapping[str, str] | None = None,
    seconds: float = 60.0,
    patience: float = 50.0,
    fresh: bool = False,
    spawned: bool = False,
    first_time: Callable[[float], float] = float,
    memory: int = 0,
) -> Result:
    """Runs ``function(context, *arguments)`` in a subprocess and returns its result; see ``CaseContext.child``.
    ``first_time`` is the descriptor's function of that name, which extends a time limit for the first use of the
    device. ``memory`` is that of a case.

    Waits until the process ends, even if the result has arrived, because a case may check that the process exits
    cleanly.
    """
    name = function.__qualname__
    about = (function.__module__, name, arguments, where, seed, default, patience)
    orders = Orders(*about, fresh=fresh, memory=memory)
    answer, ended = ask(_child(orders, seconds, first_time, environment, not spawned))
    result = Result() if answer is None else unpacked(answer)
    assert isinstance(result, Result)
    result.ended = ended
    return result


def in_processes(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    ranks: int,
    seconds: float,
    where: DeviceLocator,
    seed: str,
    default: Kind = Kind.STATE,
    patience: float = 50.0,
    first_time: Callable[[float], float] = float,
    lost: Sequence[int] = (),
) -> list[Result]:
    """Runs a function in several subprocesses and returns their results in order; see ``CaseContext.children``."""
    name = function.__qualname__
    orders = Orders(function.__module__, name, arguments, where, seed, default, patience=patience)
    with rendezvous() as path:
        children = [
            _child(replace(orders, rank=Rank(index, ranks, path)), seconds, first_time, copied=True)
            for index in range(ranks)
        ]
        return results_of(Group(children, is_result, has_failed, lost).run())


def results_of(members: Iterable[Member]) -> list[Result]:
    """Returns the results that the processes of a group sent, or a result that says how the process ended for one that
    sent none."""
    results = []
    for member in members:
        result = unpacked(member.answer) if member.answered else Result()
        result.ended, result.rank, result.behind = member.ended, member.rank, member.behind
        result.steps = len(member.messages) - member.answered
        results.append(result)
    return results


def is_result(message: Any) -> bool:
    return isinstance(message, str)


def has_failed(message: Any) -> bool:
    """Returns True if the message of a rank reports a failed check, or that nothing could be judged. A reported
    exception does not count, because the case may expect it from every rank."""
    result = unpacked(message)
    failed = result.failure is not None and not result.raised
    return failed or bool(result.not_shown or result.undeclared)


def packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
