"""allocator.pools: private pools, whose blocks are nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformance.allocator.judging import KIB, MIB, fresh, inside, known, span
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()


@contextmanager
def _from(context: Context, pool: Any) -> Iterator[None]:
    """Requests of this thread come from a pool, for a block."""
    with context.own("use_pool")(pool, 0):
        yield


@cases("allocator.pools", over={"small": (64 * KIB,), "large": (5 * MIB,)})
def nobody_elses(context: Context, size: int) -> None:
    """What is freed in a pool is given to nobody outside it, and serves the pool again."""
    fresh(context)
    pool = context.own("pool")()
    with _from(context, pool):
        block = context.bytes_of(size)
        place = span(block)
        del block
    outside = [context.bytes_of(size) for _ in range(3)]
    wrong = [span(each) for each in outside if inside(each, [place])]
    context.same(wrong, [], "no request outside the pool gets its memory")
    with _from(context, pool):
        again = context.bytes_of(size)
        context.check(inside(again, [place]), "a request in the pool gets it")
        del again
    del outside, pool
    fresh(context)


@cases("allocator.pools")
def takes_from_nobody(context: Context) -> None:
    """A pool is not served from what others freed, and its live tensors hold what they are given."""
    fresh(context)
    block = context.bytes_of(64 * KIB)
    place = span(block)
    del block
    pool = context.own("pool")()
    with _from(context, pool):
        mine = context.bytes_of(64 * KIB).copy_(known(64 * KIB, 4))
    context.check(not inside(mine, [place]), "a pool has memory of its own")
    other = context.bytes_of(64 * KIB).fill_(0)
    context.equal(mine, known(64 * KIB, 4), "a tensor of the pool keeps its bytes")
    del mine, other, pool
    fresh(context)


@cases("allocator.pools", requires={"allocator_statistics"})
def comes_back(context: Context) -> None:
    """After the death of a pool without live tensors, empty_cache returns its memory."""
    fresh(context)
    before = context.counters().reserved
    pool = context.own("pool")()
    with _from(context, pool):
        context.bytes_of(64 * KIB)
        context.bytes_of(5 * MIB)
    context.must(context.counters().reserved > before, "the pool has taken memory")
    del pool
    fresh(context)
    context.same(context.counters().reserved, before, "`reserved` is what it was before the pool")


@cases("allocator.pools", requires={"allocator_statistics"})
def lives_with_its_tensors(context: Context) -> None:
    """A tensor outlives its pool: its bytes stay, and its memory comes back behind it."""
    fresh(context)
    before = context.counters().reserved
    pool = context.own("pool")()
    with _from(context, pool):
        kept = context.bytes_of(64 * KIB).copy_(known(64 * KIB, 8))
    del pool
    fresh(context)
    for _ in range(4):
        context.bytes_of(64 * KIB).fill_(0)
    context.equal(kept, known(64 * KIB, 8), "the tensor keeps its bytes")
    del kept
    fresh(context)
    context.same(context.counters().reserved, before, "then its memory comes back")
