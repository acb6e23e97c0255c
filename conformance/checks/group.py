"""Runs a group of subprocesses that work together, such as the ranks of a distributed program, under one time limit.
Returns the answer of each process, and, if the time limit was exceeded, says for which processes the others were
waiting.

As soon as one process has failed, the others get a short time to answer, because they may be waiting for the failed
process; then all are killed. The processes of a ``Pool`` stay after they have answered, for the next question. The
module imports only the standard library and ``conformance.checks.child``, because repro scripts contain it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.checks.child import Child, Ended

#: Seconds that the other processes get to answer after one has failed, and between two looks at their limits.
_GRACE, _LOOK = 2.0, 0.2

#: Tells something about a message of a process.
Tells = Callable[[Any], bool]


@dataclass(slots=True)
class Member:
    """The result of one process of a group. ``messages`` are the messages that the process sent. If ``answered`` is
    True, the last message is the ``answer`` of the process. ``behind`` is True if the time limit was exceeded while
    other processes were waiting for this one."""

    rank: int
    messages: list[Any] = field(default_factory=list)
    answered: bool = False
    ended: Ended = field(default_factory=lambda: Ended(None))
    behind: bool = False

    @property
    def answer(self) -> Any:
        return self.messages[-1] if self.answered else None

    @property
    def died(self) -> bool:
        """True if the process ended by itself, but not with status 0."""
        return self.ended.status not in (None, 0)


class Group:
    """Subprocesses that run at the same time. ``is_answer(message)`` says whether a message is the answer of a process,
    which is its last message; other messages show its progress. ``is_failure(message)`` says whether an answer means
    that the process has failed. The time limit of the children, ``limits.total``, counts from the moment in which all
    are ready. The processes ``lost`` are expected to end without an answer."""

    _stays = False  # True: a process that has answered does not end

    def __init__(
        self,
        children: Sequence[Child],
        is_answer: Tells,
        is_failure: Tells = lambda _: False,
        lost: Sequence[int] = (),
    ) -> None:
        self._children, self._is_answer, self._is_failure = children, is_answer, is_failure
        self._lost = lost
        self._members = [Member(rank) for rank in range(len(children))]

    def run(self) -> list[Member]:
        """Starts the subprocesses, waits until all have ended, and returns the result of each, in order.

        All subprocesses are ended as soon as one of them exceeds its limit, or a short time after one of them has
        failed. Raises ConformError if a subprocess cannot be started; the subprocesses that were started before are
        killed.
        """
        with contextlib.ExitStack() as started:
            for child in self._children:
                started.enter_context(child)
            self._wait(self._children[0].limits.total)
        for child, member in zip(self._children, self._members):
            member.ended = child.ended
        return self._members

    def _wait(self, seconds: float) -> None:
        running, end, all_ready = dict(enumerate(self._children)), math.inf, False
        while running and time.monotonic() < end:
            select.select([*running.values()], [], [], _LOOK)
            if self._hear(running):
                end = min(end, time.monotonic() + _GRACE)
            if not all_ready and all(child.ready for child in self._children):
                all_ready = True
                for child in running.values():
                    child.allow(seconds)
            if [rank for rank, child in running.items() if child.is_late()]:
                for rank in self._last(running):
                    self._members[rank].behind = True
                    running[rank].give_up()
                break
        for rank, child in running.items():
            if not self._members[rank].behind:
                child.give_up("was ended because another process of its group had failed")

    def _hear(self, running: dict[int, Child]) -> bool:
        """Receives new messages from the running processes, and removes processes that have ended from ``running``.
        Returns True if a process has failed."""
        failed = False
        for rank, child in list(running.items()):
            ready, member = child.ready, self._members[rank]
            messages = child.received()
            if child.ready and not ready:
                child.allow(math.inf)  # until all are ready
            for message in messages or ():
                member.messages.append(message)
                member.answered = bool(self._is_answer(message))
                failed |= member.answered and bool(self._is_failure(message))
            if self._stays and member.answered:
                del running[rank]
            elif messages is None:
                del running[rank]
                well = child.wait().well and member.answered
                failed |= not well and rank not in self._lost
        return failed

    def _last(self, running: Mapping[int, Child]) -> list[int]:
        """Returns the ranks of the processes for which the others wait: those that have not started, or, if all have
        started, those that have sent the fewest messages."""
        progress = {
            rank: (child.ready, len(self._members[rank].messages))
            for rank, child in running.items()
        }
        fewest = min(progress.values())
        return [rank for rank, reached in progress.items() if reached == fewest]


class Pool(Group):
    """Subprocesses that stay, and answer one question after another, until one of them fails to answer. They read the
    questions from their stdin."""

    _stays = True

    def start(self) -> None:
        """Starts the subprocesses. Raises ConformError if one cannot be started; those that were started are killed."""
        with contextlib.ExitStack() as started:
            for child in self._children:
                started.enter_context(child)
            self._started = started.pop_all()

    def ask(self, questions: Sequence[Any], seconds: float) -> list[Member]:
        """Sends each process its question, and returns the results in order. ``seconds`` is the time limit for all
        answers. All processes are ended if one has not answered."""
        self._members = [Member(rank) for rank in range(len(self._children))]
        for child, question in zip(self._children, questions):
            child.send(question)
        self._wait(seconds)
        whole = all(member.answered for member in self._members)
        if not whole:
            self.close()
        for child, member in zip(self._children, self._members):
            member.ended = Ended(0) if whole else child.ended
        return self._members

    @property
    def whole(self) -> bool:
        """True if all processes of the pool still run."""
        return all(child.running for child in self._children)

    def close(self) -> None:
        """Ends the processes."""
        self._started.close()

    def forget(self) -> None:
        """Drops the references to the processes without ending them. A forked process calls this, because the processes
        belong to its parent."""
        self._started.pop_all()


@contextlib.contextmanager
def rendezvous() -> Iterator[str]:
    """Yields the path of an empty file through which the processes of a group find each other, for
    ``torch.distributed.FileStore``. On Linux the file exists only in memory, and disappears with this process; on other
    systems it is in a temporary folder."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("conform-rendezvous")
        try:
            yield f"/proc/{os.getpid()}/fd/{file}"
        finally:
            os.close(file)
        return
    with tempfile.TemporaryDirectory(prefix="conform-") as folder:
        yield os.path.join(folder, "rendezvous")
