"""Cases about the memory events of a profile: the address, size and device index of each block that is allocated or
freed, and the op that allocated it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import record_function

from conformance.checks.behaviour.allocator_memory import fresh
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext, Counters
from conformance.suites.profiler.host_events import ones
from conformance.suites.profiler.recording import MemoryEvent, Recording
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

#: Bytes of tensors, small enough that an allocator rounds them up to its granularity only.
SIZES = (4096, 1000, 33, 20000, 4096)


class Memory(Recording):
    """A recording that also profiles memory."""

    def __init__(self, context: CaseContext, **options: Any) -> None:
        super().__init__(context, profile_memory=True, **options)

    def events(self, index: int | None = None) -> list[MemoryEvent]:
        """Returns the memory events of the device. Checks that there is at least one."""
        found = self.memory(self.context.kind, index)
        text = "the profile lists no memory events of the device"
        self.context.check(found, text, found=f"{len(self.trace)} events of other kinds")
        return found


def paired(context: CaseContext, events: Sequence[MemoryEvent]) -> dict[int, int]:
    """Returns the blocks that are still allocated after the events, as sizes in bytes by address. Checks that no
    address of an allocated block is allocated again, that each block is freed at the address and with the size of
    its allocation, and that each event changes the total of its index by its bytes."""
    _judge_steps(context, events)
    live: dict[int, int] = {}
    for event in events:
        if event.bytes > 0:
            text = "a profile lists an allocation at the address of a block that is still allocated"
            context.check(event.address not in live, text, found=event)
            live[event.address] = event.bytes
            continue
        text = "a profile lists a block that is freed at an address at which none was allocated"
        context.check(event.address in live, text, found=event)
        text = "a profile lists a block that is freed with another size than it was allocated with"
        context.same(-event.bytes, live.pop(event.address), text, at=f"address {event.address}")
    return live


def _judge_steps(context: CaseContext, events: Sequence[MemoryEvent]) -> None:
    """Checks that the total of allocated bytes changes from event to event by the bytes of the event, on each index."""
    totals: dict[int, int] = {}
    text = (
        "the total of allocated bytes in a memory event does not change by the bytes of the event"
    )
    for event in events:
        if event.index in totals:
            expected = totals[event.index] + event.bytes
            context.same(event.allocated, expected, text, at=f"index {event.index}")
        totals[event.index] = event.allocated


def fits(context: CaseContext, found: int, asked: Sequence[int], text: str) -> None:
    """Checks that ``found``, a number of bytes, is at least the sum of the sizes ``asked`` that a program requested;
    it may be larger by one allocation granule per block. ``text`` is the message of the failure."""
    least, most = sum(asked), sum(size + context.granularity for size in asked)
    context.check(least <= found <= most, text, expected=f"{least} to {most} bytes", found=found)


@cases("profiler.activity")
def freed_where_allocated(context: CaseContext) -> None:
    """In each of two profiles, every block that is freed is listed at the address and with the size of its allocation,
    and the other blocks stay allocated."""
    for _ in range(2):
        _judge_blocks(context)


def _judge_blocks(context: CaseContext) -> None:
    with Memory(context) as seen:
        blocks = [context.bytes_of(size) for size in SIZES]
        del blocks[1], blocks[2]
        blocks += [context.bytes_of(size) for size in SIZES[:3]]
        del blocks[0]
        context.settle()
    live = paired(context, seen.events())
    asked = [block.numel() for block in blocks]
    text = "the number of blocks that a profile lists as still allocated is wrong"
    context.same(len(live), len(asked), text, Kind.COUNT)
    addresses = {block.untyped_storage().data_ptr() for block in blocks}
    if context.has("pointers"):
        text = "the addresses that a profile lists as still allocated are not those of the tensors"
        context.same({*live}, addresses, text)
    fits(
        context,
        sum(live.values()),
        asked,
        ("the bytes that a profile lists as still allocated are not those of the tensors"),
    )


@cases("profiler.activity")
def of_intermediate_results(context: CaseContext) -> None:
    """The memory of intermediate results is listed as allocated and freed, so that the sum of all events is the memory
    of the results."""
    x = ones(context, 1000)
    with Memory(context) as seen:
        y = ((x * 2 + 1).exp() - x).relu()
        z = (y @ y).reshape(1)
        context.settle()
    events = seen.events()
    paired(context, events)
    allocations = sum(event.bytes > 0 for event in events)
    text = "a profile does not list the memory of intermediate results"
    context.check(allocations >= 5, text, expected="5 or more", found=allocations, kind=Kind.COUNT)
    asked = [t.untyped_storage().nbytes() for t in (y, z)]
    text = "the sum of the memory events is not the memory of the results"
    fits(context, sum(event.bytes for event in events), asked, text)


@cases("profiler.activity")
def charged_to_the_op(context: CaseContext) -> None:
    """An event of ``events()`` has the memory that its op allocated. A region has the memory that its ops allocated,
    minus the memory that was freed in the region."""
    x = ones(context, 1000)
    with Memory(context) as seen:
        with record_function("keeps"):
            y = x.mul(2)
            z = x.exp()
        with record_function("frees"):
            del y
        context.settle()
    own = "cpu_memory_usage" if context.kind == "cpu" else "device_memory_usage"
    usage = {event.name: getattr(event, own) for event in seen.host_functions}
    text = "the memory of an op or region in events() is not what it allocated"
    for name, asked in (("aten::mul", [4000]), ("aten::exp", [4000]), ("keeps", [4000, 4000])):
        fits(context, usage.get(name, 0), asked, text)
    text = "the memory of a region in events() does not include what was freed in it"
    fits(context, -usage.get("frees", 0), [4000], text)
    del z


@cases("profiler.activity", requires={"allocator_statistics"})
def as_the_allocator_counts(context: CaseContext) -> None:
    """In each of two profiles, on each device index, the bytes of the memory events sum up to the increase of the
    allocator's counter, and the totals of each event are the counters at the time of the event."""
    indices = [0, 1] if context.has("multi_device") and len(context.indices) > 1 else [0]
    for place in range(2):
        for index in indices:
            _judge_totals(context, index, f"index {index}, profile {place + 1}")


