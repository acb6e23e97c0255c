"""The blocks themselves: disjoint, kept, reused, returned, from many threads too."""

from __future__ import annotations

from collections import ChainMap
from contextlib import suppress
from functools import partial
from random import Random

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.allocator.memory import (
    KIB,
    MIB,
    aligned,
    balanced,
    filled,
    fresh,
    given_back,
    inside,
    keeps,
    kept,
    new_queue,
    overlapping,
    reset_totals,
    span,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

#: Blocks after which an allocator that takes no segment is given up.
_MOST_BLOCKS = 64


def _sizes(context: Context, count: int) -> list[int]:
    return [context.random.choice((1, 600, 4096, 4097, 70_000, MIB + 5)) for _ in range(count)]


@cases("allocator.disjoint")
def live_blocks(context: Context) -> None:
    """No two live blocks share a byte, whatever was freed between them."""
    fresh(context)
    with new_queue(context):
        blocks = [context.bytes_of(size) for size in _sizes(context, 40)]
        context.same(overlapping(blocks), [], "no two blocks overlap")
        del blocks[::2]
        blocks += [context.bytes_of(size) for size in _sizes(context, 40)]
        context.same(overlapping(blocks), [], "no two blocks overlap after others were freed")


@cases("allocator.disjoint")
def alignment(context: Context) -> None:
    """Every address keeps the declared alignment."""
    aligned(context, [context.bytes_of(size) for size in (1, 3, 513, 4097, 70_001, MIB + 5)])


@cases("allocator.disjoint", requires={"allocator_statistics"})
def nothing(context: Context) -> None:
    """A request of no bytes takes no memory."""
    before = context.counters()
    empty = [torch.empty(shape, device=context.device) for shape in ((0,), (3, 0), (0, 2, 5))]
    context.same(sum(each.numel() for each in empty), 0, "the tensors hold nothing")
    now = context.counters()
    context.same(now.allocated, before.allocated, "nothing is allocated for them")
    context.same(now.reserved, before.reserved, "nothing is reserved for them")


@cases("allocator.contents")
def kept_through_churn(context: Context) -> None:
    """Live blocks keep their bytes while others are taken, split and freed around them."""
    fresh(context)
    with new_queue(context):
        kept: dict[int, torch.Tensor] = {}
        passing: list[torch.Tensor] = []
        for step, size in enumerate(_sizes(context, 60)):
            if step % 3 == 0:
                kept[step] = filled(context, size, step)
            else:
                passing.append(context.bytes_of(size).fill_(255))
            if len(passing) > 5:
                passing.pop(context.random.randrange(len(passing)))
        del passing
        context.settle()
        for step, block in kept.items():
            keeps(context, block, step)


@cases("allocator.contents")
def kept_through_split(context: Context) -> None:
    """A block keeps its bytes when the one after it is split."""
    fresh(context)
    with new_queue(context):
        first = filled(context, 4 * KIB, 1)
        context.settle()
        others = [context.bytes_of(4 * KIB) for _ in range(8)]
        context.settle()
        keeps(context, first, 1, "the block keeps its bytes")
        del others


@cases(
    "allocator.reuse",
    over={"small": (4 * KIB,), "under_a_mebibyte": (900 * KIB,), "large": (6 * MIB,)},
)
def same_size(context: Context, size: int) -> None:
    """A freed block serves the next request of its size, again and again."""
    block = context.bytes_of(size)
    reserved = context.counters().reserved
    context.must(block.numel() == size, "the block was there")
    del block
    for _ in range(8):
        block = context.bytes_of(size)
        context.same(context.counters().reserved, reserved, "`reserved` does not grow")
        del block


@cases("allocator.reuse")
def after_a_split(context: Context) -> None:
    """A freed block serves a request of its size although a smaller one was cut from it in between."""
    fresh(context)
    with new_queue(context):
        block = context.bytes_of(8 * MIB)
        reserved = context.counters().reserved
        del block
        part, now = context.bytes_of(2 * MIB), context.counters().reserved
        context.check(now <= reserved, "the freed block serves a smaller one", found=now)
        del part
        block, now = context.bytes_of(8 * MIB), context.counters().reserved
        text = "and then a block of its original size again"
        context.check(now <= reserved, text, expected=reserved, found=now)
        del block


#: The orders in which four neighbours are freed: from either end, from the middle, and with gaps.
_ORDERS = {
    "first_to_last": (0, 1, 2, 3),
    "last_to_first": (3, 2, 1, 0),
    "from_the_middle": (1, 2, 0, 3),
    "with_gaps": (0, 2, 3, 1),
}


@cases(
    "allocator.reuse",
    requires={"pointers"},
    over={f"neighbours_{name}": (order,) for name, order in _ORDERS.items()},
)
def coalesced(context: Context, order: tuple[int, ...]) -> None:
    """Blocks that were cut from a larger one become that block again when they are freed, in any order."""
    fresh(context)
    with new_queue(context):
        whole = context.bytes_of(16 * MIB)
        place, reserved = span(whole), context.counters().reserved
        del whole
        parts: dict[int, torch.Tensor] = {n: context.bytes_of(4 * MIB) for n in range(4)}
        if context.counters().reserved != reserved or not all(
            inside(each, [place]) for each in parts.values()
        ):
            context.check(True, "the allocator does not cut small blocks from a large one")
            return
        for number in order:
            del parts[number]
        whole, now = context.bytes_of(16 * MIB), context.counters().reserved
        context.same(now, reserved, "the parts are one block again: `reserved` does not grow")
        del whole


@cases("allocator.empty_cache", over={"one": ((5 * MIB,),), "many": ((3000, 70_000, 5 * MIB, 9 * MIB),)})  # fmt: skip
def gives_back(context: Context, sizes: tuple[int, ...]) -> None:
    """Every segment without a live block goes back to the system."""
    with given_back(context, "`reserved` is what it was before") as before:
        with new_queue(context):
            blocks = [context.bytes_of(size) for size in sizes]
            # Free parts of segments that hold something of others may serve the first ones.
            while context.counters().reserved <= before and len(blocks) < _MOST_BLOCKS:
                blocks += [context.bytes_of(size) for size in sizes]
        context.must(context.counters().reserved > before, "segments were taken")
        del blocks
        if context.counters().reserved <= before:
            context.note("the allocator keeps no segment whose blocks are freed")


@cases("allocator.empty_cache")
def keeps_live(context: Context) -> None:
    """No live block is touched, and none is handed out again."""
    with new_queue(context):
        block = filled(context, 10_000, 3)
        context.bytes_of(6 * MIB)
        context.settle()
        allocated = context.counters().allocated
        torch.accelerator.memory.empty_cache()
        keeps(context, block, 3)
        context.same(context.counters().allocated, allocated, "it is still counted")
        other = context.bytes_of(10_000)
        if context.has("pointers"):
            context.check(not inside(other, [span(block)]), "no other block shares its bytes")
        keeps(context, block, 3)


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
        context.same(now.active, before.active, "no block is lost: no freed block is still active")
    balanced(context, now, reset)


@cases("allocator.threads", requires={"pointers"})
def nobody_shares(context: Context) -> None:
    """No two live blocks of different threads share a byte, and each keeps what it was given."""
    fresh(context)

    def work(thread: int) -> dict[int, torch.Tensor]:
        random, held = Random(thread), dict[int, torch.Tensor]()
        for seed in range(100 * thread, 100 * thread + 40):
            held[seed] = filled(context, random.choice((300, 5000, 70 * KIB)), seed)
            if len(held) > 6:
                del held[random.choice([*held])]
        return held

    held = ChainMap(*context.together(*(partial(work, thread) for thread in range(6))))
    context.settle()
    context.must(len(held) == 36, "every thread holds blocks")
    context.same(overlapping(held.values()), [], "no two blocks overlap")
    for seed, block in held.items():
        keeps(context, block, seed, "a block keeps its bytes")


@cases("allocator.threads")
def freed_elsewhere(context: Context) -> None:
    """A block may be freed by another thread than the one that took it."""
    before = context.counters()
    shelf = [context.bytes_of(5000) for _ in range(200)]
    context.must(
        context.counters().allocated > before.allocated,
        "the blocks were counted",
        by="allocator.accounting",
    )

    def free() -> None:
        with suppress(IndexError):
            while True:
                shelf.pop()

    context.together(free, free, free, free)
    context.same(context.counters().allocated, before.allocated, "`allocated` is as before")


@cases("allocator.threads")
def come_back(context: Context) -> None:
    """What eight threads have freed goes back to the system."""

    def work(seed: int) -> None:
        random = Random(seed)
        with new_queue(context):
            for _ in range(40):
                context.bytes_of(random.choice((300, 5000, 70 * KIB)))

    with given_back(context, "`reserved` is as before: no block is lost") as before:
        context.together(*(partial(work, seed) for seed in range(_THREADS)))
        context.must(context.counters().reserved > before, "segments were taken")
