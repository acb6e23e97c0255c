"""allocator.memory_info, allocator.oom, allocator.error_leak, allocator.fraction: where memory ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.allocator.judging import KIB, MIB, fits_in_memory, fresh, kept, known
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()

#: Bytes that no device has: 32 TiB, well below the exabyte above which torch itself refuses.
_TOO_MUCH = 2**45


def _info(context: Context) -> tuple[int, int]:
    free, total = torch.accelerator.memory.get_memory_info(context.device)
    return int(free), int(total)


@cases("allocator.memory_info", alone=True)
def free_falls(context: Context) -> None:
    """free falls with a large request, within 0 and a total that stays."""
    fresh(context)
    free, total = _info(context)
    context.check(0 <= free <= total, "0 <= free <= total", got=(free, total))
    size = fits_in_memory(context)
    block = context.bytes_of(size)
    context.must(block.numel() == size, "the block was there")
    less, same = _info(context)
    context.same(same, total, "the total stays")
    # Half of it is left for what other processes give back meanwhile.
    context.check(
        less <= free - size // 2, f"a block of {size} bytes makes free fall", got=free - less
    )
    del block
    fresh(context)
    context.same(_info(context)[1], total, "the total stays when it is freed")


def _too_much(context: Context) -> None:
    context.bytes_of(_TOO_MUCH)


@cases("allocator.oom", alone=True)
def more_than_there_is(context: Context) -> None:
    """A request above the total memory raises torch.OutOfMemoryError with its formatted size."""
    context.raises(
        torch.OutOfMemoryError,
        lambda: _too_much(context),
        text="a request of 32 TiB raises torch.OutOfMemoryError with its size",
        match=r"32768(\.00)? GiB|32(\.00)? TiB",
    )


@cases("allocator.oom", alone=True)
def goes_on(context: Context) -> None:
    """After running out, live tensors are intact and the next request that fits succeeds."""
    want = known(30_000, 5)
    live = context.bytes_of(30_000).copy_(want)
    context.must(_runs_out(context), "the request was refused")
    context.equal(live, want, "live tensors are intact")
    block = context.bytes_of(64 * KIB)
    block.copy_(known(64 * KIB, 6))
    context.equal(block, known(64 * KIB, 6), "the next request that fits succeeds")


@cases("allocator.oom", alone=True)
def is_counted(context: Context) -> None:
    """num_ooms and num_alloc_retries each rise by one."""
    before = context.counters()
    context.must(_runs_out(context), "the request was refused")
    now = context.counters()
    for name in ("num_ooms", "num_alloc_retries"):
        if kept(context, name):
            context.same(now[name] - before[name], 1, f"{name} rises by one")
    context.same(now.allocated, before.allocated, "`allocated` is as before")


@cases("allocator.oom", alone=True, requires={"allocator_memory_info"})
def filled_up(context: Context) -> None:
    """Memory can be filled to its end; what is freed then serves again."""
    fresh(context)
    free, _ = _info(context)
    step = max(free // 12, MIB)
    blocks: list[torch.Tensor] = []
    try:
        for _ in range(14):
            blocks.append(context.bytes_of(step))
        ended = False
    except torch.OutOfMemoryError:
        ended = True
    context.check(ended, f"14 blocks of a twelfth of the free memory ({step} bytes) are too much")
    context.must(len(blocks) >= 2, "several blocks fit")
    blocks[0].fill_(7)
    blocks.pop()
    again = context.bytes_of(step)
    again.fill_(9)
    context.same(int(blocks[0][-1]), 7, "live blocks are intact")
    context.same(int(again[-1]), 9, "what is freed serves again")
    blocks.clear()
    del again
    fresh(context)


def _runs_out(context: Context) -> bool:
    """Whether a request that is too large is refused, by whatever type of error."""
    try:
        _too_much(context)
    except RuntimeError:
        return True
    return False


def _wrong_shapes(context: Context) -> None:
    torch.add(torch.ones(2, device=context.device), torch.ones(3, device=context.device))


def _wrong_inner_sizes(context: Context) -> None:
    torch.mm(torch.ones(2, 3, device=context.device), torch.ones(2, 3, device=context.device))


def _wrong_cat(context: Context) -> None:
    torch.cat([torch.ones(2, 2, device=context.device), torch.ones(3, 3, device=context.device)])


def _wrong_target(context: Context) -> None:
    ones = torch.ones(4, device=context.device)
    torch.add(ones, ones, out=torch.ones(4, dtype=torch.int64, device=context.device))


def _overlap(context: Context) -> None:
    torch.ones(1, device=context.device).expand(4).add_(1)


@cases(
    "allocator.error_leak",
    over={
        "shapes": ("_wrong_shapes",),
        "inner_sizes": ("_wrong_inner_sizes",),
        "cat": ("_wrong_cat",),
        "out_dtype": ("_wrong_target",),
        "overlap": ("_overlap",),
    },
)
def op_raises(context: Context, name: str) -> None:
    """An op that raises leaves `allocated` as it was."""
    before = context.counters().allocated
    for _ in range(3):
        error = context.raises(RuntimeError, globals()[name], context, text="the op raises")
        if error is not None:
            error.__traceback__ = None  # its frames hold the operands
        del error
    context.same(context.counters().allocated, before, "`allocated` is as before")


@contextmanager
def _fraction(context: Context, fraction: float) -> Iterator[None]:
    """A memory fraction, for a block."""
    before = context.own("get_fraction")(0)
    context.own("set_fraction")(fraction, 0)
    try:
        yield
    finally:
        context.own("set_fraction")(before, 0)


@cases("allocator.fraction", alone=True, requires={"allocator_memory_info", "allocator_statistics"})
def limits(context: Context) -> None:
    """The first request that needs a new segment past the fraction raises; within it all is well."""
    fresh(context)
    size = fits_in_memory(context)
    reserved, (_, total) = context.counters().reserved, _info(context)
    with _fraction(context, (reserved + 1.5 * size) / total):
        context.same(
            round(context.own("get_fraction")(0) * total), round(reserved + 1.5 * size),
            "the fraction that was set is the one that is read",
        )  # fmt: skip
        block = context.bytes_of(size)
        context.check(block.numel() == size, "a request within the fraction succeeds")
        context.raises(
            torch.OutOfMemoryError,
            lambda: context.bytes_of(size + MIB),
            text="a request past the fraction raises torch.OutOfMemoryError",
        )
        del block
    block = context.bytes_of(2 * size)
    context.check(block.numel() == 2 * size, "without the fraction it succeeds")
    del block
    fresh(context)


@cases("allocator.fraction", over={"negative": (-0.5,), "above_one": (1.5,), "no_number": (float("nan"),)})  # fmt: skip
def invalid(context: Context, fraction: float) -> None:
    """A fraction outside [0, 1] raises, and changes nothing."""
    before = context.own("get_fraction")(0)
    try:
        context.raises(
            (ValueError, RuntimeError),
            lambda: context.own("set_fraction")(fraction, 0),
            text=f"the fraction {fraction} raises",
        )
        context.same(context.own("get_fraction")(0), before, "the fraction is as before")
    finally:
        context.own("set_fraction")(before, 0)
