"""Cases about allocated blocks of memory: they do not overlap, they keep their bytes, and they are reused and
released, also when several threads allocate."""

from __future__ import annotations

from collections import ChainMap
from contextlib import suppress
from functools import partial
from random import Random

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    aligned,
    balanced,
    filled,
    fresh,
    given_back,
    has_statistics,
    inside,
    keeps,
    new_queue,
    overlapping,
    reset_totals,
    span,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_NOT_SPLIT = "the allocator did not split a free block, so there were no free blocks to merge"

#: The number of blocks after which a case stops waiting for the allocator to reserve a segment.
_MOST_BLOCKS = 64


def _sizes(context: CaseContext, count: int) -> list[int]:
    return [context.random.choice((1, 600, 4096, 4097, 70_000, MIB + 5)) for _ in range(count)]


@cases("allocator.disjoint")
def live_blocks(context: CaseContext) -> None:
    """Blocks of many sizes are allocated, some are freed, and more are allocated. No two live blocks share a
    byte."""
    fresh(context)
    with new_queue(context):
        blocks = [context.bytes_of(size) for size in _sizes(context, 40)]
        context.same(overlapping(blocks), [], "the address ranges of live blocks overlap")
        del blocks[::2]
        blocks += [context.bytes_of(size) for size in _sizes(context, 40)]
        context.same(
            overlapping(blocks),
            [],
            "the address ranges of live blocks overlap after other blocks were freed",
        )


@cases("allocator.disjoint")
def alignment(context: CaseContext) -> None:
    """The address of every block is a multiple of the alignment that the descriptor declares."""
    aligned(context, [context.bytes_of(size) for size in (1, 3, 513, 4097, 70_001, MIB + 5)])


@cases("allocator.disjoint", requires={"allocator_statistics"})
def nothing(context: CaseContext) -> None:
    """Creating tensors without elements changes neither the allocated nor the reserved bytes."""
    before = context.counters()
    empty = [torch.empty(shape, device=context.device) for shape in ((0,), (3, 0), (0, 2, 5))]
    context.same(sum(each.numel() for each in empty), 0, "a tensor of size 0 has elements")
    now = context.counters()
    context.same(now.allocated, before.allocated, "tensors without elements changed `allocated`")
    context.same(now.reserved, before.reserved, "tensors without elements changed `reserved`")


@cases("allocator.contents")
def kept_through_churn(context: CaseContext) -> None:
    """Live blocks keep their bytes while other blocks are allocated, split and freed around them."""
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
def kept_through_split(context: CaseContext) -> None:
    """A live block keeps its bytes when the free memory behind it is split into other blocks."""
    fresh(context)
    with new_queue(context):
        first = filled(context, 4 * KIB, 1)
        context.settle()
        others = [context.bytes_of(4 * KIB) for _ in range(8)]
        context.settle()
        keeps(context, first, 1, "the bytes of a block changed when the memory behind it was split")
        del others


@cases(
    "allocator.reuse",
    over={"small": (4 * KIB,), "under_a_mebibyte": (900 * KIB,), "large": (6 * MIB,)},
)
def same_size(context: CaseContext, size: int) -> None:
    """Eight times in a row, a block is freed and a block of the same size is allocated. Each time the freed block is
    reused, so the number of reserved bytes does not increase."""
    block = context.bytes_of(size)
    reserved = context.counters().reserved
    context.must(block.numel() == size, "the block does not have the requested size")
    del block
    for _ in range(8):
        block = context.bytes_of(size)
        context.same(
            context.counters().reserved,
            reserved,
            "allocating a block of the size that was just freed changed `reserved`",
        )
        del block


