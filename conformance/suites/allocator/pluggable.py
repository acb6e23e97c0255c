"""Cases of the clause allocator.pluggable: the allocation functions of a user take the place of the allocator."""

from __future__ import annotations

from collections import Counter

from conformance.checks.behaviour.allocator_memory import (
    MIB,
    filled,
    keeps,
    known,
    span,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


@cases("allocator.pluggable", requires={"pointers"}, slow=True)
def sees_all(context: CaseContext) -> None:
    """After change_current_allocator, the user's functions are called for every allocation and every free,
    blocks are at the addresses that the allocation function returned, and the process exits with status 0."""
    context.ended_well(
        context.child(_sees_all, fresh=True),
        "the process with a pluggable allocator did not exit with status 0",
    )


def _sees_all(context: CaseContext) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    given: Counter[tuple[int, int]] = Counter()
    # By address: the device and the stream that the functions were called with.
    taken_for: dict[int, tuple[int, int]] = {}
    given_for: dict[int, tuple[int, int]] = {}
    take_range, give_range = context.own("driver_alloc"), context.own("driver_free")

    def take(size: int, device: int, stream: int) -> int:
        address = int(take_range(size, device))
        taken[address, size] += 1
        taken_for[address] = device, stream
        return address

    def give(address: int, size: int, device: int, stream: int) -> None:
        given[address, size] += 1
        given_for[address] = device, stream
        give_range(address, size)

    change, pluggable = context.own("change_allocator"), context.own("pluggable")
    change(pluggable(take, give))
    sizes = (1, 700, 4096, 100_003, 3 * MIB)
    blocks = [context.bytes_of(size) for size in sizes]
    context.same(
        taken.total(),
        len(sizes),
        "the number of calls of the allocation function differs from the number of blocks",
    )
    seen, text = (
        dict(taken.keys()),
        "the allocation at the block's address is missing or has fewer bytes than the block",
    )
    for block, size in zip(blocks, sizes):
        asked = seen.get(span(block)[0], 0)
        context.check(asked >= size, text, found=asked)
    for seed, block in enumerate(blocks):
        block.copy_(known(block.numel(), seed))
    for seed, block in enumerate(blocks):
        keeps(context, block, seed, "the bytes of a block of a pluggable allocator changed")
    _told_where(context, taken_for)
    del block, blocks
    context.settle()
    context.same(
        sorted(given.elements()),
        sorted(taken.elements()),
        "the pairs (address, size) that the free function received differ from those that were allocated",
    )
    text = "the free function received another device or stream than the allocation function for a block"
    wrong = {each: given_for[each] for each in given_for if given_for[each] != taken_for[each]}
    context.same(wrong, {}, text)
    text = "changing the allocator after a pluggable one was used did not raise RuntimeError"
    context.raises(RuntimeError, lambda: change(pluggable(take, give)), text=text)


def _told_where(context: CaseContext, taken_for: dict[int, tuple[int, int]]) -> None:
    """Checks that the allocation function of a user is called with the device index of each block and with the stream
    that is current. ``taken_for`` has the device and the stream of each call, by the address that it returned."""
    text = "the allocation function was not called with the device index of the block"
    for index in context.indices:
        block = context.bytes_of(700, index)
        context.same(taken_for[span(block)[0]][0], index, text)
    if context.has("streams") and context.has("native_handle"):
        stream = context.stream()
        with stream:
            block = context.bytes_of(700)
        text = "the allocation function was not called with the native handle of the current stream"
        context.same(taken_for[span(block)[0]][1], stream.native_handle, text)


@cases("allocator.pluggable")
def changed_after_use(context: CaseContext) -> None:
    """change_current_allocator raises RuntimeError once memory has been allocated, and the current allocator
    keeps working."""
    block = context.bytes_of(100)
    context.must(block.numel() == 100, "the block does not have the requested size")
    change, pluggable = context.own("change_allocator"), context.own("pluggable")
    text = "changing the allocator after its first use did not raise RuntimeError"
    context.raises(
        RuntimeError, lambda: change(pluggable(lambda *_: 0, lambda *_: None)), text=text
    )
    keeps(
        context,
        filled(context, 100, 1),
        1,
        "a block has wrong bytes after the refused change of the allocator",
    )
