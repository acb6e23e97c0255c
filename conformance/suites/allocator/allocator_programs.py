"""Allocator programs: their instructions, and a run that checks the invariants of one clause after each step.

An operand of an instruction is an index, taken modulo the number of live blocks, sizes or streams, so that every program is
valid. An instruction changes a model of the live blocks and runs operations on numbered blocks; a repro script contains
the same operations, one on each line. ``Watch`` reads the counters after every step and checks the invariants of the
clause.
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
    has_statistics,
    inside,
    known,
    ordered,
    overlapping,
    reset_totals,
    span,
)
from conformance.checks.behaviour.queued_work import priorities
from conformance.checks.cases.context import CaseContext, Counters
from conformance.checks.programs.language import (
    Aspect,
    Key,
    Language,
    Operand,
    State,
    States,
    Step,
    Steps,
    numbered,
)
from conformance.checks.programs.operations import Operation, operation, perform, settle, straight
from devices.descriptor import Descriptor

#: The sizes of requests, by the number in a step: around granules, and for small and large segments.
SIZES = (1, 513, 4 * KIB, 40_001, 300 * KIB, MIB + 1, 3 * MIB)
#: The largest number of live blocks in a program, over all indices.
MOST = 12

#: Blocks up to this size in bytes are read back after every step; larger ones only at the end.
READ = 64 * KIB


@dataclass(frozen=True, slots=True)
class Block:
    """A live block and the bytes that it was filled with. ``pool`` is the number of the private pool that it comes from,
    0 for none."""

    tensor: torch.Tensor
    size: int
    index: int
    want: torch.Tensor
    pool: int = 0


def taken(context: CaseContext, size: int, index: int, seed: int, pool: int = 0) -> Block:
    """Allocates a block and fills it with a byte pattern that depends on ``seed``."""
    want = known(size, seed)
    return Block(context.bytes_of(size, index).copy_(want), size, index, want, pool)


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
        self.of_pools: dict[int, list[tuple[int, int]]] = {}  # what each live pool has handed out
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

    def came_from(self, block: Block) -> None:
        """Checks that a new block has no memory that a live pool has handed out before, except its own pool."""
        others = [s for pool, spans in self.of_pools.items() if pool != block.pool for s in spans]
        if self.judges("pools"):
            text = "a block has memory that a live pool, which is not the block's, has handed out before"
            self.context.check(not inside(block.tensor, others), text, at=f"pool {block.pool}")
        if block.pool:
            self.of_pools.setdefault(block.pool, []).append(span(block.tensor))

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
        """Reads the counters and checks every invariant of the clause. ``live`` are the blocks that are allocated
        now; ``touched`` are the device indices whose counters the last step may have changed."""
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
            if has_statistics(context, "requested_bytes"):
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
        if self.judges("oom") and has_statistics(context, "num_ooms"):
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


@dataclass
class Running:
    """A run of an allocator program, with the blocks, views, streams and pools that its operations use."""

    context: CaseContext
    clause: str
    model: Model = field(init=False)
    watch: Watch = field(init=False)
    streams: dict[tuple[int, int], Any] = field(default_factory=dict)
    blocks: dict[int, Block] = field(default_factory=dict)
    views: dict[int, torch.Tensor] = field(default_factory=dict)
    pools: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Model(self.context.descriptor, self.clause)

    def begin(self) -> None:
        self.watch = Watch(self.context, self.clause, self.model.indices)
        perform(self, begin(self.model))

    def end(self) -> None:
        perform(self, end(self.model))

    def let_go(self) -> None:
        """Deletes all blocks, views and pools. Without this call they would stay alive, because the traceback
        of an error refers to the run."""
        for table in (self.blocks, self.views, self.pools):
            table.clear()


#: The prefixes of the variables in a script, by table of the run.
_NAMES = {"streams": "s", "blocks": "b", "views": "view", "pools": "pool"}


# -- the model, and the operands of instructions


@dataclass(slots=True)
class Live:
    """A live block in the model of a program: its number, size in bytes, device index, stream number, and the
    numbers of its views."""

    number: int
    size: int
    index: int
    stream: int
    views: list[int] = field(default_factory=list)


class Model(State):
    """The model of an allocator program: the device's indices, streams and pools that the program may use, and the
    blocks and the pool that are live between the steps of the program."""

    def __init__(self, descriptor: Descriptor, clause: str = "") -> None:
        super().__init__()
        self.clause = clause
        self.indices = (0, 1) if descriptor.device_count() > 1 else (0,)
        self.streams = 3 if "streams" in descriptor.capabilities else 0  # per index
        self.has_pools = "allocator_pools" in descriptor.capabilities
        self.urgent = 2 if "stream_priority" in descriptor.capabilities else None
        self.live: list[Live] = []
        self.numbers = count(1)  # for blocks, views and pools
        self.pool: int | None = None
        self.inner: int | None = None  # a pool that is used inside the other one

    def keep(self, size: int, index: int, stream: int) -> int:
        """Adds a live block to the model and returns the number of the block."""
        self.live.append(Live(next(self.numbers), size, index, stream))
        return self.live[-1].number

    def allocate(self, size: int, index: int, stream: int) -> Operation:
        block = self.keep(size, index, stream)
        if not self.streams:
            return allocate(block, size, index)
        return allocate_on(block, size, index, stream)

    def delete(self, block: Live) -> Iterator[Operation]:
        yield from map(delete_view, block.views)
        yield delete(block.number)

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(block.number for block in self.live)


_PLACE = Aspect(
    ("the last", "an earlier one"), lambda model, which, **_: which != len(model.live) - 1
)
_VIEWS = Aspect(
    ("with views", "without views"), lambda model, which, **_: not model.live[which].views
)
_OWN = Aspect(
    ("its own stream", "another stream"),
    lambda model, which, stream: model.live[which].stream != stream,
)
_ONE_POOL: dict[Key, str] = {
    ("pair", "pool_end", "pool_end"): "a program has at most one pool at a time",
    ("pair", "pool_end", "pool_nest"): "a pool is nested only inside the program's pool",
}
_POOL = Aspect(("the first", "another"), lambda model, **_: model.pool is not None)
_INNER = Aspect(("the first", "another"), lambda model, **_: model.inner is not None)

ALLOCATOR = Language(
    name="an allocator program",
    operands=(
        numbered("size", range(len(SIZES)), lambda model: len(SIZES)),
        numbered("index", range(2), lambda model: len(model.indices)),
        numbered("stream", range(3), lambda model: model.streams),
        Operand("which", range(MOST), lambda m: len(m.live), covers=(States(_PLACE, _VIEWS),)),
    ),
    impossible=lambda model: _ONE_POOL if model.has_pools else {},
)
Model.language = ALLOCATOR
_operation = partial(ALLOCATOR.instruction, effect=lambda model, **_: None)


# -- instructions, each after the operations that only it uses


@operation
def allocate(run: Running, block: int, size: int, index: int) -> None:
    run.blocks[block] = taken(run.context, size, index, block)
    run.watch.came_from(run.blocks[block])
    run.watch.look()


@operation
def allocate_on(run: Running, block: int, size: int, index: int, stream: int) -> None:
    with run.streams[index, stream]:
        run.blocks[block] = taken(run.context, size, index, block)
    run.watch.came_from(run.blocks[block])
    run.watch.look()


@ALLOCATOR.instruction(needs=lambda model, **_: len(model.live) < MOST, weight=2)
def take(model: Model, size: int, stream: int, index: int) -> Iterator[Operation]:
    yield model.allocate(SIZES[size], index, stream)


@operation
def delete_view(run: Running, view: int) -> None:
    del run.views[view]


@operation
def delete(run: Running, block: int) -> None:
    del run.blocks[block]


@ALLOCATOR.instruction(needs=lambda model, **_: len(model.live) < MOST - 1)
def take_and_split(model: Model, stream: int, index: int) -> Iterator[Operation]:
    """Allocates and frees a large block, and then allocates two small blocks, which can be cut from the large block."""
    yield model.allocate(900 * KIB, index, stream)
    yield from model.delete(model.live.pop())
    yield model.allocate(4 * KIB, index, stream)
    yield model.allocate(40_001, index, stream)


@operation
def make_view(run: Running, view: int, block: int, start: int) -> None:
    """Creates a view of a block; the view keeps the memory of the block alive."""
    run.views[view] = run.blocks[block].tensor[start:]


@ALLOCATOR.instruction(needs=lambda model, **_: model.live)
def view(model: Model, which: int) -> Iterator[Operation]:
    block = model.live[which]
    block.views.append(next(model.numbers))
    yield make_view(block.views[-1], block.number, block.size // 3)


@ALLOCATOR.instruction(needs=lambda model, **_: model.live, weight=2)
def free(model: Model, which: int) -> Iterator[Operation]:
    """Deletes one tensor that uses the memory of a block: a view, or the block's own tensor if there is no view. The
    memory is freed when its last tensor is deleted."""
    block = model.live[which]
    if block.views:
        yield delete_view(block.views.pop())
    else:
        yield from model.delete(model.live.pop(which))


@operation
def delete_on(run: Running, block: int, index: int, stream: int) -> None:
    """Frees a block while the given stream is current, which may differ from the stream on which the block was
    allocated."""
    with run.streams[index, stream]:
        del run.blocks[block]


@ALLOCATOR.instruction(
    operands=(Operand("stream", range(3), lambda model: model.streams),),
    needs=lambda model, **_: model.live,
    here=lambda model: model.streams,
    covers=(States(_OWN),),
)
def free_on(model: Model, which: int, stream: int) -> Iterator[Operation]:
    block = model.live.pop(which)
    yield from map(delete_view, block.views)
    yield delete_on(block.number, block.index, stream)


@operation
def use_on(run: Running, block: int, size: int, index: int, stream: int, judged: bool) -> None:
    """Reads a block on another stream, marks the block with record_stream, and frees it while that stream is busy. If
    ``judged`` is true, also checks that the block is not reused too early."""
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


@ALLOCATOR.instruction(
    operands=(Operand("stream", range(3), lambda model: 2, first=1),),
    needs=lambda model, **_: model.live,
    here=lambda model: model.streams,
    covers=(States(_OWN),),
)
def use_elsewhere(model: Model, which: int, stream: int) -> Iterator[Operation]:
    block = model.live.pop(which)
    yield from map(delete_view, block.views)
    judged = model.clause == "allocator.record_stream"
    yield use_on(block.number, block.size, block.index, stream, judged)


@_operation()
def empty_cache(run: Running) -> None:
    torch.accelerator.memory.empty_cache()


@_operation()
def reset_peaks(run: Running, index: int) -> None:
    torch.accelerator.memory.reset_peak_memory_stats(run.context.at(index))
    run.watch.peaks_were_reset(index)


@_operation(name="reset_totals")
def reset_accumulated(run: Running, index: int) -> None:
    torch.accelerator.memory.reset_accumulated_memory_stats(run.context.at(index))
    run.watch.totals_were_reset(index)


@operation
def ask_too_much(run: Running, index: int, judged: bool) -> None:
    """Requests 32 TiB, more than any device has. If ``judged`` is true, checks the exception, and that the next request
    succeeds."""
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


@ALLOCATOR.instruction()
def too_much(model: Model, index: int) -> Iterator[Operation]:
    yield ask_too_much(index, model.clause == "allocator.oom")


@operation
def make_pool(run: Running, pool: int) -> None:
    run.pools[pool] = run.context.own("pool")()


@operation
def delete_pool(run: Running, pool: int) -> None:
    """Deletes a private pool. Blocks of the pool that are live stay allocated."""
    del run.pools[pool]
    run.watch.of_pools.pop(pool, None)


@operation
def allocate_from_pool(run: Running, block: int, size: int, pool: int) -> None:
    with run.context.own("use_pool")(run.pools[pool], 0):
        run.blocks[block] = taken(run.context, size, 0, block, pool)
    run.watch.came_from(run.blocks[block])
    run.watch.look()


@operation
def allocate_nested(run: Running, block: int, size: int, outer: int, inner: int) -> None:
    """Allocates a block while two pools are used, one inside the other. The inner pool serves the request."""
    use = run.context.own("use_pool")
    with use(run.pools[outer], 0), use(run.pools[inner], 0):
        run.blocks[block] = taken(run.context, size, 0, block, inner)
    run.watch.came_from(run.blocks[block])
    run.watch.look()


@ALLOCATOR.instruction(
    needs=lambda model, **_: len(model.live) < MOST,
    here=lambda model: model.has_pools,
    covers=(States(_POOL),),
)
def pool_take(model: Model, size: int) -> Iterator[Operation]:
    if model.pool is None:
        model.pool = next(model.numbers)
        yield make_pool(model.pool)
    yield allocate_from_pool(model.keep(SIZES[size], 0, 0), SIZES[size], model.pool)


@ALLOCATOR.instruction(
    needs=lambda model, **_: model.pool is not None and len(model.live) < MOST,
    here=lambda model: model.has_pools,
    covers=(States(_INNER),),
)
def pool_nest(model: Model, size: int) -> Iterator[Operation]:
    """Allocates a block from a pool that is used inside the program's other pool."""
    assert model.pool is not None
    if model.inner is None:
        model.inner = next(model.numbers)
        yield make_pool(model.inner)
    block = model.keep(SIZES[size], 0, 0)
    yield allocate_nested(block, SIZES[size], model.pool, model.inner)