@cases("allocator.reuse")
def after_a_split(context: CaseContext) -> None:
    """A large block is freed, and a smaller request is served from its memory. The smaller block is freed, and a
    request of the original size is served. The number of reserved bytes does not increase."""
    fresh(context)
    with new_queue(context):
        block = context.bytes_of(8 * MIB)
        reserved = context.counters().reserved
        del block
        part, now = context.bytes_of(2 * MIB), context.counters().reserved
        context.check(
            now <= reserved,
            "a smaller request did not use the freed block: `reserved` grew",
            found=now,
        )
        del part
        block, now = context.bytes_of(8 * MIB), context.counters().reserved
        text = "a request of the original size did not use the freed block: `reserved` grew"
        context.check(now <= reserved, text, expected=reserved, found=now)
        del block


#: The orders in which four neighbouring blocks are freed.
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
def coalesced(context: CaseContext, order: tuple[int, ...]) -> None:
    """A large block is freed and split into four blocks, which are freed in one of several orders. The four free blocks
    are merged, so a request of the original size does not raise the reserved bytes."""
    fresh(context)
    with new_queue(context):
        whole = context.bytes_of(16 * MIB)
        place, reserved = span(whole), context.counters().reserved
        del whole
        parts: dict[int, torch.Tensor] = {n: context.bytes_of(4 * MIB) for n in range(4)}
        if context.counters().reserved != reserved or not all(
            inside(each, [place]) for each in parts.values()
        ):
            raise NotDeclared(_NOT_SPLIT)
        for number in order:
            del parts[number]
        whole, now = context.bytes_of(16 * MIB), context.counters().reserved
        context.same(
            now, reserved, "freed neighbours were not merged into one block: `reserved` grew"
        )
        del whole


@cases("allocator.reuse", requires={"pointers"})
def split_between_neighbours(context: CaseContext) -> None:
    """A large block is freed and split into three. The one in the middle is freed and half of it is allocated again, and the
    last one is freed. The other half and the last one are merged, so a request of their size does not raise the reserved
    bytes."""
    fresh(context)
    with new_queue(context):
        whole = context.bytes_of(16 * MIB)
        place, reserved = span(whole), context.counters().reserved
        del whole
        parts = {n: context.bytes_of(size * MIB) for n, size in enumerate((4, 8, 4))}
        places = [span(each) for each in parts.values()]
        fits = all(inside(each, [place]) for each in parts.values()) and places == sorted(places)
        del parts[1]
        half = context.bytes_of(4 * MIB)
        fits &= span(half)[0] == places[1][0]
        if not fits or context.counters().reserved != reserved:
            raise NotDeclared(_NOT_SPLIT)
        del parts[2]
        again, now = context.bytes_of(8 * MIB), context.counters().reserved
        text = "the rest of a block that was split and the freed block behind it were not merged: `reserved` grew"
        context.same(now, reserved, text)
        del again, half


@cases("allocator.empty_cache", over={"one": ((5 * MIB,),), "many": ((3000, 70_000, 5 * MIB, 9 * MIB),)})  # fmt: skip
def gives_back(context: CaseContext, sizes: tuple[int, ...]) -> None:
    """torch.accelerator.memory.empty_cache releases every segment that contains no live block: the reserved
    bytes return to their previous value."""
    with given_back(
        context,
        "empty_cache did not release all unused segments: `reserved` differs from its previous value",
    ) as before:
        with new_queue(context):
            blocks = [context.bytes_of(size) for size in sizes]
            # Free parts of segments that contain blocks of other cases may serve the first requests.
            while context.counters().reserved <= before and len(blocks) < _MOST_BLOCKS:
                blocks += [context.bytes_of(size) for size in sizes]
        context.must(
            context.counters().reserved > before,
            "allocating blocks did not increase the reserved bytes",
        )
        del blocks
        if context.counters().reserved <= before:
            context.note("the allocator releases segments as soon as their blocks are freed")


