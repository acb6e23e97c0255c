"""allocator.accounting: bytes are counted when they are taken, and no more when they are given back."""

from __future__ import annotations

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

_MIB = 2**20
#: Around what allocators treat apart: nothing, less than a granule, small and large segments.
_SIZES = (1, 511, 512, 513, 4096, 100_000, _MIB - 1, _MIB + 1, 3 * _MIB)


@cases("allocator.accounting", over={f"{size}_bytes": (size,) for size in _SIZES})
def one_block(context: Context, size: int) -> None:
    """A block raises `allocated` by its bytes and at most one granule more, until it is freed."""
    context.bytes_of(size)  # a first use may take what it keeps
    before = context.counters()
    block = context.bytes_of(size)
    during = context.counters()
    context.must(block.numel() == size, "the block has the size that was asked for")
    rise = during.allocated - before.allocated
    context.check(
        size <= rise <= size + context.granularity,
        f"`allocated` rises by {size} bytes to a granule of {context.granularity} more",
        got=rise,
    )
    context.same(
        during.requested - before.requested, size, "`requested` counts the bytes asked for"
    )
    del block
    after = context.counters()
    context.same(after.allocated, before.allocated, "`allocated` is what it was when all is freed")
    context.same(after.requested, before.requested, "`requested` is what it was when all is freed")