@ALLOCATOR.instruction(
    needs=lambda model: model.pool is not None, here=lambda model: model.has_pools
)
def pool_end(model: Model) -> Iterator[Operation]:
    """Deletes the pool of a program, and the one that was used inside it."""
    assert model.pool is not None
    yield delete_pool(model.pool)
    if model.inner is not None:
        yield delete_pool(model.inner)
    model.pool = model.inner = None


@operation
def use_threads(run: Running, size: int, index: int) -> None:
    in_threads(run.context, size, index)


@ALLOCATOR.instruction(operands=(numbered("size", range(len(SIZES)), lambda model: 4),))
def threads(model: Model, size: int, index: int) -> Iterator[Operation]:
    yield use_threads(SIZES[size], index)


# -- a run, from its beginning to its end


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


def begin(model: Model) -> list[Operation]:
    return [
        (make_priority_stream if number == model.urgent else make_stream)(index, number)
        for index in model.indices
        for number in range(model.streams)
    ]


def lowered(model: Model, step: Step, judged: bool = True) -> list[Operation]:
    """Returns the operations of a step, followed by an operation that reads the counters. If ``judged`` is true, the
    last operation also checks every invariant of the clause."""
    operands = model.operands(step)
    # A step with an index changes only the counters of that index.
    touched = (operands["index"],) if "index" in operands else model.indices
    return [*model.take(step), settle(), judge(model.blocks, touched) if judged else look()]


