"""Cases about requests that do not fit into memory, about memory limits, and about the settings that change the
allocator's behaviour."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    MIB,
    TOO_MUCH,
    filled,
    fits_in_memory,
    freed,
    fresh,
    has_statistics,
    keeps,
    memory_info,
    new_queue,
)
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.descriptor import SETTINGS
from devices.failure import Kind

cases = Cases(Kind.MEMORY)


@cases("allocator.memory_info", alone=True)
def free_falls(context: CaseContext) -> None:
    """A large block is allocated and freed. get_memory_info satisfies 0 <= free <= total, and the total stays the same.
    While the block is live, free memory is lower by at least half the size of the block."""
    fresh(context)
    free, total = memory_info(context)
    context.check(
        0 <= free <= total,
        "get_memory_info returned values that violate 0 <= free <= total",
        found=(free, total),
    )
    size = fits_in_memory(context)
    block = context.bytes_of(size)
    context.must(block.numel() == size, "the block has the wrong number of elements")
    less, same = memory_info(context)
    context.same(same, total, "the total of get_memory_info changed")
    text = f"free memory fell by less than half of the size of a block of {size} bytes"
    # Only half of the size is required, because other processes may free memory at the same time.
    context.check(less <= free - size // 2, text, found=free - less)
    del block
    fresh(context)
    context.same(
        memory_info(context)[1],
        total,
        "the total of get_memory_info changed when a block was freed",
    )


@cases("allocator.memory_info", alone=True, requires={"allocator_statistics"})
def cached_is_not_free(context: CaseContext) -> None:
    """Memory that the allocator reserves is not reported as free: free plus reserved memory is at most the
    total, both while a block is live and after the block was freed into the cache."""
    fresh(context)
    size = fits_in_memory(context)
    with new_queue(context):
        block = context.bytes_of(size)
        for state in ("live", "cached"):
            free, total = memory_info(context)
            reserved = context.counters().reserved
            text = f"free and reserved memory exceed the total while a block of {size} bytes is {state}"
            context.check(free + reserved <= total, text, expected=total, found=free + reserved)
            block = torch.empty(0)  # frees the block into the cache
        context.same(block.numel(), 0, "the block was not freed")
    fresh(context)


@cases("allocator.oom", alone=True)
def totals_are_reset(context: CaseContext) -> None:
    """After a request ran out of memory, reset_accumulated_memory_stats sets num_ooms and num_alloc_retries to
    zero."""
    context.must(_runs_out(context), "a request of 32 TiB did not fail")
    torch.accelerator.memory.reset_accumulated_memory_stats(context.at(0))
    now = context.counters()
    names = [name for name in ("num_ooms", "num_alloc_retries") if has_statistics(context, name)]
    context.same(
        {name: now[name] for name in names},
        dict.fromkeys(names, 0),
        "reset_accumulated_memory_stats left a counter of failed requests above zero",
    )


@cases("allocator.oom", alone=True)
def more_than_there_is(context: CaseContext) -> None:
    """A request larger than the total memory raises torch.OutOfMemoryError. The message contains the size of the
    request, in GiB or TiB."""
    text = "a request of 32 TiB did not raise torch.OutOfMemoryError with the size in its message"
    size = r"32768(\.00)? GiB|32(\.00)? TiB"
    context.raises(torch.OutOfMemoryError, context.bytes_of, TOO_MUCH, text=text, match=size)


@cases("allocator.oom", alone=True)
def goes_on(context: CaseContext) -> None:
    """After a request ran out of memory, live tensors keep their bytes and the next request that fits
    succeeds."""
    live = filled(context, 30_000, 5)
    context.must(_runs_out(context), "a request of 32 TiB did not fail")
    keeps(context, live, 5, "running out of memory changed a live tensor")
    keeps(
        context,
        filled(context, 64 * KIB, 6),
        6,
        "a block that was allocated after a request ran out of memory has wrong bytes",
    )


@cases("allocator.oom", alone=True)
def is_counted(context: CaseContext) -> None:
    """A request that runs out of memory raises the counters num_ooms and num_alloc_retries by one each, and
    does not change the allocated bytes."""
    before = context.counters()
    context.must(_runs_out(context), "a request of 32 TiB did not fail")
    now = context.counters()
    for name in ("num_ooms", "num_alloc_retries"):
        if has_statistics(context, name):
            context.same(
                now[name] - before[name], 1, f"a failed request did not raise {name} by one"
            )
    context.same(now.allocated, before.allocated, "a failed request changed `allocated`")


@cases("allocator.oom", alone=True, requires={"allocator_memory_info"})
def filled_up(context: CaseContext) -> None:
    """Blocks are allocated until memory is full. Live blocks then keep their bytes, and memory that is freed
    can be allocated again."""
    fresh(context)
    free, _ = memory_info(context)
    step = max(free // 12, MIB)
    blocks: list[torch.Tensor] = []
    with suppress(torch.OutOfMemoryError):
        for _ in range(14):
            blocks.append(context.bytes_of(step))
    ended = len(blocks) < 14
    context.check(
        ended,
        f"14 blocks, each of a twelfth of the free memory ({step} bytes), were allocated without torch.OutOfMemoryError",
    )
    context.must(len(blocks) >= 2, "fewer than two blocks fit into memory")
    blocks[0].fill_(7)
    blocks.pop()
    again = context.bytes_of(step)
    again.fill_(9)
    context.same(int(blocks[0][-1]), 7, "filling up memory changed a live block")
    context.same(int(again[-1]), 9, "memory that was freed and allocated again has wrong bytes")
    blocks.clear()
    del again
    fresh(context)


def _runs_out(context: CaseContext) -> bool:
    """Requests more memory than any device has. Returns True if the request raises a RuntimeError of any type, as it
    must."""
    try:
        context.bytes_of(TOO_MUCH)
    except RuntimeError:
        return True
    return False


def _ones(context: CaseContext, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=context.device)


#: Calls with invalid arguments, which must raise.
_WRONG: dict[str, Callable[[CaseContext], torch.Tensor]] = {
    "shapes": lambda context: _ones(context, 2) + _ones(context, 3),
    "inner_sizes": lambda context: torch.mm(_ones(context, 2, 3), _ones(context, 2, 3)),
    "cat": lambda context: torch.cat([_ones(context, 2, 2), _ones(context, 3, 3)]),
    "out_dtype": lambda context: torch.add(
        _ones(context, 4), _ones(context, 4), out=_ones(context, 4, dtype=torch.int64)
    ),
    "overlap": lambda context: _ones(context, 1).expand(4).add_(1),
}


@cases("allocator.error_leak", over={name: (name,) for name in _WRONG})
def op_raises(context: CaseContext, name: str) -> None:
    """An op is called with invalid arguments and raises an exception. The allocated bytes do not change."""
    before = context.counters().allocated
    for _ in range(3):
        error = context.raises(
            RuntimeError,
            _WRONG[name],
            context,
            text="a call with invalid arguments did not raise RuntimeError",
        )
        if error is not None:
            error.__traceback__ = None  # the frames of the traceback keep the operands alive
        del error
    context.same(
        context.counters().allocated,
        before,
        "an op that raised an exception leaked memory: `allocated` changed",
    )


@contextmanager
def _fraction(
    context: CaseContext,
) -> Iterator[tuple[Callable[[], float], Callable[[float], None]]]:
    """Yields two functions: one returns the memory fraction, the other sets it. After the ``with`` block, the fraction
    is what it was before."""
    get, change = context.own("get_fraction"), context.own("set_fraction")
    before = get(0)
    try:
        yield partial(get, 0), lambda fraction: change(fraction, 0)
    finally:
        change(before, 0)


@cases("allocator.fraction", alone=True, requires={"allocator_memory_info", "allocator_statistics"})
def limits(context: CaseContext) -> None:
    """After set_per_process_memory_fraction, the first request that needs a new segment beyond the fraction
    raises torch.OutOfMemoryError, and requests within the fraction succeed. After the limit was removed, a
    larger request succeeds."""
    fresh(context)
    size = fits_in_memory(context)
    reserved, (_, total) = context.counters().reserved, memory_info(context)
    with _fraction(context) as (get, change):
        change((reserved + 1.5 * size) / total)
        text = "the memory fraction that was read differs from the one that was set (both are multiplied by the total memory)"
        context.same(round(get() * total), round(reserved + 1.5 * size), text)
        block = context.bytes_of(size)
        context.check(
            block.numel() == size,
            "a request within the fraction returned a block of the wrong size",
        )
        text = "a request above the fraction did not raise torch.OutOfMemoryError"
        context.raises(torch.OutOfMemoryError, context.bytes_of, size + MIB, text=text)
        del block
    block = context.bytes_of(2 * size)
    context.check(
        block.numel() == 2 * size,
        "a request after the fraction was restored returned a block of the wrong size",
    )
    del block
    fresh(context)


@cases("allocator.fraction", over={"negative": (-0.5,), "above_one": (1.5,), "no_number": (float("nan"),)})  # fmt: skip
def invalid(context: CaseContext, fraction: float) -> None:
    """Setting the memory fraction to a number outside of [0, 1], or to NaN, raises an error and leaves the fraction as
    it was."""
    with _fraction(context) as (get, change):
        before, text = (
            get(),
            f"setting the memory fraction to {fraction} did not raise the documented exception",
        )
        context.raises((ValueError, RuntimeError), change, fraction, text=text)
        context.same(
            get(),
            before,
            "setting an invalid memory fraction raised an exception, but also changed the fraction",
        )


@cases("allocator.fraction", indices=2)
def of_its_index(context: CaseContext) -> None:
    """Setting the memory fraction of one device index sets it for that index, and leaves the fraction of the other
    index as it was. Without a device, the functions are about the current index."""
    get, change = context.own("get_fraction"), context.own("set_fraction")
    before = [get(index) for index in (0, 1)]
    try:
        for index in (0, 1):
            change(0.5 + index / 8, index)
            change(0.75, 1 - index)
            found = [get(each) for each in (index, 1 - index)]
            text = "the memory fractions of two indices differ from those that were set, one after the other"
            context.same(found, [0.5 + index / 8, 0.75], text)
        with context.on(1):
            change(0.25)
            text = "set_fraction or get_fraction without a device is not about the current index, 1"
            context.same([get(), get(1), get(0)], [0.25, 0.25, 0.75], text)
    finally:
        for index, fraction in enumerate(before):
            change(fraction, index)


#: A valid value for each key of c10/core/AllocatorConfig.h and of the CUDA allocator's documentation.
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
def refused(context: CaseContext, text: str, named: str | None) -> None:
    """Allocator settings with an unknown key or an invalid value raise an error with a message. For an
    unknown key the message names the key."""
    error = context.raises(
        (ValueError, RuntimeError),
        lambda: context.own("allocator_settings")(text),
        text=f"the invalid setting {text!r} did not raise the documented exception",
        match=named,
    )
    context.check(
        str(error).strip(), "the exception for an invalid setting has no message", found=error
    )


#: Numbers of divisions, requested sizes, and the bytes that are allocated for them. The sizes lie behind a step between two
#: powers of two, and exactly on one, where nothing is rounded.
_ROUNDED = (
    *(
        (1, 64 * KIB + 512, 64 * KIB + 512),
        (2, 64 * KIB + 512, 96 * KIB),
        (4, 64 * KIB + 512, 80 * KIB),
    ),
    *(
        (1, 80 * KIB, 80 * KIB),
        (2, 96 * KIB, 96 * KIB),
        (4, 80 * KIB, 80 * KIB),
        (4, 80 * KIB + 1, 96 * KIB),
    ),
    *((4, 128 * KIB, 128 * KIB), (4, 112 * KIB + 1, 128 * KIB)),
)


@cases("allocator.settings", requires={"allocator_statistics"})
def rounding(context: CaseContext) -> None:
    """If the descriptor declares the setting roundup_power2_divisions, requests are rounded up as documented for each
    value of the setting, and those that lie on a step are not. If the descriptor does not declare it, changing the setting raises an error or gives a
    warning."""
    change = context.own("allocator_settings")
    if "roundup_power2_divisions" not in context.descriptor.settings:
        _check_refused_setting(context, "roundup_power2_divisions:4")
        return
    try:
        for divisions, size, expected in _ROUNDED:
            change(f"roundup_power2_divisions:{divisions}")
            before = context.counters().allocated
            block = context.bytes_of(size)
            rise = context.counters().allocated - before
            context.must(block.numel() == size, "the block does not have the requested size")
            context.same(
                rise,
                expected,
                f"with roundup_power2_divisions:{divisions}, a block of {size} bytes raised `allocated` by the wrong amount",
            )
            del block
    finally:
        change("roundup_power2_divisions:1")


#: The statistics of blocks and segments above max_split_size_mb.
_OVERSIZE = ("oversize_allocations", "oversize_segments")


@cases("allocator.settings", requires={"allocator_statistics"}, own_process=True, slow=True)
def no_split(context: CaseContext) -> None:
    """If the descriptor declares the setting max_split_size_mb, freed blocks above that size are not split for small
    requests, but serve requests of their own size, and freed blocks below that size are still split. If the descriptor
    does not declare it, changing the setting raises an error or gives a warning."""
    change = context.own("allocator_settings")
    if "max_split_size_mb" not in context.descriptor.settings:
        _check_refused_setting(context, "max_split_size_mb:21")
        return

    def rise(large: int = 40 * MIB, small: int = 2 * MIB) -> int:
        """Frees a large block, and allocates two small ones or, if only one fits into the large block, one. Returns by how
        many bytes `reserved` rises for them."""
        fresh(context)
        freed(context, large)
        whole = context.counters().reserved
        blocks = [context.bytes_of(small) for _ in range(min(2, large // small))]
        context.must(blocks[0].numel() == small, "the small block has the wrong size")
        return context.counters().reserved - whole

    context.must(
        rise() == 0,
        "with the default settings, a small block was not cut from the freed large block",
    )
    block = context.bytes_of(40 * MIB)
    for statistic in _OVERSIZE:
        if (
            has_statistics(context, statistic, "max_split_size")
            and context.counters()["max_split_size"] == -1
        ):
            text = f"{statistic} counts a block although max_split_size_mb is not set"
            context.same(context.counters().get(f"{statistic}.allocated"), 0, text)
    del block
    change("max_split_size_mb:21")
    context.check(
        rise() > 0,
        "a small block was cut from a freed block that is larger than max_split_size_mb and must not be split",
    )
    context.same(
        rise(large=20 * MIB),
        0,
        "a small block was not cut from a freed block that is smaller than max_split_size_mb (the growth of `reserved` in bytes)",
    )
    context.same(
        rise(small=40 * MIB),
        0,
        "a freed block that is larger than max_split_size_mb did not serve a request of its own size (the growth of `reserved` in bytes)",
    )
    for statistic in _OVERSIZE:
        if not has_statistics(context, statistic):
            continue
        name = f"{statistic}.current"
        fresh(context)
        before = context.counters().get(name)
        blocks = [context.bytes_of(40 * MIB), context.bytes_of(KIB)]
        context.same(
            context.counters().get(name) - before,
            1,
            f"{name} does not count a block that is larger than max_split_size_mb",
        )
        context.must(len(blocks) == 2, "the blocks were not allocated")
        blocks.clear()
        fresh(context)
        torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
        torch.accelerator.memory.reset_accumulated_memory_stats(context.at(0))
        now = context.counters()
        found = [now.get(f"{statistic}.{metric}") for metric in ("peak", "allocated", "freed")]
        text = f"resetting the statistics left a peak of {statistic} above its current value, or a total above zero"
        context.same(found, [now.get(name), 0, 0], text)
        context.same(
            context.counters().get(name),
            before,
            f"{name} did not return to its value after the block was freed",
        )


@cases("allocator.settings", own_process=True, slow=True)
def unsupported(context: CaseContext) -> None:
    """Each allocator setting that torch knows but the descriptor does not declare is set. Each time an error is
    raised or a warning is given."""
    for key in sorted(SETTINGS - context.descriptor.settings):
        _check_refused_setting(context, f"{key}:{_VALUES[key]}")
    context.check(
        context.descriptor.settings <= SETTINGS,
        "the descriptor declares settings that torch does not know",
    )


def _check_refused_setting(context: CaseContext, text: str) -> None:
    """Checks that setting an allocator option that the descriptor does not declare raises an error or gives a warning.
    ``text`` is the setting, such as "max_split_size_mb:21"."""
    with warnings.catch_warnings(record=True) as told, _on_stderr() as said:
        warnings.simplefilter("always")
        try:
            context.own("allocator_settings")(text)
        except (ValueError, RuntimeError) as error:
            context.check(str(error), f"the exception for the setting {text!r} has no message")
            return
    warned = told or any("warning" in line.lower() for line in said)
    context.check(
        warned,
        f"the setting {text!r}, which the descriptor does not declare, neither raised an exception nor gave a warning",
    )


@contextmanager
def _on_stderr() -> Iterator[list[str]]:
    """Yields a list that receives, after the ``with`` block, the lines written to stderr inside it. torch
    writes warnings to stderr when no Python frame can receive them."""
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
