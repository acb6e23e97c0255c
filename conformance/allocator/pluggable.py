"""allocator.pluggable: an allocator of the user's own in place of the device's."""

from __future__ import annotations

from collections import Counter
from typing import Any

from conformance.allocator.judging import known, span
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()


@cases("allocator.pluggable", slow=True)
def sees_all(context: Context) -> None:
    """A plugged-in allocator sees every allocation and every free."""
    ended = context.child(_sees_all, fresh=True)
    context.check(ended.answered, f"the process ends well: it {ended.how}", got=ended.raised)


def _sees_all(context: Context) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    given: Counter[tuple[int, int]] = Counter()
    take_range, give_range = context.own("driver_alloc"), context.own("driver_free")

    def take(size: int, device: int, stream: int) -> int:
        address = int(take_range(size, device))
        taken[address, size] += 1
        return address

    def give(address: int, size: int, device: int, stream: int) -> None:
        given[address, size] += 1
        give_range(address, size)

    context.own("change_allocator")(context.own("pluggable")(take, give))
    sizes = (1, 700, 4096, 100_003, 3 * 2**20)
    blocks = [context.bytes_of(size) for size in sizes]
    context.same(taken.total(), len(sizes), "it is asked once for every block")
    seen = dict(taken.keys())
    for block, size in zip(blocks, sizes):
        asked = seen.get(span(block)[0], 0)
        context.check(asked >= size, "a block lies where the allocator said", got=asked)
    for seed, block in enumerate(blocks):
        block.copy_(known(block.numel(), seed))
    for seed, block in enumerate(blocks):
        context.equal(block, known(block.numel(), seed), "a block keeps its bytes")
    del block, blocks
    context.settle()
    context.same(sorted(given.elements()), sorted(taken.elements()), "it gets every block back")


@cases("allocator.pluggable")
def changed_after_use(context: Context) -> None:
    """Changing the allocator after its first use raises."""
    block = context.bytes_of(100)
    context.must(block.numel() == 100, "the allocator was used")
    context.raises(
        RuntimeError,
        lambda: context.own("change_allocator")(context.own("pluggable")(_none_left, _nothing)),
        text="changing the allocator raises",
    )
    again = context.bytes_of(100).copy_(known(100, 1))
    context.equal(again, known(100, 1), "the allocator serves on")


def _none_left(*_: Any) -> int:
    return 0


def _nothing(*_: Any) -> None:
    """What is given back is forgotten."""
