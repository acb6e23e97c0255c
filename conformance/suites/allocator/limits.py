"""Where memory ends, and the settings that change the allocator."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.allocator.memory import (
    KIB,
    MIB,
    TOO_MUCH,
    filled,
    fits_in_memory,
    freed,
    fresh,
    keeps,
    kept,
    memory_info,
    new_queue,
)
from devices.descriptor import SETTINGS
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


@cases("allocator.memory_info", alone=True)
def free_falls(context: Context) -> None:
    """free falls with a large request, within 0 and a total that stays."""
    fresh(context)
    free, total = memory_info(context)
    context.check(0 <= free <= total, "0 <= free <= total", found=(free, total))
    size = fits_in_memory(context)
    block = context.bytes_of(size)
    context.must(block.numel() == size, "the block was there")
    less, same = memory_info(context)
    context.same(same, total, "the total stays")
    text = f"a block of {size} bytes makes free fall"
    # Half of it is a margin for what other processes free at the same time.
    context.check(less <= free - size // 2, text, found=free - less)
    del block
    fresh(context)
    context.same(memory_info(context)[1], total, "the total stays when it is freed")


@cases("allocator.memory_info", alone=True, requires={"allocator_statistics"})
def cached_is_not_free(context: Context) -> None:
    """What the allocator reserves is not free: free and reserved memory fit in the total, with blocks live or cached."""
    fresh(context)
    size = fits_in_memory(context)
    with new_queue(context):
        block = context.bytes_of(size)
        for state in ("live", "cached"):
            free, total = memory_info(context)
            reserved = context.counters().reserved
            text = (
                f"free and reserved are at most the total while a block of {size} bytes is {state}"
            )
            context.check(free + reserved <= total, text, expected=total, found=free + reserved)
            block = torch.empty(0)  # from now on it is cached
        context.same(block.numel(), 0, "the block is freed")
    fresh(context)


@cases("allocator.oom", alone=True)
def totals_are_reset(context: Context) -> None:
    """reset_accumulated_memory_stats zeroes what counts requests that failed, too."""
    context.must(_runs_out(context), "the request was refused")
    torch.accelerator.memory.reset_accumulated_memory_stats(context.at(0))
    now = context.counters()
    names = [name for name in ("num_ooms", "num_alloc_retries") if kept(context, name)]
    context.same({name: now[name] for name in names}, dict.fromkeys(names, 0), "they are zero")


@cases("allocator.oom", alone=True)
def more_than_there_is(context: Context) -> None:
    """A request above the total memory raises torch.OutOfMemoryError with its formatted size."""
    text = "a request of 32 TiB raises torch.OutOfMemoryError with its size"
    size = r"32768(\.00)? GiB|32(\.00)? TiB"
    context.raises(torch.OutOfMemoryError, context.bytes_of, TOO_MUCH, text=text, match=size)


@cases("allocator.oom", alone=True)
def goes_on(context: Context) -> None:
    """After running out, live tensors are intact and the next request that fits succeeds."""
    live = filled(context, 30_000, 5)
    context.must(_runs_out(context), "the request was refused")
    keeps(context, live, 5, "live tensors are intact")
    keeps(context, filled(context, 64 * KIB, 6), 6, "the next request that fits succeeds")


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
    """Memory can be filled to its end; freed memory can then be used again."""
    fresh(context)
    free, _ = memory_info(context)
    step = max(free // 12, MIB)
    blocks: list[torch.Tensor] = []
    with suppress(torch.OutOfMemoryError):
        for _ in range(14):
            blocks.append(context.bytes_of(step))
    ended = len(blocks) < 14
    context.check(ended, f"14 blocks of a twelfth of the free memory ({step} bytes) are too much")
    context.must(len(blocks) >= 2, "several blocks fit")
    blocks[0].fill_(7)
    blocks.pop()
    again = context.bytes_of(step)
    again.fill_(9)
    context.same(int(blocks[0][-1]), 7, "live blocks are intact")
    context.same(int(again[-1]), 9, "freed memory is used again")
    blocks.clear()
    del again
    fresh(context)


def _runs_out(context: Context) -> bool:
    """Whether a request that is too large is refused, by whatever type of error."""
    try:
        context.bytes_of(TOO_MUCH)
    except RuntimeError:
        return True
    return False


def _ones(context: Context, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=context.device)


#: Calls that no op takes.
_WRONG: dict[str, Callable[[Context], torch.Tensor]] = {
    "shapes": lambda context: _ones(context, 2) + _ones(context, 3),
    "inner_sizes": lambda context: torch.mm(_ones(context, 2, 3), _ones(context, 2, 3)),
    "cat": lambda context: torch.cat([_ones(context, 2, 2), _ones(context, 3, 3)]),
    "out_dtype": lambda context: torch.add(
        _ones(context, 4), _ones(context, 4), out=_ones(context, 4, dtype=torch.int64)
    ),
    "overlap": lambda context: _ones(context, 1).expand(4).add_(1),
}


@cases("allocator.error_leak", over={name: (name,) for name in _WRONG})
def op_raises(context: Context, name: str) -> None:
    """An op that raises leaves `allocated` as it was."""
    before = context.counters().allocated
    for _ in range(3):
        error = context.raises(RuntimeError, _WRONG[name], context, text="the op raises")
        if error is not None:
            error.__traceback__ = None  # its frames hold the operands
        del error
    context.same(context.counters().allocated, before, "`allocated` is as before")


@contextmanager
def _fraction(context: Context) -> Iterator[tuple[Callable[[], float], Callable[[float], None]]]:
    """Reading and setting the memory fraction, which is as before after the block."""
    get, change = context.own("get_fraction"), context.own("set_fraction")
    before = get(0)
    try:
        yield partial(get, 0), lambda fraction: change(fraction, 0)
    finally:
        change(before, 0)


@cases("allocator.fraction", alone=True, requires={"allocator_memory_info", "allocator_statistics"})
def limits(context: Context) -> None:
    """The first request that needs a new segment past the fraction raises; within it all is well."""
    fresh(context)
    size = fits_in_memory(context)
    reserved, (_, total) = context.counters().reserved, memory_info(context)
    with _fraction(context) as (get, change):
        change((reserved + 1.5 * size) / total)
        text = "reading the fraction returns the value that was set"
        context.same(round(get() * total), round(reserved + 1.5 * size), text)
        block = context.bytes_of(size)
        context.check(block.numel() == size, "a request within the fraction succeeds")
        text = "a request above the fraction raises torch.OutOfMemoryError"
        context.raises(torch.OutOfMemoryError, context.bytes_of, size + MIB, text=text)
        del block
    block = context.bytes_of(2 * size)
    context.check(block.numel() == 2 * size, "without the fraction it succeeds")
    del block
    fresh(context)


@cases("allocator.fraction", over={"negative": (-0.5,), "above_one": (1.5,), "no_number": (float("nan"),)})  # fmt: skip
def invalid(context: Context, fraction: float) -> None:
    """A fraction outside [0, 1] raises, and changes nothing."""
    with _fraction(context) as (get, change):
        before, text = get(), f"the fraction {fraction} raises"
        context.raises((ValueError, RuntimeError), change, fraction, text=text)
        context.same(get(), before, "the fraction is as before")


#: A value of each key that c10/core/AllocatorConfig.h and the CUDA allocator's documentation allow.
_VALUES = {
    "max_split_size_mb": "200",
    "max_non_split_rounding_mb": "200",
    "garbage_collection_threshold": "0.5",
    "roundup_power2_divisions": "4",
    "expandable_segments": "True",
    "large_segment_size_mb": "40",
    "pinned_use_background_threads": "True",
    "pinned_max_round_threshold_mb": "64",
    "pinned_max_cached_size_mb": "64",
}


@cases(
    "allocator.settings",
    over={
        "unknown_key": ("no_such_key:1", "no_such_key"),
        "not_a_number": ("max_split_size_mb:many", None),
        "not_a_power": ("roundup_power2_divisions:3", None),
        "not_a_share": ("garbage_collection_threshold:7", None),
        "not_a_truth": ("expandable_segments:maybe", None),
    },
)
def refused(context: Context, text: str, named: str | None) -> None:
    """Unknown keys and bad values raise a clear error."""
    error = context.raises(
        (ValueError, RuntimeError),
        lambda: context.own("allocator_settings")(text),
        text=f"{text!r} raises",
        match=named,
    )
    context.check(str(error).strip(), "the error has a message", found=error)


@cases("allocator.settings", requires={"allocator_statistics"})
def rounding(context: Context) -> None:
    """roundup_power2_divisions, if it is supported, rounds requests up as documented."""
    size, steps = 64 * KIB + 512, {"1": 64 * KIB + 512, "2": 96 * KIB, "4": 80 * KIB}
    change = context.own("allocator_settings")
    if "roundup_power2_divisions" not in context.descriptor.settings:
        _told(context, "roundup_power2_divisions:4")
        return
    try:
        for divisions, expected in steps.items():
            change(f"roundup_power2_divisions:{divisions}")
            before = context.counters().allocated
            block = context.bytes_of(size)
            rise = context.counters().allocated - before
            context.must(block.numel() == size, "the block has the size that was asked for")
            context.same(rise, expected, f"{size} bytes with {divisions} divisions")
            del block
    finally:
        change("roundup_power2_divisions:1")


@cases("allocator.settings", requires={"allocator_statistics"}, own_process=True, slow=True)
def no_split(context: Context) -> None:
    """max_split_size_mb, if it is supported, keeps larger blocks whole."""
    change = context.own("allocator_settings")
    if "max_split_size_mb" not in context.descriptor.settings:
        _told(context, "max_split_size_mb:21")
        return

    def rise() -> int:
        """What a small block adds to `reserved` after a large one was freed."""
        fresh(context)
        freed(context, 40 * MIB)
        whole = context.counters().reserved
        block = context.bytes_of(2 * MIB)
        context.must(block.numel() == 2 * MIB, "the small one was there")
        return context.counters().reserved - whole

    context.must(rise() == 0, "by default a small one is cut from it")
    change("max_split_size_mb:21")
    context.check(rise() > 0, "now a small one is not cut from it")
    for statistic in ("oversize_allocations", "oversize_segments"):
        if not kept(context, statistic):
            continue
        name = f"{statistic}.current"
        fresh(context)
        before = context.counters().get(name)
        blocks = [context.bytes_of(40 * MIB), context.bytes_of(KIB)]
        context.same(context.counters().get(name) - before, 1, f"{name} counts the larger block")
        blocks.clear()
        fresh(context)
        context.same(context.counters().get(name), before, f"{name} is as before when it is freed")


@cases("allocator.settings", own_process=True, slow=True)
def unsupported(context: Context) -> None:
    """Every key that torch knows takes effect as declared, or raises or warns."""
    for key in sorted(SETTINGS - context.descriptor.settings):
        _told(context, f"{key}:{_VALUES[key]}")
    context.check(context.descriptor.settings <= SETTINGS, "the declared keys are torch's")


def _told(context: Context, text: str) -> None:
    """A setting without an effect raises or warns."""
    with warnings.catch_warnings(record=True) as told, _on_stderr() as said:
        warnings.simplefilter("always")
        try:
            context.own("allocator_settings")(text)
        except (ValueError, RuntimeError) as error:
            context.check(str(error), f"{text!r} says why it raises")
            return
    warned = told or any("warning" in line.lower() for line in said)
    context.check(warned, f"{text!r}, which the descriptor does not declare, raises or warns")


@contextmanager
def _on_stderr() -> Iterator[list[str]]:
    """The lines that C++ writes to stderr in the block: torch's warnings where no call of Python's is
    there to take them."""
    said: list[str] = []
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            said += file.read().decode(errors="replace").splitlines()
