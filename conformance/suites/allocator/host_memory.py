"""Measures how much host memory the current process holds, and decides if repeated work makes the memory grow.

Two quantities are measured. The *heap* is the memory allocated by glibc's malloc and by Python's allocator for small
objects. Its size is known exactly, so an op without a leak does not change it. The *resident* memory is the anonymous
memory that the system reports for the process. It includes pages that were mapped without malloc, and is imprecise. A
system other than Linux, such as macOS, reports neither: only Python's small objects are measured there, and the result
of a case says so.

A *window* is a number of repetitions of the work. Memory is measured before and after each window. Memory can grow in a
window without a leak, for example because pools fill or pages are mapped. So a CPU op that is known not to leak is
first run for 20 windows, and the largest growth of one window is noted. The tested work leaks if, in each of 16
consecutive windows, memory grows by more than this noted growth and by more than a fixed lower limit. Growth is
averaged over three windows, because memory that is freed late raises the growth of one window and lowers that of the
next. A pool thus has 16 windows to fill. Random growth like that of the CPU op exceeds the bound in one window of 21,
and practically never in 16 windows in a row.
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

from conformance.checks.behaviour.allocator_memory import KIB

_WINDOWS: Final = 16
_TOGETHER: Final = 3  # number of windows whose growth is summed
_SOUND: Final = 20  # number of windows of the sound op
#: Where Linux reports the resident memory of the process.
_STATUS: Final = Path("/proc/self/status")
#: The bytes that one small Python object counts for. Such objects take between 16 and 512 bytes.
_OBJECT: Final = 64


class Held(NamedTuple):
    """The bytes of host memory that the process uses: heap and resident memory, as the docstring of this module
    defines them. A quantity is 0 if the system cannot measure it."""

    resident: int
    heap: int

    def __str__(self) -> str:
        return f"{self.heap:,} bytes of heap and {self.resident:,} bytes of resident memory"

    def since(self, before: Held) -> Held:
        return Held(self.resident - before.resident, self.heap - before.heap)


#: The amount that a window of a few calls, or of many calls, may grow by.
FLOOR: Final = Held(resident=64 * KIB, heap=1 * KIB)
MANY_FLOOR: Final = Held(resident=256 * KIB, heap=16 * KIB)


class _Mallinfo2(ctypes.Structure):
    """The structure ``struct mallinfo2`` of glibc's malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@cache
def _of_libc(name: str) -> Any:
    """Returns the named function of the C library, or None if it is missing. The functions looked up here exist
    only in glibc."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def measure_host_memory() -> Held:
    gc.collect()  # backward leaves cycles, and only a collection empties Python's free lists
    return Held(_resident(), _heap())


def unmeasured() -> str:
    """Returns which part of host memory this system does not report; an empty string on Linux with glibc, where all is
    measured. macOS and Windows report the small objects of Python only, so that what a backend's own code keeps there is
    not seen."""
    missing = {
        "the heap of the C library": _of_libc("mallinfo2") is None,
        "the resident memory of the process": not _STATUS.exists(),
    }
    return " and ".join(name for name, absent in missing.items() if absent)


def _heap() -> int:
    objects = _OBJECT * sys.getallocatedblocks()
    mallinfo = _of_libc("mallinfo2")
    if mallinfo is None:
        return objects
    mallinfo.restype = _Mallinfo2
    found = mallinfo()
    return int(found.uordblks + found.hblkhd) + objects


def _resident() -> int:
    if not _STATUS.exists():
        return 0
    if (trim := _of_libc("malloc_trim")) is not None:
        trim(0)  # returns free heap memory to the system; otherwise it would hide a leak
    for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB
    return 0


@contextmanager
def little_to_collect() -> Iterator[None]:
    """Restricts garbage collection inside the ``with`` block to objects that were created in the block. This saves
    time, because every measurement collects garbage. Older garbage stays until the end of the block."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def growths(window: Callable[[], None]) -> Iterator[Held]:
    """Calls ``window`` endlessly, and yields after each call the number of bytes by which host memory grew. The
    measurement after one call is also the measurement before the next call. Each growth includes the 64 bytes that
    the previous result occupies."""
    before = measure_host_memory()
    while True:
        window()
        after = measure_host_memory()
        yield after.since(before)
        before = after


def bound_of(window: Callable[[], None], floor: Held) -> Held:
    """Returns how many bytes host memory may grow by in one call of ``window``, which runs an op that is known not to
    leak. This is the largest growth in 20 calls, but at least ``floor``."""
    window()
    found = islice(growths(window), _SOUND)
    return Held(*map(max, zip(floor, *found)))


def grown(window: Callable[[], None], bound: Held) -> Held | None:
    """Returns the total growth of host memory in bytes over 16 calls of ``window`` if the heap or the resident
    memory grew beyond its bound in all of them. Returns None if nothing leaks."""
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
