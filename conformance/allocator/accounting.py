"""allocator.accounting: bytes are counted when they are taken, and no more when they are given back."""

from __future__ import annotations

from conformance.allocator.judging import KIB, MIB, granule, kept
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.memory import Counters

cases = Cases()

#: Around what allocators treat apart: less than a granule, small and large segments, segments of their own.
_SIZES = {
    "one_byte": 1,
    "under_a_granule": 511,
    "a_granule": 512,
    "over_a_granule": 513,
    "a_page": 4 * KIB,
    "uneven": 100_003,
    "under_a_mebibyte": MIB - 1,
    "over_a_mebibyte": MIB + 1,
    "three_mebibytes": 3 * MIB,
    "eleven_mebibytes": 11 * MIB,
}


@cases("allocator.accounting", over={name: (size,) for name, size in _SIZES.items()})
def one_block(context: Context, size: int) -> None:
    """A block raises `allocated` by its bytes and at most one granule more, until it is freed."""
    context.bytes_of(size)  # a first use may take what it keeps
    before = context.counters()
    block = context.bytes_of(size)
    during = context.counters()
    context.must(block.numel() == size, "the block has the size that was asked for")
    rise, more = during.allocated - before.allocated, granule(context, size)
    context.check(
        size <= rise <= size + more,
        f"{size} bytes raise `allocated` by at most {more} more",
        got=rise,
    )
    if kept(context, "requested_bytes"):
        asked = during.requested - before.requested
        context.same(asked, size, "`requested` counts the bytes asked for")
    del block
    _as_before(context, before)


@cases("allocator.accounting")
def many_blocks(context: Context) -> None:
    """Blocks of many sizes, freed in another order, are counted one by one."""
    before = context.counters()
    sizes = [context.random.randrange(1, 256 * KIB) for _ in range(64)]
    blocks = {place: context.bytes_of(size) for place, size in enumerate(sizes)}
    during = context.counters()
    rise, most = during.allocated - before.allocated, sum(s + granule(context, s) for s in sizes)
    context.check(sum(sizes) <= rise <= most, "`allocated` rises by their bytes", got=rise)
    left, asked = list(blocks), sum(sizes)
    context.random.shuffle(left)
    for place in left:
        earlier = context.counters().allocated
        del blocks[place]
        asked -= sizes[place]
        now = context.counters()
        fall = earlier - now.allocated
        context.check(fall >= sizes[place], "a free takes its bytes off `allocated`", got=fall)
        if kept(context, "requested_bytes"):
            context.same(now.requested - before.requested, asked, "`requested` follows each free")
    _as_before(context, before)


@cases("allocator.accounting")
def views(context: Context) -> None:
    """A view takes no memory, and the block lives as long as its last view."""
    before = context.counters()
    block = context.bytes_of(8 * KIB)
    during = context.counters()
    context.must(during.allocated > before.allocated, "the block was counted")
    view = block[17:4000]
    context.same(context.counters().allocated, during.allocated, "a view takes no memory")
    del block
    context.same(context.counters().allocated, during.allocated, "the view keeps its block alive")
    del view
    _as_before(context, before)


def _as_before(context: Context, before: Counters) -> None:
    now = context.counters()
    context.same(now.allocated, before.allocated, "`allocated` is as before when all is freed")
    if kept(context, "requested_bytes"):
        context.same(now.requested, before.requested, "`requested` is as before when all is freed")
