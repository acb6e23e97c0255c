"""allocator.threads: many threads take and free memory at once."""

from __future__ import annotations

from functools import partial
from random import Random

import torch

from conformance.allocator.judging import (
    KIB,
    balanced,
    fresh,
    kept,
    known,
    new_queue,
    overlapping,
    reset_totals,
)
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

_THREADS, _STEPS = 8, 150


@cases("allocator.threads")
def counted(context: Context) -> None:
    """The counters are right after eight threads took and freed at once."""
    before = context.counters()
    reset = reset_totals(context)

    def work(seed: int) -> int:
        random, taken = Random(seed), 0
        held: list[torch.Tensor] = []
        for _ in range(_STEPS):
            if held and random.random() < 0.5:
                held.pop(random.randrange(len(held)))
            else:
                held.append(context.bytes_of(random.choice((300, 5000, 70 * KIB))))
                taken += 1
        return taken

    taken = sum(context.together(*(partial(work, seed) for seed in range(_THREADS))))
    now = context.counters()
    context.must(taken > _THREADS * _STEPS // 3, "the threads took blocks")
    context.same(now.allocated, before.allocated, "`allocated` is as before when all is freed")
    if kept(context, "allocation"):
        context.same(now["allocation.all.allocated"], taken, "every request was counted once")
        context.same(now["allocation.all.freed"], taken, "every free was counted once")
    if kept(context, "active_bytes"):
        context.same(now.active, before.active, "no block is lost: none is active that was freed")
    balanced(context, now, reset)


@cases("allocator.threads", requires={"storage"})
def nobody_shares(context: Context) -> None:
    """No two live blocks of different threads share a byte, and each keeps what it was given."""
    fresh(context)

    def work(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        random = Random(seed)
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(40):
            size = random.choice((300, 5000, 70 * KIB))
            want = known(size, seed * 100 + step)
            held.append((context.bytes_of(size).copy_(want), want))
            if len(held) > 6:
                held.pop(random.randrange(len(held)))
        return held

    pairs = [p for each in context.together(*(partial(work, s) for s in range(6))) for p in each]
    context.settle()
    context.must(len(pairs) == 36, "every thread holds blocks")
    context.same(overlapping(block for block, _ in pairs), [], "no two blocks overlap")
    for block, want in pairs:
        context.equal(block, want, "a block keeps its bytes")


@cases("allocator.threads")
def freed_elsewhere(context: Context) -> None:
    """A block may be freed by another thread than the one that took it."""
    before = context.counters()
    shelf: list[torch.Tensor] = [context.bytes_of(5000) for _ in range(200)]
    context.must(context.counters().allocated > before.allocated, "the blocks were counted")

    def free() -> None:
        while shelf:
            try:
                shelf.pop()
            except IndexError:
                return

    context.together(free, free, free, free)
    context.same(context.counters().allocated, before.allocated, "`allocated` is as before")


@cases("allocator.threads")
def come_back(context: Context) -> None:
    """What eight threads have freed goes back to the system."""
    fresh(context)
    before = context.counters().reserved

    def work(seed: int) -> None:
        random = Random(seed)
        with new_queue(context):
            for _ in range(40):
                context.bytes_of(random.choice((300, 5000, 70 * KIB)))

    context.together(*(partial(work, seed) for seed in range(_THREADS)))
    context.must(context.counters().reserved > before, "segments were taken")
    fresh(context)
    context.same(context.counters().reserved, before, "`reserved` is as before: no block is lost")
