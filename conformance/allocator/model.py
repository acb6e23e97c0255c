"""What the allocator must do, step by step: programs of requests and frees, run beside a model.

A program is a list of steps, each a name and numbers, so that it can be written down and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from conformance.allocator.judging import (
    KIB,
    MIB,
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
from conformance.behaviour.context import Context
from conformance.behaviour.memory import Counters

Step = tuple[Any, ...]  # a name, and numbers

#: Sizes of requests, by the number that a step gives: around granules, small and large segments.
SIZES = (1, 513, 4 * KIB, 40_001, 300 * KIB, MIB + 1, 3 * MIB)
#: Live blocks that a program has at most, over all indices.
MOST = 12
#: Blocks up to this size are read back after every step, larger ones at the end.
_READ = 64 * KIB
_TOO_MUCH = 2**45


@dataclass(slots=True)
class Block:
    """A live block of the model: the tensors that hold it, and what it was filled with."""

    handles: list[torch.Tensor]
    size: int
    index: int
    want: torch.Tensor

    @property
    def whole(self) -> torch.Tensor:
        return self.handles[0]


class Machine:
    """Runs steps on the device and holds it to the model; judges one clause alone."""

    def __init__(self, context: Context, clause: str) -> None:
        self.context = context
        self.clause = clause
        self.indices = [0, 1] if len(context.indices) > 1 else [0]
        self.live: list[Block] = []
        self.pool: Any = None
        self.number = 0  # of blocks so far: seeds their bytes
        self.ooms = dict.fromkeys(self.indices, 0)
        fresh(context)
        self.streams: dict[int, list[Any]] = {
            index: [context.current_stream(index), context.stream(index), context.stream(index)]
            if context.has("streams")
            else [None]
            for index in self.indices
        }
        for index in self.indices:
            torch.accelerator.memory.reset_peak_memory_stats(context.at(index))
        self.start = {index: reset_totals(context, index) for index in self.indices}
        self.reset = dict(self.start)
        self.last = dict(self.start)
        self.top = {index: counters.allocated for index, counters in self.start.items()}

    def judges(self, clause: str) -> bool:
        return self.clause == f"allocator.{clause}"

    # -- steps

    def do(self, step: Step) -> None:
        """One step, and every invariant behind it. Raises CheckFailed."""
        name, *numbers = step
        getattr(self, name)(*numbers)
        self.context.settle()
        self.hold_to_model(touched=self.touched(name, numbers))

    def touched(self, name: str, numbers: Sequence[int]) -> set[int]:
        """The indices whose counters a step may move."""
        if name in ("take", "take_and_split", "threads", "too_much", "reset_peaks", "reset_totals"):
            return {self.indices[numbers[-1] % len(self.indices)]}
        return set(self.indices)

    def take(self, size: int, stream: int, index: int) -> None:
        """A block of a size, on a stream of an index, filled with bytes of its own."""
        if len(self.live) >= MOST:
            return
        where = self.indices[index % len(self.indices)]
        self.keep(SIZES[size % len(SIZES)], where, self.streams[where][stream % 3])

    def keep(self, size: int, index: int, stream: Any) -> None:
        self.number += 1
        want = known(size, self.number)
        if stream is None:
            block = self.context.bytes_of(size, index).copy_(want)
        else:
            with stream:
                block = self.context.bytes_of(size, index).copy_(want)
        self.live.append(Block([block], size, index, want))
        self.note_top()

    def take_and_split(self, stream: int, index: int) -> None:
        """A large block that is freed, and two small ones that are cut from it."""
        if len(self.live) >= MOST - 1:
            return
        where = self.indices[index % len(self.indices)]
        queue = self.streams[where][stream % len(self.streams[where])]
        self.keep(900 * KIB, where, queue)
        self.live.pop()
        self.keep(4 * KIB, where, queue)
        self.keep(40_001, where, queue)

    def view(self, which: int) -> None:
        """One more tensor that holds a block."""
        if self.live:
            block = self.live[which % len(self.live)]
            block.handles.append(block.whole[block.size // 3 :])

    def free(self, which: int) -> None:
        """One tensor less; the block goes with its last."""
        if self.live:
            block = self.live[which % len(self.live)]
            block.handles.pop()
            if not block.handles:
                self.live.remove(block)

    def use_elsewhere(self, which: int, stream: int) -> None:
        """A block is read on another stream, marked, and freed while that stream is busy."""
        if not self.live or self.streams[0] == [None]:
            return
        block = self.live.pop(which % len(self.live))
        index, size = block.index, block.size
        other = self.streams[index][1 + stream % 2]
        result = self.context.bytes_of(size, index)
        place = span(block.whole)
        self.context.settle()
        with self.context.hold(other) as hold:
            with other:
                result.copy_(block.whole)
            block.whole.record_stream(other)
            block.handles.clear()
            early = [self.context.bytes_of(size, index) for _ in range(2)]
            hold.must_be_in_flight()
            if self.judges("record_stream"):
                wrong = [span(each) for each in early if inside(each, [place])]
                self.context.same(wrong, [], "a marked block is not handed out while it is used")
            del early
        other.synchronize()
        if self.judges("record_stream"):
            self.context.equal(result, block.want, "the other stream reads what was there")

    def empty_cache(self) -> None:
        torch.accelerator.memory.empty_cache()

    def reset_peaks(self, index: int) -> None:
        where = self.indices[index % len(self.indices)]
        torch.accelerator.memory.reset_peak_memory_stats(self.context.at(where))
        now = self.context.counters(where)
        self.top[where] = now.allocated
        if self.judges("peaks"):
            self.context.same(now.peak, now.allocated, "a reset sets `peak` to what is current")

    def reset_totals(self, index: int) -> None:
        where = self.indices[index % len(self.indices)]
        self.reset[where] = reset_totals(self.context, where)
        self.ooms[where] = 0

    def too_much(self, index: int) -> None:
        """A request that no device can serve."""
        where = self.indices[index % len(self.indices)]
        try:
            self.context.bytes_of(_TOO_MUCH, where)
            got = "it was served"
        except RuntimeError as error:
            got = type(error).__name__
        self.ooms[where] += 1
        if self.judges("oom"):
            self.context.same(got, "OutOfMemoryError", "32 TiB raise torch.OutOfMemoryError")
            block = self.context.bytes_of(64 * KIB, where)
            self.context.same(block.numel(), 64 * KIB, "the next request that fits succeeds")

    def pool_take(self, size: int) -> None:
        """A block from a private pool, which lives until ``pool_end``."""
        if not self.context.has("allocator_pools") or len(self.live) >= MOST:
            return
        if self.pool is None:
            self.pool = self.context.own("pool")()
        with self.context.own("use_pool")(self.pool, 0):
            self.keep(SIZES[size % len(SIZES)], 0, None)

    def pool_end(self) -> None:
        """The pool dies; its live blocks stay."""
        self.pool = None

    def threads(self, size: int, index: int) -> None:
        """Four threads take and free at once."""
        where, count = self.indices[index % len(self.indices)], SIZES[size % 4]

        def work(seed: int) -> None:
            held = [self.context.bytes_of(count + 7 * seed, where) for _ in range(6)]
            del held[::2]
            held.append(self.context.bytes_of(count, where))

        self.context.together(*(partial(work, seed) for seed in range(4)))

    # -- invariants

    def note_top(self) -> None:
        for index in self.indices:
            self.top[index] = max(self.top[index], self.context.counters(index).allocated)

    def hold_to_model(self, touched: set[int]) -> None:
        """Every invariant of the clause, on every index."""
        now = {index: self.context.counters(index) for index in self.indices}
        for index, counters in now.items():
            self.top[index] = max(self.top[index], counters.allocated)
            self.hold_counters(index, counters)
            if self.judges("device_isolation") and index not in touched:
                same = dict(counters.all) == dict(self.last[index].all)
                self.context.check(same, f"index {index} keeps its counters")
        self.last = now
        if self.judges("disjoint"):
            self.context.same(
                overlapping(block.whole for block in self.live), [], "no two live blocks overlap"
            )
            step = self.context.descriptor.alignment
            wrong = [hex(span(b.whole)[0]) for b in self.live if span(b.whole)[0] % step]
            self.context.same(wrong, [], f"addresses are multiples of {step}")
        if self.judges("contents"):
            self.read(lambda block: block.size <= _READ)

    def hold_counters(self, index: int, now: Counters) -> None:
        context, start = self.context, self.start[index]
        if self.judges("accounting"):
            sizes = [block.size for block in self.live if block.index == index]
            low, high = sum(sizes), sum(size + granule(context, size) for size in sizes)
            rise = now.allocated - start.allocated
            context.check(
                low <= rise <= high,
                f"`allocated` of index {index} counts the live blocks",
                expected=f"{low} to {high}",
                got=rise,
            )
            if kept(context, "requested_bytes"):
                asked = now.requested - start.requested
                context.same(asked, low, f"`requested` of index {index} counts what was asked for")
        if self.judges("ordering"):
            ordered(context, now)
            balanced(context, now, self.reset[index])
        if self.judges("peaks"):
            context.check(
                now.peak >= self.top[index],
                f"`peak` of index {index} is the most that was allocated",
                expected=self.top[index],
                got=now.peak,
            )
        if self.judges("oom") and kept(context, "num_ooms"):
            counted = now["num_ooms"] - self.reset[index]["num_ooms"]
            context.same(counted, self.ooms[index], f"num_ooms of index {index} counts each")

    def read(self, wanted: Callable[[Block], bool]) -> None:
        for block in self.live:
            if wanted(block):
                self.context.equal(block.whole, block.want, "a live block keeps its bytes")
        self.context.check(True, "all live blocks were read")

    def end(self) -> None:
        """Read every block, free all, and look once more."""
        self.context.settle()
        if self.judges("contents"):
            self.read(lambda block: True)
        self.live.clear()
        self.pool = None
        self.hold_to_model(touched=set(self.indices))
        fresh(self.context)


def told(program: Sequence[Step]) -> str:
    """A program in a line."""
    return "; ".join(f"{name}({', '.join(map(str, numbers))})" for name, *numbers in program)


#: How many numbers each step takes.
_NUMBERS = {
    **dict.fromkeys(("empty_cache", "pool_end"), 0),
    **dict.fromkeys(("view", "free", "reset_peaks", "reset_totals", "too_much", "pool_take"), 1),
    **dict.fromkeys(("take_and_split", "use_elsewhere", "threads"), 2),
    "take": 3,
}


def validate(clause: str, program: Sequence[Step]) -> None:
    """Raises an exception where these are no program of the allocator."""
    if not clause.startswith("allocator."):
        raise ValueError(f"{clause!r} is no clause of the allocator")
    for name, *numbers in program:
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if _NUMBERS.get(name) != len(numbers) or not whole:
            raise ValueError(f"no step: {(name, *numbers)!r}")


def replay(context: Context, clause: str, program: Sequence[Step]) -> None:
    """Run a program that was written down."""
    machine = Machine(context, clause)
    for step in program:
        machine.do(tuple(step))
    machine.end()
