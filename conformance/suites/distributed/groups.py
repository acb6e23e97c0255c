"""Creates and replaces the process group of a case's ranks.

Each process of a pool joins a group once and keeps it for later cases. If a rank refuses a call, all ranks leave the
group and join a new one, so that the next case has a group that works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.checks.cases.held_streams import SOON
from devices.failure import Kind

#: Seconds after which a collective gives up waiting for other ranks. On a sound device only a call that one rank alone
#: refuses takes so long.
TIMEOUT = 20.0
#: The exceptions by which a backend refuses a call.
REFUSALS = (RuntimeError, ValueError, TypeError)
#: How often a group is tried to be made. gloo may connect to an address of the group before, whose rank has just left.
_ATTEMPTS = 3
#: How many calls may have failed late on the device when one is refused.
_LATE_ERRORS = 64
#: What a rank tells the others if its call ended by the time limit.
_LATE = "timed out"


@dataclass
class Membership:
    """The state that a process of a pool keeps between cases: the path and the store through which the ranks find each
    other, the number of groups that the process has joined, and the number of texts that it has exchanged."""

    path: str
    store: Any
    joined: int = 0
    exchanged: int = 0


_here: Membership | None = None

distributed: Any = dist  # torch's stubs do not export the stores


def backend_of(context: CaseContext) -> str:
    """Returns the name of the process group backend that serves the device: the declared one, or else torch's default
    for the device type. The case fails if there is neither."""
    declared = context.descriptor.process_group
    if declared is not None:
        return declared.backend
    found = dist.Backend.default_device_backend_map.get(context.kind)
    context.must(found, "torch.distributed has no default backend for the device")
    return str(found)


@dataclass
class Ranks:
    """This process as one of the ranks of a case: its rank, and the process group of all ranks."""

    context: CaseContext
    membership: Membership

    @property
    def index(self) -> int:
        assert self.context.rank is not None
        return self.context.rank.index

    @property
    def count(self) -> int:
        assert self.context.rank is not None
        return self.context.rank.count

    @property
    def device_index(self) -> int:
        """The device index of this rank. Ranks share indices if there are more ranks than indices."""
        return self.index % len(self.context.indices)

    @property
    def device(self) -> torch.device:
        return self.context.named(self.device_index)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of a CPU tensor on the device of this rank."""
        return self.context.to_device(tensor, self.device_index)

    def begin(
        self, *, timeout: float = TIMEOUT, backend: str | None = "", turned: bool = False
    ) -> None:
        """Joins a new group of all ranks. ``backend`` is passed to init_process_group; if it is an empty string, the
        device's backend is used, and gloo for the CPU. ``timeout`` is the time limit of collectives in seconds. If
        ``turned``, the ranks of the group are in reverse order."""
        self.membership.joined += 1
        if backend == "":
            own = backend_of(self.context)
            backend = own if self.context.kind == "cpu" else f"cpu:gloo,{self.context.kind}:{own}"
        dist.init_process_group(
            backend,
            store=distributed.PrefixStore(f"group {self.membership.joined}", self.membership.store),
            rank=self.count - 1 - self.index if turned else self.index,
            world_size=self.count,
            timeout=timedelta(seconds=timeout),
        )

    def exchange(self, text: str = "") -> list[str]:
        """Sends ``text`` to all ranks, waits until all ranks have called this function, and returns their texts in the
        order of the ranks."""
        self.membership.exchanged += 1
        store, number = self.membership.store, self.membership.exchanged
        store.set(f"text-{number}-{self.index}", text)
        return [store.get(f"text-{number}-{rank}").decode() for rank in range(self.count)]

    def come_last(self, seconds: float = SOON) -> None:
        """Returns immediately on all ranks except the last. On the last rank, waits until all others have called
        this function, but at most ``seconds``. If ``wait()`` of a backend blocks the host, the others cannot call
        this function before the last rank takes part in the collective."""
        self.membership.exchanged += 1
        number = self.membership.exchanged
        keys = [f"ready-{number}-{rank}" for rank in range(self.count)]
        if self.index != self.count - 1:
            self.membership.store.set(keys[self.index], "")
            return
        with suppress(RuntimeError):
            self.membership.store.wait(keys[:-1], timedelta(seconds=seconds))

    def attempt(self, call: Callable[[], object]) -> str:
        """Makes a call that all ranks make. Returns the reason of the first rank whose call was refused; an empty
        string if no rank refused the call.

        After a refusal, all ranks leave the group and join a new one. If no rank refused the call but it reached the
        time limit, the check fails.
        """
        started, said = time.monotonic(), ""
        try:
            call()
            self.context.settle()
        except REFUSALS as error:
            late = time.monotonic() - started >= TIMEOUT
            said = _LATE if late else f"{type(error).__name__}: {error}"
            self.leave()  # the others notice
        texts = self.exchange(said)
        if not any(texts):
            return ""
        self._clear_late_errors()
        self.renew()
        refused = [text for text in texts if text not in ("", _LATE)]
        if not refused:
            text = "a collective that all ranks called did not end within the time limit"
            raise CheckFailed.of(
                Kind.STATE, text, expected="a result", found=f"{_LATE} after {TIMEOUT:g} s"
            )
        return refused[0]

    def _clear_late_errors(self) -> None:
        """Synchronises the device repeatedly until no error is raised any more, because each synchronisation may
        raise one error of a call that failed late on the device."""
        for _ in range(_LATE_ERRORS):
            try:
                self.context.settle()
            except REFUSALS:
                continue
            return

    def must_accept(self, call: Callable[[], object], text: str, at: str = "") -> None:
        """Makes a call that all ranks make, and fails the check with the message ``text`` if a rank refuses the
        call."""
        refused = self.attempt(call)
        self.context.check(not refused, text, expected="a result", found=refused, at=at)

    def renew(self, **options: Any) -> None:
        """Leaves the group of all ranks and joins a new one. ``options`` are those of ``begin``. All ranks must call
        this function."""
        for attempt in range(_ATTEMPTS):
            self.leave()
            self.exchange()  # nobody is in the old group, whose addresses may be used again
            said = ""
            try:
                self.begin(**options)
            except REFUSALS as error:
                said = f"{type(error).__name__}: {error}"
            if not any(texts := self.exchange(said)):
                return
            if attempt == _ATTEMPTS - 1:
                text = "a new group of all ranks could not be created"
                found = next(filter(None, texts))
                raise CheckFailed.of(Kind.RAISED, text, expected="a group", found=found)

    def leave(self) -> None:
        """Leaves the group of all ranks, if this rank is still in it."""
        with suppress(*REFUSALS):
            if dist.is_initialized():
                dist.destroy_process_group()


def join(context: CaseContext) -> Ranks:
    """Returns this process as one of the ranks. Joins the group of all ranks if this process is not in it."""
    ranks = find(context)
    if not dist.is_initialized():
        ranks.renew()
    return ranks


def find(context: CaseContext) -> Ranks:
    """Returns this process as one of the ranks, without joining a group."""
    global _here
    rank = context.rank
    assert rank is not None
    if _here is None or _here.path != rank.rendezvous:
        store = distributed.FileStore(rank.rendezvous, rank.count)
        store.set_timeout(timedelta(seconds=10 * TIMEOUT))
        _here = Membership(rank.rendezvous, store)
    ranks = Ranks(context, _here)
    if context.accelerated:
        torch.accelerator.set_device_index(ranks.device_index)
    return ranks


@contextmanager
def group_of_its_own(context: CaseContext, **options: Any) -> Iterator[Ranks]:
    """Yields the ranks in a new group of all ranks, which is created with the ``options`` of ``begin``. At the end, the
    ranks leave this group and are in no group."""
    ranks = find(context)
    ranks.renew(**options)
    try:
        yield ranks
    finally:
        ranks.leave()
