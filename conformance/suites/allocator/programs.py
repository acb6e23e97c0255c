"""Programs of the allocator, drawn: every invariant of a clause holds after every step of fifty.

A program is a list of steps, each a name and numbers, which mean something whatever there is: places are taken modulo
what is live. What a run does are operations on blocks that have numbers: the same ones, line by line, are in a repro
script. ``Watch`` sees the counters after every step, and judges one clause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import Context, Counters
from conformance.checks.cases.drawing import Trial, pinned, straight
from conformance.suites.allocator.memory import (
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
from devices.descriptor import Descriptor
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

Step = tuple[Any, ...]  # a name, and numbers

#: Sizes of requests, by the number that a step gives: around granules, small and large segments.
SIZES = (1, 513, 4 * KIB, 40_001, 300 * KIB, MIB + 1, 3 * MIB)
#: Live blocks that a program has at most, over all indices.
MOST = 12
STEPS = 50
_FEW, _MORE = (0, 5), (1, 20)  # seed, programs: of every plan, and of those beyond quick
#: Blocks up to this size are read back after every step, larger ones at the end.
READ = 64 * KIB
TOO_MUCH = 2**45


@dataclass(frozen=True, slots=True)
class Block:
    """A live block, and what it was filled with."""

    tensor: torch.Tensor
    size: int
    index: int
    want: torch.Tensor


def taken(context: Context, size: int, index: int, seed: int) -> Block:
    """A block, filled with its own pattern of bytes."""
    want = known(size, seed)
    return Block(context.bytes_of(size, index).copy_(want), size, index, want)


def in_threads(context: Context, size: int, index: int) -> None:
    """Four threads take and free at once."""

    def work(seed: int) -> None:
        held = [context.bytes_of(size + 7 * seed, index) for _ in range(6)]
        del held[::2]
        held.append(context.bytes_of(size, index))

    context.together(*(partial(work, seed) for seed in range(4)))


# -- what is seen, and judged


class Watch:
    """The counters of every index, step by step; judges one clause."""

    def __init__(self, context: Context, clause: str, indices: Sequence[int]) -> None:
        self.context = context
        self.clause = clause
        self.indices = indices
        self.ooms = dict.fromkeys(indices, 0)
        fresh(context)
        for index in indices:
            torch.accelerator.memory.reset_peak_memory_stats(context.at(index))
        self.start = {index: reset_totals(context, index) for index in indices}
        self.reset = dict(self.start)
        self.last = dict(self.start)
        self.top = {index: counters.allocated for index, counters in self.start.items()}

    def judges(self, clause: str) -> bool:
        return self.clause == f"allocator.{clause}"

    def look(self) -> None:
        """See the counters now."""
        self.last = {index: self.context.counters(index) for index in self.indices}
        for index, counters in self.last.items():
            self.top[index] = max(self.top[index], counters.allocated)

    def peaks_were_reset(self, index: int) -> None:
        now = self.context.counters(index)
        self.top[index] = now.allocated
        if self.judges("peaks"):
            self.context.same(now.peak, now.allocated, "a reset sets `peak` to the current value")

    def totals_were_reset(self, index: int) -> None:
        self.reset[index] = self.context.counters(index)
        self.ooms[index] = 0

    def judge(self, live: Sequence[Block], touched: Sequence[int]) -> None:
        """See the counters, and check every invariant of the clause. ``touched`` are the indices whose
        counters the last step may have moved."""
        before = self.last
        self.look()
        for index, now in self.last.items():
            self.judge_counters(index, now, [block for block in live if block.index == index])
            if self.judges("device_isolation") and index not in touched:
                same = dict(now.all) == dict(before[index].all)
                self.context.check(same, "another index keeps its counters", at=f"index {index}")
        if self.judges("disjoint"):
            wrong = overlapping(block.tensor for block in live)
            self.context.same(wrong, [], "no two live blocks overlap")
            step = self.context.descriptor.alignment
            odd = [hex(span(b.tensor)[0]) for b in live if span(b.tensor)[0] % step]
            self.context.same(odd, [], f"addresses are multiples of {step}")
        if self.judges("contents"):
            self.read([block for block in live if block.size <= READ])

    def judge_counters(self, index: int, now: Counters, live: Sequence[Block]) -> None:
        context, start, at = self.context, self.start[index], f"index {index}"
        if self.judges("accounting"):
            low = sum(block.size for block in live)
            high = low + sum(granule(context, block.size) for block in live)
            rise = now.allocated - start.allocated
            context.check(
                low <= rise <= high,
                "`allocated` counts the live blocks",
                expected=f"{low} to {high}",
                found=rise,
                at=at,
            )
            if kept(context, "requested_bytes"):
                asked = now.requested - start.requested
                context.same(asked, low, "`requested` counts what was asked for", at=at)
        if self.judges("ordering"):
            ordered(context, now)
            balanced(context, now, self.reset[index])
        if self.judges("peaks"):
            context.check(
                now.peak >= self.top[index],
                "`peak` is the most that was allocated",
                expected=self.top[index],
                found=now.peak,
                at=at,
            )
        if self.judges("oom") and kept(context, "num_ooms"):
            counted = now["num_ooms"] - self.reset[index]["num_ooms"]
            context.same(counted, self.ooms[index], "num_ooms counts each", at=at)

    def read(self, live: Sequence[Block]) -> None:
        """Read blocks back."""
        for block in live:
            self.context.equal(block.tensor, block.want, "a live block keeps its bytes")
        self.context.check(True, "all live blocks were read")


# -- operations


@dataclass(slots=True)
class Running:
    """What the operations of a run work on."""

    context: Context
    watch: Watch
    streams: dict[tuple[int, int], Any] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    views: dict[int, torch.Tensor] = field(default_factory=dict)
    pools: dict[int, Any] = field(default_factory=dict)


#: How a script names what is in the tables of a run.
_NAMES = {"streams": "s", "blocks": "b", "views": "view", "pools": "pool"}


@dataclass(frozen=True, slots=True)
class MakeStream:
    """A stream of an index; number 0 is the current one."""

    index: int
    number: int

    def do(self, run: Running) -> None:
        if self.number == 0:
            run.streams[self.index, self.number] = run.context.current_stream(self.index)
        else:
            run.streams[self.index, self.number] = run.context.stream(self.index)


@dataclass(frozen=True, slots=True)
class Take:
    block: int
    size: int
    index: int

    def do(self, run: Running) -> None:
        run.blocks[self.block] = taken(run.context, self.size, self.index, self.block)
        run.watch.look()


@dataclass(frozen=True, slots=True)
class TakeOn:
    """The same, on a stream."""

    block: int
    size: int
    index: int
    stream: int

    def do(self, run: Running) -> None:
        with run.streams[self.index, self.stream]:
            run.blocks[self.block] = taken(run.context, self.size, self.index, self.block)
        run.watch.look()


@dataclass(frozen=True, slots=True)
class TakeFromPool:
    block: int
    size: int
    pool: int

    def do(self, run: Running) -> None:
        with run.context.own("use_pool")(run.pools[self.pool], 0):
            run.blocks[self.block] = taken(run.context, self.size, 0, self.block)
        run.watch.look()


@dataclass(frozen=True, slots=True)
class View:
    """One more tensor that holds a block."""

    view: int
    block: int
    start: int

    def do(self, run: Running) -> None:
        run.views[self.view] = run.blocks[self.block].tensor[self.start :]


@dataclass(frozen=True, slots=True)
class Free:
    block: int

    def do(self, run: Running) -> None:
        del run.blocks[self.block]


@dataclass(frozen=True, slots=True)
class FreeView:
    view: int

    def do(self, run: Running) -> None:
        del run.views[self.view]


@dataclass(frozen=True, slots=True)
class UseElsewhere:
    """A block is read on another stream, marked, and freed while that stream is busy."""

    block: int
    size: int
    index: int
    stream: int
    judged: bool

    def do(self, run: Running) -> None:
        result = run.context.bytes_of(self.size, self.index)
        place = span(run.blocks[self.block].tensor)
        run.context.settle()
        with run.context.hold(run.streams[self.index, self.stream]) as hold:
            with run.streams[self.index, self.stream]:
                result.copy_(run.blocks[self.block].tensor)
            run.blocks[self.block].tensor.record_stream(run.streams[self.index, self.stream])
            del run.blocks[self.block]
            early = [run.context.bytes_of(self.size, self.index) for _ in range(2)]
            hold.must_be_in_flight()
            if self.judged:
                wrong = [span(each) for each in early if inside(each, [place])]
                text = "a marked block is not handed out while it is used"
                run.context.same(wrong, [], text)
            del early
        run.streams[self.index, self.stream].synchronize()
        if self.judged:
            want = known(self.size, self.block)
            run.context.equal(result, want, "the other stream reads what was there")
        del result


@dataclass(frozen=True, slots=True)
class EmptyCache:
    def do(self, run: Running) -> None:
        torch.accelerator.memory.empty_cache()


@dataclass(frozen=True, slots=True)
class ResetPeaks:
    index: int

    def do(self, run: Running) -> None:
        torch.accelerator.memory.reset_peak_memory_stats(run.context.at(self.index))
        run.watch.peaks_were_reset(self.index)


@dataclass(frozen=True, slots=True)
class ResetTotals:
    index: int

    def do(self, run: Running) -> None:
        torch.accelerator.memory.reset_accumulated_memory_stats(run.context.at(self.index))
        run.watch.totals_were_reset(self.index)


@dataclass(frozen=True, slots=True)
class AskTooMuch:
    """A request that no device can serve."""

    index: int
    judged: bool

    def do(self, run: Running) -> None:
        try:
            run.context.bytes_of(TOO_MUCH, self.index)
            found = "the request succeeded"
        except RuntimeError as error:
            found = type(error).__name__
        run.watch.ooms[self.index] += 1
        if self.judged:
            text = "32 TiB raise torch.OutOfMemoryError"
            run.context.same(found, "OutOfMemoryError", text)
            size = run.context.bytes_of(64 * KIB, self.index).numel()
            run.context.same(size, 64 * KIB, "the next request that fits succeeds")


@dataclass(frozen=True, slots=True)
class MakePool:
    pool: int

    def do(self, run: Running) -> None:
        run.pools[self.pool] = run.context.own("pool")()


@dataclass(frozen=True, slots=True)
class FreePool:
    """The pool dies; its live blocks stay."""

    pool: int

    def do(self, run: Running) -> None:
        del run.pools[self.pool]


@dataclass(frozen=True, slots=True)
class Threads:
    size: int
    index: int

    def do(self, run: Running) -> None:
        in_threads(run.context, self.size, self.index)


@dataclass(frozen=True, slots=True)
class Settle:
    def do(self, run: Running) -> None:
        run.context.settle()


@dataclass(frozen=True, slots=True)
class Look:
    def do(self, run: Running) -> None:
        run.watch.look()


@dataclass(frozen=True, slots=True)
class Judge:
    blocks: tuple[int, ...]
    touched: tuple[int, ...]

    def do(self, run: Running) -> None:
        run.watch.judge([run.blocks[block] for block in self.blocks], self.touched)


@dataclass(frozen=True, slots=True)
class Read:
    blocks: tuple[int, ...]

    def do(self, run: Running) -> None:
        run.watch.read([run.blocks[block] for block in self.blocks])


@dataclass(frozen=True, slots=True)
class Fresh:
    def do(self, run: Running) -> None:
        fresh(run.context)


# -- from steps to operations


@dataclass(slots=True)
class Live:
    """A live block of the model."""

    number: int
    size: int
    index: int
    views: list[int] = field(default_factory=list)


class Lowering:
    """From the steps of a program to operations, by a model of the live blocks."""

    def __init__(self, descriptor: Descriptor, clause: str) -> None:
        self.clause = clause
        self.indices = (0, 1) if descriptor.device_count() > 1 else (0,)
        self.streams = 3 if "streams" in descriptor.capabilities else 0  # of each index
        self.has_pools = "allocator_pools" in descriptor.capabilities
        self.live: list[Live] = []
        self.numbers = 0  # of blocks, views and pools so far
        self.pool: int | None = None

    def begin(self) -> list[Any]:
        return [MakeStream(i, number) for i in self.indices for number in range(self.streams)]

    def step(self, step: Step) -> Iterator[Any]:
        """What a step does. The counters are judged after it, by ``judge``."""
        name, *numbers = step
        found: Iterator[Any] = getattr(self, f"_{name}")(*numbers)
        yield from found
        yield Settle()

    def judge(self, step: Step) -> Judge:
        """Every invariant holds."""
        name, *numbers = step
        touched = self.indices
        if name in _MOVES_ONE:
            touched = (self._index(numbers[-1]),)
        return Judge(tuple(block.number for block in self.live), touched)

    def end(self) -> Iterator[Any]:
        """Read every block, free all, and look once more."""
        yield Settle()
        if self.clause == "allocator.contents":
            yield Read(tuple(block.number for block in self.live))
        while self.live:
            yield from self._freed(self.live.pop())
        yield from self._pool_end()
        yield Judge((), self.indices)
        yield Fresh()

    def _judged(self, clause: str) -> bool:
        return self.clause == f"allocator.{clause}"

    def _index(self, number: int) -> int:
        return self.indices[number % len(self.indices)]

    def _next(self) -> int:
        self.numbers += 1
        return self.numbers

    def _kept(self, size: int, index: int) -> int:
        self.live.append(Live(self._next(), size, index))
        return self.numbers

    def _taken(self, size: int, index: int, stream: int) -> Take | TakeOn:
        block = self._kept(size, index)
        if not self.streams:
            return Take(block, size, index)
        return TakeOn(block, size, index, stream % self.streams)

    def _freed(self, block: Live) -> Iterator[Any]:
        yield from (FreeView(view) for view in block.views)
        yield Free(block.number)

    def _take(self, size: int, stream: int, index: int) -> Iterator[Any]:
        """A block of a size, on a stream of an index."""
        if len(self.live) < MOST:
            yield self._taken(SIZES[size % len(SIZES)], self._index(index), stream)

    def _take_and_split(self, stream: int, index: int) -> Iterator[Any]:
        """A large block that is freed, and two small ones that are cut from it."""
        if len(self.live) < MOST - 1:
            where = self._index(index)
            yield self._taken(900 * KIB, where, stream)
            yield from self._freed(self.live.pop())
            yield self._taken(4 * KIB, where, stream)
            yield self._taken(40_001, where, stream)

    def _view(self, which: int) -> Iterator[Any]:
        if self.live:
            block = self.live[which % len(self.live)]
            block.views.append(self._next())
            yield View(block.views[-1], block.number, block.size // 3)

    def _free(self, which: int) -> Iterator[Any]:
        """One tensor less; the block goes with its last."""
        if self.live:
            block = self.live[which % len(self.live)]
            if block.views:
                yield FreeView(block.views.pop())
            else:
                self.live.remove(block)
                yield Free(block.number)

    def _use_elsewhere(self, which: int, stream: int) -> Iterator[Any]:
        if self.live and self.streams:
            block = self.live.pop(which % len(self.live))
            yield from (FreeView(view) for view in block.views)
            judged = self._judged("record_stream")
            yield UseElsewhere(block.number, block.size, block.index, 1 + stream % 2, judged)

    def _empty_cache(self) -> Iterator[Any]:
        yield EmptyCache()

    def _reset_peaks(self, index: int) -> Iterator[Any]:
        yield ResetPeaks(self._index(index))

    def _reset_totals(self, index: int) -> Iterator[Any]:
        yield ResetTotals(self._index(index))

    def _too_much(self, index: int) -> Iterator[Any]:
        yield AskTooMuch(self._index(index), self._judged("oom"))

    def _pool_take(self, size: int) -> Iterator[Any]:
        """A block from a private pool, which lives until ``pool_end``."""
        if self.has_pools and len(self.live) < MOST:
            if self.pool is None:
                self.pool = self._next()
                yield MakePool(self.pool)
            count = SIZES[size % len(SIZES)]
            yield TakeFromPool(self._kept(count, 0), count, self.pool)

    def _pool_end(self) -> Iterator[Any]:
        if self.pool is not None:
            yield FreePool(self.pool)
            self.pool = None

    def _threads(self, size: int, index: int) -> Iterator[Any]:
        yield Threads(SIZES[size % 4], self._index(index))


#: Steps that move the counters of one index, the last of their numbers.
_MOVES_ONE = frozenset(
    {"take", "take_and_split", "threads", "too_much", "reset_peaks", "reset_totals"}
)
#: How many numbers each step takes.
_NUMBERS = {
    **dict.fromkeys(("empty_cache", "pool_end"), 0),
    **dict.fromkeys(("view", "free", "reset_peaks", "reset_totals", "too_much", "pool_take"), 1),
    **dict.fromkeys(("take_and_split", "use_elsewhere", "threads"), 2),
    "take": 3,
}


# -- running programs


class Machine:
    """Runs steps on the device, and judges a clause after each."""

    def __init__(self, context: Context, clause: str) -> None:
        self.lowering = Lowering(context.descriptor, clause)
        self.run = Running(context, Watch(context, clause, self.lowering.indices))
        self._do(self.lowering.begin())

    def do(self, step: Step) -> None:
        """One step, and every invariant after it. Raises CheckFailed."""
        self._do(self.lowering.step(step))
        self._do([self.lowering.judge(step)])

    def end(self) -> None:
        self._do(self.lowering.end())

    def drop(self) -> None:
        """Let go of everything."""
        self.run.blocks.clear()
        self.run.views.clear()
        self.run.pools.clear()

    def _do(self, operations: Any) -> None:
        for operation in operations:
            operation.do(self.run)


def replay(context: Context, clause: str, program: Sequence[Step]) -> None:
    """Run a program that was written down."""
    machine = Machine(context, clause)
    for step in program:
        machine.do(tuple(step))
    machine.end()


def source(descriptor: Descriptor, clause: str, program: Sequence[Step]) -> str:
    """The same as a function, line by line; what holds after the last step alone is judged."""
    lowering = Lowering(descriptor, clause)
    operations = lowering.begin()
    for place, step in enumerate(program):
        operations += lowering.step(step)
        operations.append(lowering.judge(step) if place == len(program) - 1 else Look())
    operations += lowering.end()
    return (
        f'def program(context: Context) -> None:\n    """{told(program)}"""\n'
        f"    watch = Watch(context, {clause!r}, {lowering.indices!r})\n"
        + straight(operations, _NAMES, 1)
    )


def told(program: Sequence[Step]) -> str:
    """A program in a line."""
    steps = (f"{name}({', '.join(map(str, numbers))})" for name, *numbers in program)
    return "; ".join(steps) or "nothing"


def validate(clause: str, program: Sequence[Step]) -> None:
    """Raises an exception if these are not a program of the allocator."""
    if not clause.startswith("allocator."):
        raise ValueError(f"{clause!r} is not a clause of the allocator")
    for name, *numbers in program:
        whole = all(type(number) is int and number >= 0 for number in numbers)
        if _NUMBERS.get(name) != len(numbers) or not whole:
            raise ValueError(f"not a step: {(name, *numbers)!r}")


# -- drawing programs


_DRAWN = Drawn(replay, lambda _, program: told(program), validate, source)


def _drawn(context: Context, clause: str, seed: int, programs: int) -> None:
    """The clause holds after every step of drawn programs of requests and frees."""
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    trial = Trial(context, _DRAWN)
    kind = _machine()

    def machine() -> Any:
        return kind(trial, clause)

    with trial.shrunk():
        begun: Any = seeded(seed)(machine)
        run_state_machine_as_test(begun, settings=pinned(programs, stateful_step_count=STEPS))
    trial.must_have_run(programs)


@cache
def _machine() -> Any:
    """The state machine: rules draw numbers, the machine does what they say.

    One class for all searches: hypothesis keeps what it knows of every class for ever.
    """
    from hypothesis.stateful import RuleBasedStateMachine, rule
    from hypothesis.strategies import integers

    number, few = integers(0, 11), integers(0, 2)
    size, index = integers(0, 6), integers(0, 1)

    class Drawing(RuleBasedStateMachine):
        def __init__(self, trial: Trial, clause: str) -> None:
            super().__init__()
            self.trial = trial
            self.program: list[Step] = []
            self.literal = (clause, self.program)
            self.machine: Machine | None = None
            self.goes_on = trial.begin() and trial.run(self.literal, self.set_up)

        def set_up(self) -> None:
            self.machine = Machine(self.trial.context, self.literal[0])

        def do(self, *step: Any) -> None:
            if self.goes_on and (machine := self.machine) is not None:
                self.program.append(step)
                self.goes_on = False  # where it raises
                self.goes_on = self.trial.run(self.literal, lambda: machine.do(step))

        def teardown(self) -> None:
            machine, self.machine = self.machine, None
            if machine is None:
                return
            if self.goes_on:
                self.trial.run(self.literal, machine.end)
            machine.drop()

        @rule(size=size, stream=few, index=index)
        def take(self, size: int, stream: int, index: int) -> None:
            self.do("take", size, stream, index)

        @rule(size=size, stream=few, index=index)
        def take_more(self, size: int, stream: int, index: int) -> None:
            self.do("take", size, stream, index)

        @rule(stream=few, index=index)
        def take_and_split(self, stream: int, index: int) -> None:
            self.do("take_and_split", stream, index)

        @rule(which=number)
        def view(self, which: int) -> None:
            self.do("view", which)

        @rule(which=number)
        def free(self, which: int) -> None:
            self.do("free", which)

        @rule(which=number)
        def free_more(self, which: int) -> None:
            self.do("free", which)

        @rule(which=number, stream=few)
        def use_elsewhere(self, which: int, stream: int) -> None:
            self.do("use_elsewhere", which, stream)

        @rule()
        def empty_cache(self) -> None:
            self.do("empty_cache")

        @rule(index=index)
        def reset_peaks(self, index: int) -> None:
            self.do("reset_peaks", index)

        @rule(index=index)
        def reset_totals(self, index: int) -> None:
            self.do("reset_totals", index)

        @rule(index=index)
        def too_much(self, index: int) -> None:
            self.do("too_much", index)

        @rule(size=size)
        def pool_take(self, size: int) -> None:
            self.do("pool_take", size)

        @rule()
        def pool_end(self) -> None:
            self.do("pool_end")

        @rule(size=size, index=index)
        def threads(self, size: int, index: int) -> None:
            self.do("threads", size, index)

    return Drawing


#: The clauses whose invariants hold after every step, and what a program needs to judge them.
_CLAUSES: dict[str, dict[str, Any]] = {
    "accounting": {},
    "ordering": {},
    "peaks": {},
    "disjoint": {"requires": {"allocator_statistics"}},
    "contents": {"requires": {"allocator_statistics"}},
    "oom": {"alone": True},
    "record_stream": {"requires": {"allocator_statistics"}},
    "device_isolation": {"indices": 2},
}

for _name, _needs in _CLAUSES.items():
    _clause = f"allocator.{_name}"
    _needs = {**_needs, "slow": True, "drawn": _DRAWN}
    cases(_clause, over={"drawn": (_clause, *_FEW)}, **_needs)(_drawn)
    cases(_clause, over={"drawn_more": (_clause, *_MORE)}, more=True, **_needs)(_drawn)
