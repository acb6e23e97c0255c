"""How much memory of the host this process holds, and whether what is repeated makes it grow.

It is measured in two ways. The *heap* is what malloc of glibc and Python's own small objects hold: exact, so that a sound
op grows it by nothing at all. The *resident* memory is what the system says that the process occupies and no file holds:
it counts pages that were mapped past malloc too, and is rough.

Both grow for other reasons than leaks: pools fill, pages are mapped. So twenty windows of an op of the host's, which is
known to be sound, say first how much a window grows without a leak. An op leaks if in each of sixteen windows in a row the
memory grew by more than the largest of these, and by more than a floor: counted over three windows, as what is freed late is
missing in one and too much in the next. A pool has sixteen windows to fill; and growth as that of the sound op is above
it once in 21 times, and sixteen times in a row never.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance.suites.allocator.memory import KIB

_WINDOWS: Final = 16
_TOGETHER: Final = 3  # windows that are counted as one
_SOUND: Final = 20  # windows of a sound op
#: Bytes that a small object of Python's counts for: they are between 16 and 512 long.
_OBJECT: Final = 64


class Held(NamedTuple):
    """Bytes of the host's memory, by the way of measuring; 0 where this system does not say."""

    resident: int
    heap: int

    def __str__(self) -> str:
        return f"{self.heap:,} bytes of heap and {self.resident:,} resident"

    def since(self, before: Held) -> Held:
        return Held(self.resident - before.resident, self.heap - before.heap)


#: What a window may grow by, of a few calls and of many.
FLOOR: Final = Held(resident=64 * KIB, heap=1 * KIB)
MANY_FLOOR: Final = Held(resident=256 * KIB, heap=16 * KIB)


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc's malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@cache
def _of_libc(name: str) -> Any:
    """A function of the C library, or None: they are glibc's own."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def held() -> Held:
    gc.collect()  # backward leaves cycles; only this empties Python's lists of free objects
    return Held(_resident(), _heap())


def _heap() -> int:
    mallinfo = _of_libc("mallinfo2")
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo2
    found = mallinfo()
    return int(found.uordblks + found.hblkhd) + _OBJECT * sys.getallocatedblocks()


def _resident() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    if (trim := _of_libc("malloc_trim")) is not None:
        trim(0)  # what is free in the heap is given back, or it would hide what leaks
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    return 0


@contextmanager
def little_to_collect() -> Iterator[None]:
    """A block in which collecting garbage looks at what was made in it only: each measurement collects. Garbage from before
    stays until the end."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def growths(window: Callable[[], None]) -> Iterator[Held]:
    """By how much the memory grows while something runs, again and again. What is held after one window is what was held
    before the next, so that each measures once. A window holds what is kept of the one before it, too: 64 bytes."""
    before = held()
    while True:
        window()
        after = held()
        yield after.since(before)
        before = after


def bound_of(window: Callable[[], None], floor: Held) -> Held:
    """What a window may grow by: the most in twenty windows of something sound, or the floor where that is more."""
    window()
    found = islice(growths(window), _SOUND)
    return Held(*map(max, zip(floor, *found)))


def grown(window: Callable[[], None], bound: Held) -> Held | None:
    """By how much the memory grew in sixteen windows, if one way of measuring says more than the bound of each; None if
    it does not leak."""
    found: list[Held] = []
    leaking = set(range(len(bound)))
    for growth in islice(growths(window), _WINDOWS):
        found.append(growth)
        last = found[-_TOGETHER:]
        if len(last) == _TOGETHER:
            leaking = {way for way in leaking if sum(x[way] for x in last) > _TOGETHER * bound[way]}
        if not leaking:
            return None
    return Held(*map(sum, zip(*found)))