#: The sizes of the blocks that ``as_the_allocator_counts`` allocates, and by place in this list, which blocks it frees
#: after that allocation. The large block needs new memory: events after it have a larger total of reserved bytes.
_ALLOCATIONS = (4096, 1000, 3 * 2**20, 33, 20000, 4096)
_FREED_AFTER = {1: (0,), 3: (2,), 5: (4, 1)}


def _judge_totals(context: CaseContext, index: int, at: str) -> None:
    fresh(context)
    before = context.counters(index)
    with Memory(context) as seen:
        blocks, counted, addresses = dict[int, torch.Tensor](), list[Counters](), list[int]()
        for place, size in enumerate(_ALLOCATIONS):
            blocks[place] = context.bytes_of(size, index)
            counted.append(context.counters(index))
            addresses.append(blocks[place].untyped_storage().data_ptr())
            for freed in _FREED_AFTER.get(place, ()):
                addresses.append(blocks.pop(freed).untyped_storage().data_ptr())
                counted.append(context.counters(index))
        context.settle()
    events = seen.events(index)
    text = "the number of listed events differs from the number of allocations and frees"
    context.same(len(events), len(counted), text, Kind.COUNT, at=at)
    if context.has("pointers"):
        text = "the addresses that a profile lists are not those of the allocated and freed blocks"
        context.same([event.address for event in events], addresses, text, at=at)
    total = before.allocated
    for event, now in zip(events, counted, strict=True):
        total += event.bytes
        text = (
            "the bytes of the memory events do not sum up to the increase of the "
            "allocator's counter"
        )
        context.same(total, now.allocated, text, at=at)
        text = "the total of allocated bytes in a memory event differs from the allocator's counter"
        context.same(event.allocated, now.allocated, text, at=at)
        text = "the total of reserved bytes in a memory event differs from the allocator's counter"
        context.same(event.reserved, now.reserved, text, at=at)


@cases("profiler.activity", requires={"multi_device"}, indices=2)
def memory_on_its_index(context: CaseContext) -> None:
    """In each of two profiles, every allocation is listed on the device index that has the memory, whichever index is
    current."""
    for _ in range(2):
        _judge_memory_of_indices(context)


def _judge_memory_of_indices(context: CaseContext) -> None:
    with Memory(context) as seen:
        blocks = [context.bytes_of(size, index) for size in SIZES[:2] for index in (0, 1)]
        del blocks[:2]  # one on each index
        context.settle()
    text = "the memory events listed on an index are not those of that index"
    for index in (0, 1):
        events = seen.events(index)
        paired(context, events)
        counts = [sum(e.bytes > 0 for e in events), sum(e.bytes < 0 for e in events)]
        context.same(counts, [2, 1], text, Kind.DEVICE, at=f"index {index}")


@cases("profiler.activity")
def without_memory(context: CaseContext) -> None:
    """A profile without ``profile_memory`` lists no memory events, even right after a profile that did."""
    with Memory(context) as first:
        kept = context.bytes_of(SIZES[0])
        context.settle()
    with Recording(context) as second:
        other = torch.add(kept, 1)
        context.settle()
    first.events()
    listed = [event for event in second.trace if event.get("name") == "[memory]"]
    context.same(listed, [], "a profile without profile_memory lists memory events")
    del other
