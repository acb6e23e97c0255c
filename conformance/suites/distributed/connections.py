"""Connects two processes of a pool, so that tensors can be sent from one to the other in the way of
torch.multiprocessing."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_sharer
from multiprocessing.connection import Client, Connection, Listener
from typing import Any
from unittest import mock

from conformance.checks.cases.context import CaseContext
from conformance.checks.scratch import scratch_folder
from conformance.suites.distributed.groups import Ranks, find

#: Both processes prove with it that they belong together.
_KEY = b"conformance"
#: Seconds in which the thread that hands out file descriptors must end.
_STOP = 10.0


@contextlib.contextmanager
def socket_folder() -> Iterator[str]:
    """Creates a scratch folder and yields its path, which is short enough for the names of sockets."""
    with scratch_folder() as folder:
        if not os.path.isdir("/proc/self/fd"):
            yield folder
            return
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/{os.getpid()}/fd/{opened}"
        finally:
            os.close(opened)


@dataclass
class Peer:
    """One end of a connection between two processes: rank 0, which sends tensors, and rank 1, which receives them."""

    ranks: Ranks
    connection: Connection

    @property
    def context(self) -> CaseContext:
        return self.ranks.context

    @property
    def sends(self) -> bool:
        return self.ranks.index == 0

    def send(self, value: Any) -> None:
        self.connection.send(value)

    def receive(self) -> Any:
        return self.connection.recv()

    def turn(self) -> None:
        """Waits until both ranks have called this function and have finished the work that they queued before."""
        self.context.settle()
        self.ranks.exchange()


@contextlib.contextmanager
def connected(context: CaseContext, folder: str, *, together: bool = True) -> Iterator[Peer]:
    """Yields this process's end of a connection to the other rank. ``folder`` is for the files that multiprocessing
    needs. With ``together=False``, this process does not wait for the other one at the end."""
    ranks, process = find(context), multiprocessing.current_process()
    key, process.authkey = process.authkey, _KEY
    address = f"{folder}/ranks"
    with contextlib.ExitStack() as until_the_end:
        until_the_end.callback(setattr, process, "authkey", key)
        until_the_end.enter_context(
            mock.patch.object(multiprocessing.util, "get_temp_dir", return_value=folder)
        )
        until_the_end.callback(resource_sharer.stop, _STOP)
        if ranks.index == 0:
            listener = until_the_end.enter_context(Listener(address, authkey=_KEY))
            ranks.exchange()
            connection = listener.accept()
        else:
            ranks.exchange()
            connection = Client(address, authkey=_KEY)
        yield Peer(ranks, until_the_end.enter_context(connection))
        if together:
            ranks.exchange()  # the sender hands out descriptors until the receiver has all


def shared_with(context: CaseContext, function: Callable[..., None], *arguments: Any) -> None:
    """Runs ``function(context, folder, *arguments)`` in two processes of a pool. They can connect to each other through
    files in the folder."""
    with socket_folder() as folder:
        context.pooled(function, folder, *arguments, ranks=2)
