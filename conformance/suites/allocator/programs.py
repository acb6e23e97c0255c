"""Randomly drawn allocator programs. The invariants of one clause are checked after each of up to 50 steps.

A program is a list of steps. A step is a tuple of a name and numbers. A number is an index, taken modulo the
number of live blocks, sizes or streams, so that every program is valid. A run turns the steps into operations
on numbered blocks, and a repro script contains the same operations, one on each line. ``Watch`` reads the
counters after every step and checks the invariants of the clause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    TOO_MUCH,
    aligned,
    balanced,
    fresh,
    granule,
    inside,
    kept,
    known,
    ordered,
    overlapping,
    reset_totals,
    span,
)
from conformance.checks.behaviour.queued_work import priorities
from conformance.checks.cases.context import CaseContext, Counters
from conformance.checks.cases.random_programs import Operation, operation, perform, settle, straight
from devices.descriptor import Descriptor

Step = tuple[Any, ...]  # a name and numbers

#: The sizes of requests, by the number in a step: around granules, and for small and large segments.
SIZES = (1, 513, 4 * KIB, 40_001, 300 * KIB, MIB + 1, 3 * MIB)
#: The largest number of live blocks in a program, over all indices.
MOST = 12
STEPS = 50
#: Blocks up to this size in bytes are read back after every step; larger ones only at the end.
READ = 64 * KIB


@dataclass(frozen=True, slots=True)
class Block:
    """A live block and the bytes that it was filled with."""

    tensor: torch.Tensor
    size: int
    index: int
    want: torch.Tensor


def taken(context: CaseContext, size: int, index: int, seed: int) -> Block:
    """Allocates a block and fills it with a byte pattern that depends on ``seed``."""
    want = known(size, seed)
    return Block(context.bytes_of(size, index).copy_(want), size, index, want)


def in_threads(context: CaseContext, size: int, index: int) -> None:
    """Allocates and frees blocks of about the given size in four threads at the same time."""

    def work(seed: int) -> None:
        held = [context.bytes_of(size + 7 * seed, index) for _ in range(6)]
        del held[::2]
        held.append(context.bytes_of(size, index))

    context.together(*(partial(work, seed) for seed in range(4)))


class Watch:
    """A checker for one clause: it reads the allocator's counters of every device index after each step of a
    program, and checks the invariants of the clause."""

    def __init__(self, context: CaseContext, clause: str, indices: Sequence[int]) -> None:
        self.context = context
        self.clause = clause
        self.indices = indices
        self.ooms = dict.fromkeys(indices, 0)
        fresh(context)
        for index in indices:
            torch.accelerator.memory.reset_peak_memory_stats(context.at(index))
        self.start = {index: reset_totals(context, index) for index in indices}
        self.reset, self.last = dict(self.start), dict(self.start)
        self.top = {index: counters.allocated for index, counters in self.start.items()}

    def judges(self, clause: str) -> bool:
        return self.clause == f"allocator.{clause}"

    def look(self) -> None:
        self.last = {index: self.context.counters(index) for index in self.indices}
        for index, counters in self.last.items():
            self.top[index] = max(self.top[index], counters.allocated)

    def peaks_were_reset(self, index: int) -> None:
        now = self.context.counters(index)
        self.top[index] = now.allocated
        if self.judges("peaks"):
            self.context.same(
                now.peak,
                now.allocated,
                "reset_peak_memory_stats did not set `peak` to the current value",
            )

    def totals_were_reset(self, index: int) -> None:
        self.reset[index] = self.context.counters(index)
        self.ooms[index] = 0

    def judge(self, live: Sequence[Block], touched: Sequence[int]) -> None:
        """Reads the counters and checks every invariant of the clause. ``touched`` contains the device indices
        whose counters the last step may have changed."""
        before = self.last
        self.look()
        for index, now in self.last.items():
            self.judge_counters(index, now, [block for block in live if block.index == index])
            if self.judges("device_isolation") and index not in touched:
                same = dict(now.all) == dict(before[index].all)
                self.context.check(
                    same,
                    "a step on one device index changed the counters of another index",
                    at=f"index {index}",
                )
        if self.judges("disjoint"):
            wrong = overlapping(block.tensor for block in live)
            self.context.same(wrong, [], "the address ranges of live blocks overlap")
            aligned(self.context, [block.tensor for block in live])
        if self.judges("contents"):
            self.read([block for block in live if block.size <= READ])

    def judge_counters(self, index: int, now: Counters, live: Sequence[Block]) -> None:
        context, start, at = self.context, self.start[index], f"index {index}"
        if self.judges("accounting"):
            low = sum(block.size for block in live)
            high = low + sum(granule(context, block.size) for block in live)
            rise = now.allocated - start.allocated
            text, want = "`allocated` does not match the live blocks", f"{low} to {high}"
            context.check(low <= rise <= high, text, expected=want, found=rise, at=at)
            if kept(context, "requested_bytes"):
                asked = now.requested - start.requested
                context.same(
                    asked,
                    low,
                    "`requested` does not match the requested bytes of the live blocks",
                    at=at,
                )
        if self.judges("ordering"):
            ordered(context, now)
            balanced(context, now, self.reset[index])
        if self.judges("peaks"):
            text, top = (
                "`peak` is below the largest value of `allocated` since the reset",
                self.top[index],
            )
            context.check(now.peak >= top, text, expected=top, found=now.peak, at=at)
        if self.judges("oom") and kept(context, "num_ooms"):
            counted = now["num_ooms"] - self.reset[index]["num_ooms"]
            context.same(
                counted,
                self.ooms[index],
                "num_ooms differs from the number of failed requests",
                at=at,
            )

    def read(self, live: Sequence[Block]) -> None:
        for block in live:
            self.context.equal(block.tensor, block.want, "the bytes of a live block changed")
        self.context.check(True, "reading the live blocks failed")


class Running:
    """A run of an allocator program: a model of its steps, and the blocks, views, streams and pools that its
    operations use."""

    def __init__(self, context: CaseContext, clause: str) -> None:
        self.context = context
        self.lowering = Lowering(context.descriptor, clause)
        self.watch = Watch(context, clause, self.lowering.indices)
        self.streams: dict[tuple[int, int], Any] = {}
        self.blocks: dict[int, Block] = {}
        self.views: dict[int, torch.Tensor] = {}
        self.pools: dict[int, Any] = {}
        perform(self, self.lowering.begin())

    def let_go(self) -> None:
        """Deletes all blocks, views and pools. Without this call they would stay alive, because the traceback
        of an error refers to the run."""
        for table in (self.blocks, self.views, self.pools):
            table.clear()


#: The prefixes of the variables in a script, by table of the run.
_NAMES = {"streams": "s", "blocks": "b", "views": "view", "pools": "pool"}


@operation
def make_stream(run: Running, index: int, number: int) -> None:
    """Creates a stream on a device index and stores it under a number. Number 0 stands for the current stream."""
    if number:
        run.streams[index, number] = run.context.stream(index)
    else:
        run.streams[index, number] = run.context.current_stream(index)


@operation
def make_priority_stream(run: Running, index: int, number: int) -> None:
    run.streams[index, number] = run.context.stream(index, priority=priorities(run.context)[1])


@operation
def take(run: Running, block: int, size: int, index: int) -> None:
    run.blocks[block] = taken(run.context, size, index, block)
    run.watch.look()


@operation
def take_on(run: Running, block: int, size: int, index: int, stream: int) -> None:
    with run.streams[index, stream]:
        run.blocks[block] = taken(run.context, size, index, block)
    run.watch.look()


@operation
def take_from_pool(run: Running, block: int, size: int, pool: int) -> None:
    with run.context.own("use_pool")(run.pools[pool], 0):
        run.blocks[block] = taken(run.context, size, 0, block)
    run.watch.look()


@operation
def view(run: Running, view: int, block: int, start: int) -> None:
    """Creates a view of a block; the view keeps the memory of the block alive."""
    run.views[view] = run.blocks[block].tensor[start:]


@operation
def free(run: Running, block: int) -> None:
    del run.blocks[block]


@operation
def free_on(run: Running, block: int, index: int, stream: int) -> None:
    """Frees a block while the given stream is current, which may differ from the stream on which the block was
    allocated."""
    with run.streams[index, stream]:
        del run.blocks[block]


@operation
def free_view(run: Running, view: int) -> None:
    del run.views[view]


@operation
def use_elsewhere(
    run: Running, block: int, size: int, index: int, stream: int, judged: bool
) -> None:
    """Reads a block on another stream, marks the block with record_stream, and frees it while that stream is
    busy. If ``judged``, also checks that the block is not reused too early."""
    result = run.context.bytes_of(size, index)
    known_place = judged and run.context.has("pointers")
    place = span(run.blocks[block].tensor) if known_place else (0, 0)
    run.context.settle()
    with run.context.hold(run.streams[index, stream], needed=False) as hold:
        with run.streams[index, stream]:
            result.copy_(run.blocks[block].tensor)
        try:
            run.blocks[block].tensor.record_stream(run.streams[index, stream])
        except RuntimeError:
            if judged:
                raise
            hold.release()  # only the clause about record_stream fails because of this error
            run.streams[index, stream].synchronize()
        del run.blocks[block]
        early = [run.context.bytes_of(size, index) for _ in range(2)]
        hold.must_be_in_flight()
        if known_place and hold.holds:
            wrong = [span(each) for each in early if inside(each, [place])]
            run.context.same(
                wrong,
                [],
                "a block was reused while the stream that it was marked for was busy",
            )
        del early
    run.streams[index, stream].synchronize()
    if judged:
        run.context.equal(
            result,
            known(size, block),
            "the other stream read bytes that were written after the block was freed",
        )
    del result


@operation
def empty_cache(run: Running) -> None:
    torch.accelerator.memory.empty_cache()


@operation
def reset_peaks(run: Running, index: int) -> None:
    torch.accelerator.memory.reset_peak_memory_stats(run.context.at(index))
    run.watch.peaks_were_reset(index)


@operation
def reset_accumulated(run: Running, index: int) -> None:
    torch.accelerator.memory.reset_accumulated_memory_stats(run.context.at(index))
    run.watch.totals_were_reset(index)


@operation
def ask_too_much(run: Running, index: int, judged: bool) -> None:
    """Requests 32 TiB, more than any device has. If ``judged``, checks the exception and the next request."""
    try:
        run.context.bytes_of(TOO_MUCH, index)
        found = "the request succeeded"
    except RuntimeError as error:
        found = type(error).__name__
    run.watch.ooms[index] += 1
    if judged:
        run.context.same(
            found, "OutOfMemoryError", "a request of 32 TiB did not raise torch.OutOfMemoryError"
        )
        size = run.context.bytes_of(64 * KIB, index).numel()
        run.context.same(
            size,
            64 * KIB,
            "the request after running out of memory returned a block of the wrong size",
        )


@operation
def make_pool(run: Running, pool: int) -> None:
    run.pools[pool] = run.context.own("pool")()


@operation
def free_pool(run: Running, pool: int) -> None:
    """Deletes a private pool. Blocks of the pool that are live stay allocated."""
    del run.pools[pool]


@operation
def use_threads(run: Running, size: int, index: int) -> None:
    in_threads(run.context, size, index)


@operation
def look(run: Running) -> None:
    run.watch.look()


@operation
def judge(run: Running, blocks: tuple[int, ...], touched: tuple[int, ...]) -> None:
    run.watch.judge([run.blocks[block] for block in blocks], touched)


@operation
def read(run: Running, blocks: tuple[int, ...]) -> None:
    run.watch.read([run.blocks[block] for block in blocks])


@operation
def release(run: Running) -> None:
    fresh(run.context)


#: The steps of a program and the parameters of each. A step with an index changes only the counters of that
#: index.
NUMBERS = {
    "take": ("size", "stream", "index"),
    "take_and_split": ("stream", "index"),
    "view": ("which",),
    "free": ("which",),
    "free_on": ("which", "stream"),
    "use_elsewhere": ("which", "stream"),
    "empty_cache": (),
    "reset_peaks": ("index",),
    "reset_totals": ("index",),
    "too_much": ("index",),
    "pool_take": ("size",),
    "pool_end": (),
    "threads": ("size", "index"),
}


@dataclass(slots=True)
class Live:
    """A live block in the model of a program: its number, size in bytes, device index, stream number, and the
    numbers of its views."""

    number: int
    size: int
    index: int
    stream: int
    views: list[int] = field(default_factory=list)


class Lowering:
    """A translator of the steps of an allocator program into operations, with a model of the live blocks."""

    def __init__(self, descriptor: Descriptor, clause: str) -> None:
        self.clause = clause
        self.indices = (0, 1) if descriptor.device_count() > 1 else (0,)
        self.streams = 3 if "streams" in descriptor.capabilities else 0  # per index
        self.has_pools = "allocator_pools" in descriptor.capabilities
        self.urgent = 2 if "stream_priority" in descriptor.capabilities else None
        self.live: list[Live] = []
        self.numbers = count(1)  # for blocks, views and pools
        self.pool: int | None = None

    def begin(self) -> list[Operation]:
        return [
            (make_priority_stream if number == self.urgent else make_stream)(index, number)
            for index in self.indices
            for number in range(self.streams)
        ]

    def does(self, step: Step) -> bool:
        """Returns True if a step would do anything in the current state of the model."""
        name, room = step[0], MOST - len(self.live)
        if name in ("free_on", "use_elsewhere") and not self.streams:
            return False
        if name in ("view", "free", "free_on", "use_elsewhere"):
            return bool(self.live)
        if name == "pool_take" and not self.has_pools:
            return False
        if name == "pool_end":
            return self.pool is not None
        return room > {"take": 0, "pool_take": 0, "take_and_split": 1}.get(name, -1)

    def step(self, step: Step, judged: bool = True) -> Iterator[Operation]:
        """Yields the operations of a step, and after them an operation that reads the counters. If ``judged``,
        the last operation also checks every invariant."""
        if self.does(step):
            yield from self._lowered(step)
        yield settle()
        touched = self.indices
        if "index" in NUMBERS[step[0]]:
            touched = (self._index(step[-1]),)
        yield judge(self._blocks(), touched) if judged else look()

    def end(self) -> Iterator[Operation]:
        """Yields operations that read the blocks (for the clause allocator.contents), free everything, and
        check the counters once more."""
        yield settle()
        if self.clause == "allocator.contents":
            yield read(self._blocks())
        while self.live:
            yield from self._freed(self.live.pop())
        if self.pool is not None:
            yield from self._lowered(("pool_end",))
        yield judge((), self.indices)
        yield release()

    def _lowered(self, step: Step) -> Iterator[Operation]:
        live = self.live
        match step:
            case "take", size, stream, index:
                yield self._taken(SIZES[size % len(SIZES)], self._index(index), stream)
            case "take_and_split", stream, index:
                # Frees a large block and cuts two small ones from it.
                where = self._index(index)
                yield self._taken(900 * KIB, where, stream)
                yield from self._freed(live.pop())
                yield self._taken(4 * KIB, where, stream)
                yield self._taken(40_001, where, stream)
            case "view", which:
                block = live[which % len(live)]
                block.views.append(next(self.numbers))
                yield view(block.views[-1], block.number, block.size // 3)
            case "free", which:  # deletes one tensor; the block is freed with its last tensor
                block = live[which % len(live)]
                if block.views:
                    yield free_view(block.views.pop())
                else:
                    live.remove(block)
                    yield free(block.number)
            case "free_on", which, stream:
                block = live.pop(which % len(live))
                yield from map(free_view, block.views)
                yield free_on(block.number, block.index, stream % self.streams)
            case "use_elsewhere", which, stream:
                block = live.pop(which % len(live))
                yield from map(free_view, block.views)
                judged = self.clause == "allocator.record_stream"
                yield use_elsewhere(block.number, block.size, block.index, 1 + stream % 2, judged)
            case ("empty_cache",):
                yield empty_cache()
            case "reset_peaks", index:
                yield reset_peaks(self._index(index))
            case "reset_totals", index:
                yield reset_accumulated(self._index(index))
            case "too_much", index:
                yield ask_too_much(self._index(index), self.clause == "allocator.oom")
            case "pool_take", size:
                if self.pool is None:
                    self.pool = next(self.numbers)
                    yield make_pool(self.pool)
                wanted = SIZES[size % len(SIZES)]
                yield take_from_pool(self._kept(wanted, 0, 0), wanted, self.pool)
            case ("pool_end",):
                assert self.pool is not None
                yield free_pool(self.pool)
                self.pool = None
            case "threads", size, index:
                yield use_threads(SIZES[size % 4], self._index(index))

    def _blocks(self) -> tuple[int, ...]:
        return tuple(block.number for block in self.live)

    def _index(self, number: int) -> int:
        return self.indices[number % len(self.indices)]

    def _kept(self, size: int, index: int, stream: int) -> int:
        self.live.append(Live(next(self.numbers), size, index, stream))
        return self.live[-1].number

    def _taken(self, size: int, index: int, stream: int) -> Operation:
        stream %= self.streams or 1
        block = self._kept(size, index, stream)
        if not self.streams:
            return take(block, size, index)
        return take_on(block, size, index, stream)

    def _freed(self, block: Live) -> Iterator[Operation]:
        yield from map(free_view, block.views)
        yield free(block.number)


def replay(context: CaseContext, clause: str, program: Sequence[Step], judged: bool = True) -> None:
    """Runs a program. If ``judged`` is True, the invariants are checked after every step; otherwise, as in a
    repro script, only after the last step."""
    run = Running(context, clause)
    try:
        for place, step in enumerate(program, 1):
            perform(run, run.lowering.step(step, judged or place == len(program)))
        perform(run, run.lowering.end())
    finally:
        run.let_go()


def source(descriptor: Descriptor, clause: str, program: Sequence[Step]) -> str:
    """Returns the program as the Python source of a function with one operation on each line. The invariants
    are checked only after the last step."""
    lowering = Lowering(descriptor, clause)
    operations = lowering.begin()
    for place, step in enumerate(program, 1):
        operations += lowering.step(step, judged=place == len(program))
    operations += lowering.end()
    return (
        f'def program(context: CaseContext) -> None:\n    """{told(program)}"""\n'
        f"    watch = Watch(context, {clause!r}, {lowering.indices!r})\n"
        + straight(operations, _NAMES, 1)
    )


def told(program: Sequence[Step]) -> str:
    steps = (f"{name}({', '.join(map(str, numbers))})" for name, *numbers in program)
    return "; ".join(steps) or "nothing"


def validate(clause: str, program: Sequence[Step]) -> None:
    """Raises ValueError if the clause does not belong to the allocator, or if a step has an unknown name or
    wrong numbers."""
    if not clause.startswith("allocator."):
        raise ValueError(f"expected a clause of the allocator, got {clause!r}")
    for name, *numbers in program:
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if name not in NUMBERS or len(NUMBERS[name]) != len(numbers) or not whole:
            raise ValueError(f"{(name, *numbers)!r} is not a step of an allocator program")
