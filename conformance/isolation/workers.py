"""How many processes run, on which device each, and which ways of handing out items there are."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from devices.descriptor import Descriptor
from devices.errors import ConformError

#: A worker holds torch, the op database and one op's buffers (bytes).
WORKER_MEMORY: Final = 600 * 2**20
#: Items that take as long as a worker's start does, where that one has to load all by itself: 3 s.
ITEMS_OF_A_WORKER: Final = 50
#: Distribution modes of xdist whose schedulers take an item back after its worker died.
SUPPORTED: Final = ("load", "worksteal")
#: pytest options with which a person looks at one process, or nothing runs.
_IN_PROCESS: Final = (
    *("usepdb", "trace", "collectonly", "setupplan", "setuponly", "setupshow", "showfixtures"),
    *("show_fixtures_per_test", "markers", "help", "version", "cacheshow", "looponfail"),
)


class BadDistribution(ConformError):
    """xdist would hand items out in a way that loses some when a worker dies."""


def check_distribution(option: Any) -> None:
    """Raises BadDistribution for a ``--dist`` that cannot take items back."""
    mode = getattr(option, "dist", "no")
    if mode not in ("no", *SUPPORTED):
        raise BadDistribution(
            f"--dist {mode}: expected load or worksteal. Its scheduler loses items, or runs them "
            "for ever, when a worker dies (pytest-xdist issues 742 and 784)"
        )


def wants_a_worker(option: Any) -> bool:
    """Whether a run for which no number of processes was given gets one worker: what crashes or hangs then ends
    that worker and not the run. ``-n 0`` asks for none; so do options to look at one process by hand."""
    if not hasattr(option, "numprocesses"):  # xdist is switched off
        return False
    if option.numprocesses is not None or option.tx or option.dist != "no":
        return False
    if getattr(option, "capture", "fd") == "no":
        return False
    return not any(getattr(option, name, False) for name in _IN_PROCESS)


def force_one(option: Any) -> None:
    """What ``-n 1`` would set."""
    option.numprocesses = 1
    option.dist = "load"
    option.tx = ["popen"]


def has_workers_here(option: Any) -> bool:
    """Whether a run has workers that are processes of this machine, on a system that hands descriptors on."""
    if option.collectonly or not hasattr(socket, "send_fds"):
        return False
    if not hasattr(option, "numprocesses"):  # xdist is switched off
        return False
    return bool(option.numprocesses) or any("popen" in tx for tx in option.tx)


def auto(descriptor: Descriptor) -> int:
    """Workers per device times devices, bounded by the processors and by half of the memory."""
    wanted = descriptor.workers_per_device * max(1, descriptor.device_count())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(wanted, _processors(), memory // 2 // WORKER_MEMORY))


def limit_workers(option: Any, items: int) -> None:
    """Leave as many workers as are worth their start."""
    del option.tx[max(1, -(-items // ITEMS_OF_A_WORKER)) :]


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def least_used(indices: Iterable[int], in_use: Mapping[str, int]) -> int:
    """The device index for another worker: the first of those that fewest live workers have."""
    used = list(in_use.values())
    return min(indices, key=lambda index: (used.count(index), index))
