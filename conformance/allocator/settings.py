"""allocator.settings: strings that change the allocator, as PYTORCH_ALLOC_CONF does."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from conformance.allocator.judging import KIB, MIB, fresh
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from devices.vocabulary import SETTINGS

cases = Cases()

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
    context.check(str(error).strip(), "the error says something", got=error)


@cases("allocator.settings", requires={"allocator_statistics"})
def rounding(context: Context) -> None:
    """roundup_power2_divisions, where it is supported, rounds requests up as it says."""
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
    """max_split_size_mb, where it is supported, keeps larger blocks whole."""
    change = context.own("allocator_settings")
    if "max_split_size_mb" not in context.descriptor.settings:
        _told(context, "max_split_size_mb:21")
        return
    fresh(context)
    block = context.bytes_of(40 * MIB)
    whole = context.counters().reserved
    del block
    block = context.bytes_of(2 * MIB)
    context.must(context.counters().reserved == whole, "by default a small one is cut from it")
    del block
    fresh(context)
    change("max_split_size_mb:21")
    block = context.bytes_of(40 * MIB)
    whole = context.counters().reserved
    del block
    block = context.bytes_of(2 * MIB)
    context.must(block.numel() == 2 * MIB, "the small one was there")
    context.check(context.counters().reserved > whole, "now a small one is not cut from it")


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