@cases("allocator.empty_cache", indices=2)
def of_every_index(context: CaseContext) -> None:
    """Blocks are freed on two device indices, and empty_cache is called while each of the two is current. The memory of
    both indices is released each time."""
    fresh(context)
    before = [context.counters(index).reserved for index in (0, 1)]
    for current in (0, 1):
        for index in (0, 1):
            context.bytes_of(5 * MIB, index)
        context.settle()
        with context.on(current):
            torch.accelerator.memory.empty_cache()
        after = [context.counters(index).reserved for index in (0, 1)]
        text = "empty_cache did not release the unused memory of index 0 and of index 1: `reserved` of the two differs from its previous value"
        context.same(after, before, text, at=f"index {current} is current")


@cases("allocator.empty_cache")
def keeps_live(context: CaseContext) -> None:
    """empty_cache does not affect live blocks: they keep their bytes, they are still counted in the allocated
    bytes, and their memory is not allocated again."""
    with new_queue(context):
        block = filled(context, 10_000, 3)
        context.bytes_of(6 * MIB)
        context.settle()
        allocated = context.counters().allocated
        torch.accelerator.memory.empty_cache()
        keeps(context, block, 3)
        context.same(
            context.counters().allocated,
            allocated,
            "empty_cache changed `allocated` although the block is live",
        )
        other = context.bytes_of(10_000)
        if context.has("pointers"):
            context.check(
                not inside(other, [span(block)]),
                "a new block overlaps a live block after empty_cache",
            )
        keeps(context, block, 3)


_THREADS, _STEPS = 8, 150


@cases("allocator.threads")
def counted(context: CaseContext) -> None:
    """Eight threads allocate and free blocks at the same time. Afterwards the allocated and active bytes are as
    before, and every allocation and every free is counted."""
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
    context.must(taken > _THREADS * _STEPS // 3, "the threads allocated fewer blocks than planned")
    context.same(
        now.allocated,
        before.allocated,
        "`allocated` did not return to its value after everything was freed",
    )
    if has_statistics(context, "allocation"):
        context.same(
            now["allocation.all.allocated"],
            taken,
            "the counted allocations differ from the number of allocations made",
        )
        context.same(
            now["allocation.all.freed"],
            taken,
            "the counted frees differ from the number of frees made",
        )
    if has_statistics(context, "active_bytes"):
        context.same(now.active, before.active, "freed blocks are still counted as active")
    balanced(context, now, reset)


@cases("allocator.threads", requires={"pointers"})
def nobody_shares(context: CaseContext) -> None:
    """Six threads allocate, fill and free blocks at the same time. No two live blocks overlap, and each live
    block keeps its bytes."""
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
    context.must(len(held) == 36, "the threads hold the wrong number of blocks")
    context.same(
        overlapping(held.values()),
        [],
        "the address ranges of live blocks of different threads overlap",
    )
    for seed, block in held.items():
        keeps(context, block, seed, "the bytes of a live block changed")


@cases("allocator.threads")
def freed_elsewhere(context: CaseContext) -> None:
    """Blocks are allocated by one thread and freed by four others. The allocated bytes return to their
    previous value."""
    before = context.counters()
    shelf = [context.bytes_of(5000) for _ in range(200)]
    context.must(
        context.counters().allocated > before.allocated,
        "allocating blocks did not raise `allocated`",
        by="allocator.accounting",
    )

    def free() -> None:
        with suppress(IndexError):
            while True:
                shelf.pop()

    context.together(free, free, free, free)
    context.same(
        context.counters().allocated,
        before.allocated,
        "`allocated` did not return to its value after all blocks were freed",
    )


@cases("allocator.threads")
def come_back(context: CaseContext) -> None:
    """Eight threads allocate and free blocks, each thread on its own stream. A following call of empty_cache
    releases all this memory: the reserved bytes are as before."""

    def work(seed: int) -> None:
        random = Random(seed)
        with new_queue(context):
            for _ in range(40):
                context.bytes_of(random.choice((300, 5000, 70 * KIB)))

    with given_back(
        context,
        "memory that threads freed was not released: `reserved` differs from its previous value",
    ) as before:
        context.together(*(partial(work, seed) for seed in range(_THREADS)))
        context.must(
            context.counters().reserved > before,
            "allocating in threads did not increase `reserved`",
        )
