"""Cases about memory events of a profile: where blocks are allocated and freed, how many bytes, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.profiler import record_function

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.profiler.host_events import ones
from conformance.suites.profiler.recording import MemoryEvent, Recording
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

#: Bytes of tensors, small enough that an allocator rounds them up to its granularity only.
SIZES = (4096, 1000, 33, 20000, 4096)


class Memory(Recording):
    """A recording with memory events."""

    def __init__(self, context: CaseContext, **options: Any) -> None:
        super().__init__(context, profile_memory=True, **options)

    def events(self, index: int | None = None) -> list[MemoryEvent]:
        """Returns the events of the device's memory. Checks that there are some."""
        found = self.memory(self.context.kind, index)
        text = "the profile lists no memory of the device"
        self.context.check(found, text, found=f"{len(self.trace)} events of other kinds")
        return found


def paired(context: CaseContext, events: Sequence[MemoryEvent]) -> dict[int, int]:
    """Returns the bytes of what lives after some events, by address. Checks that no live block is handed out again, and that
    each block is freed at its address and with its bytes."""
    live: dict[int, int] = {}
    for event in events:
        if event.bytes > 0:
            text = "a profile shows that memory is allocated at the address of a live block"
            context.check(event.address not in live, text, found=event)
            live[event.address] = event.bytes
            continue
        text = "a profile shows that a block is freed at an address at which none was allocated"
        context.check(event.address in live, text, found=event)
        text = "a profile shows that a block is freed with other bytes than it was allocated with"
        context.same(-event.bytes, live.pop(event.address), text, at=f"address {event.address}")
    return live


def fits(context: CaseContext, found: int, asked: Sequence[int], text: str) -> None:
    """Checks a number of bytes: those that were asked for, each block rounded up by at most a granule."""
    least, most = sum(asked), sum(size + context.granularity for size in asked)
    context.check(least <= found <= most, text, expected=f"{least} to {most} bytes", found=found)


@cases("profiler.activity")
def freed_where_allocated(context: CaseContext) -> None:
    """Each block is freed at the address at which it was allocated, and with the same bytes. The others live. So it is in a
    second profile."""
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
    text = "a profile does not show the blocks that live"
    context.same(len(live), len(asked), text, Kind.COUNT)
    addresses = {block.untyped_storage().data_ptr() for block in blocks}
    if context.has("pointers"):
        text = "a profile shows a block at another address than that of its tensor"
        context.same({*live}, addresses, text)
    fits(context, sum(live.values()), asked, "a profile shows other bytes than those that live")


@cases("profiler.activity")
def of_intermediate_results(context: CaseContext) -> None:
    """Memory that ops need for a while comes and goes in a profile: the sum of all events is what the results hold."""
    x = ones(context, 1000)
    with Memory(context) as seen:
        y = ((x * 2 + 1).exp() - x).relu()
        z = (y @ y).reshape(1)
        context.settle()
    events = seen.events()
    paired(context, events)
    allocations = sum(event.bytes > 0 for event in events)
    text = "a profile does not show the memory of intermediate results"
    context.check(allocations >= 5, text, expected="5 or more", found=allocations, kind=Kind.COUNT)
    asked = [t.untyped_storage().nbytes() for t in (y, z)]
    text = "the sum of the memory events is not what the results hold"
    fits(context, sum(event.bytes for event in events), asked, text)


@cases("profiler.activity")
def charged_to_the_op(context: CaseContext) -> None:
    """An event of ``events()`` has the memory that its op allocates. A region has that of its ops, less what is freed in it."""
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
    text = "an op or region does not have the memory that it allocated"
    for name, asked in (("aten::mul", [4000]), ("aten::exp", [4000]), ("keeps", [4000, 4000])):
        fits(context, usage.get(name, 0), asked, text)
    text = "a region does not have the memory that was freed in it"
    fits(context, -usage.get("frees", 0), [4000], text)
    del z


@cases("profiler.activity", requires={"allocator_statistics"})
def as_the_allocator_counts(context: CaseContext) -> None:
    """The events of a profile sum up to what the allocator's counters rise by, and the totals of each event are its counters
    at that time. So they are in a second profile."""
    for _ in range(2):
        _judge_totals(context)


def _judge_totals(context: CaseContext) -> None:
    before = context.counters()
    with Memory(context) as seen:
        blocks, counted = [], []
        for size in (*SIZES, 3 * 2**20):
            blocks.append(context.bytes_of(size))
            counted.append(context.counters())
        blocks.pop(0)
        counted.append(context.counters())
        context.settle()
    events = seen.events(0)
    context.same(
        len(events),
        len(counted),
        "the number of listed events differs from the number of allocations and frees",
        Kind.COUNT,
    )
    total = before.allocated
    for event, now in zip(events, counted, strict=True):
        total += event.bytes
        text = "the bytes of the memory events do not sum up to the allocator's counter"
        context.same(total, now.allocated, text)
        text = "a memory event has another total of allocated bytes than the allocator"
        context.same(event.allocated, now.allocated, text)
        text = "a memory event has another total of reserved bytes than the allocator"
        context.same(event.reserved, now.reserved, text)


@cases("profiler.activity", requires={"multi_device"}, indices=2)
def memory_on_its_index(context: CaseContext) -> None:
    """Each allocation is listed on the device index that holds the memory, whichever index is current; in two profiles,
    one after the other."""
    for _ in range(2):
        _judge_memory_of_indices(context)


def _judge_memory_of_indices(context: CaseContext) -> None:
    with Memory(context) as seen:
        blocks = [context.bytes_of(size, index) for size in SIZES[:2] for index in (0, 1)]
        del blocks[:2]  # one on each index
        context.settle()
    text = "a profile shows the memory of one index on another"
    for index in (0, 1):
        events = seen.events(index)
        paired(context, events)
        counts = [sum(e.bytes > 0 for e in events), sum(e.bytes < 0 for e in events)]
        context.same(counts, [2, 1], text, Kind.DEVICE, at=f"index {index}")


@cases("profiler.activity")
def without_memory(context: CaseContext) -> None:
    """A profile without ``profile_memory`` lists no memory, also right after one that did."""
    with Memory(context) as first:
        kept = context.bytes_of(SIZES[0])
        context.settle()
    with Recording(context) as second:
        other = torch.add(kept, 1)
        context.settle()
    first.events()
    listed = [event for event in second.trace if event.get("name") == "[memory]"]
    context.same(listed, [], "a profile lists memory that it was not asked for")
    del other