def end(model: Model) -> Iterator[Operation]:
    """Yields operations that read the blocks (for the clause allocator.contents), free everything, and check the
    counters once more."""
    yield settle()
    if model.clause == "allocator.contents":
        yield read(model.blocks)
    while model.live:
        yield from model.delete(model.live.pop())
    if model.pool is not None:
        yield from pool_end(model)
    yield judge((), model.indices)
    yield release()


def replay(context: CaseContext, clause: str, program: Steps, judged: bool = True) -> None:
    """Runs a program. If ``judged`` is True, the invariants are checked after every step; otherwise, as in a
    repro script, only after the last step."""
    run = Running(context, clause)
    try:
        run.begin()
        for place, step in enumerate(program, 1):
            perform(run, lowered(run.model, step, judged or place == len(program)))
        run.end()
    finally:
        run.let_go()


def source(descriptor: Descriptor, clause: str, program: Steps) -> str:
    """Returns the program as the Python source of a function with one operation on each line. The invariants
    are checked only after the last step."""
    model = Model(descriptor, clause)
    operations = begin(model)
    for place, step in enumerate(program, 1):
        operations += lowered(model, step, judged=place == len(program))
    operations += end(model)
    return (
        f'def program(context: CaseContext) -> None:\n    """{ALLOCATOR.describe(program)}"""\n'
        f"    watch = Watch(context, {clause!r}, {model.indices!r})\n"
        + straight(operations, _NAMES, 1)
    )


def validate(clause: str, program: Steps) -> None:
    """Raises ValueError if the clause does not belong to the allocator, or if a step is invalid."""
    if not clause.startswith("allocator."):
        raise ValueError(f"expected a clause of the allocator, got {clause!r}")
    ALLOCATOR.validate(program)
