"""What the processes of a group do in the tests."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from conformance.checks.cases.context import CaseContext


def rank_of(context: CaseContext) -> int:
    assert context.rank is not None
    return context.rank.index


def joined(context: CaseContext) -> None:
    """Joins the group of all ranks."""
    rank = context.rank
    assert rank is not None
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(rank.rendezvous, rank.count),
        rank=rank.index,
        world_size=rank.count,
        timeout=timedelta(seconds=100),
    )
    rank.reached("group")


def adds_up(context: CaseContext, wrong: int = -1) -> float:
    """Sums the ranks, and checks the sum."""
    joined(context)
    total = torch.tensor([float(rank_of(context))])
    distributed.all_reduce(total)
    context.same(float(total) + (rank_of(context) == wrong), 6.0, "the sum of all ranks is wrong")
    distributed.destroy_process_group()
    return float(total)


def fails(context: CaseContext, how: str, who: int, folder: str) -> None:
    """One rank dies, hangs, raises or exits; the others wait for it."""
    Path(folder, str(os.getpid())).touch()
    joined(context)
    if rank_of(context) == who:
        if how == "dies":
            print("the last words", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "hangs":
            time.sleep(600)
        if how == "raises":
            raise RuntimeError("this rank has no such kernel")
        if how == "exits":
            os._exit(0)
    assert context.rank is not None
    context.rank.reached("barrier")
    distributed.barrier()


def dies_alone(context: CaseContext, who: int) -> None:
    """One rank dies; the others do not notice."""
    if rank_of(context) == who:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def refuses(context: CaseContext) -> None:
    """Every rank raises."""
    raise ValueError(f"refused by rank {rank_of(context)}")


def waits(context: CaseContext, folder: str) -> None:
    """Leaves its process id, and sleeps."""
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)


def names_itself(context: CaseContext) -> int:
    """Returns the id of the process."""
    context.check(context.rank, "the process has no place in the group")
    return os.getpid()


def fails_on(context: CaseContext, who: int) -> None:
    """A check fails on one rank."""
    context.check(rank_of(context) != who, "this rank is wrong")


def leaves_its_id(context: CaseContext, folder: str) -> None:
    """Leaves its process id."""
    Path(folder, str(os.getpid())).touch()
