"""Determines how much memory a device has, and limits the memory of a process that creates large tensors.

The module imports only what repro scripts contain.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from devices.machine import host_memory
from opinfo.device import Device

#: Bytes that the process may take in addition to a case's estimate: torch's own caches, stacks and heaps of threads.
_BESIDES = 2**30


def memory_of(device: Device) -> int | None:
    """Returns the total size, in bytes, of the memory in which the device's tensors lie; None if it is not known.

    The size does not depend on what else runs on the machine, so two runs leave out the same cases.
    """
    descriptor = device.descriptor
    if descriptor.host_memory:
        return host_memory()
    if "allocator_memory_info" not in descriptor.capabilities:
        return None
    try:
        return int(torch.accelerator.memory.get_memory_info(device.torch_device)[1])
    except Exception:  # the clause allocator.memory_info reports it
        return None


@contextlib.contextmanager
def limited(allowance: int) -> Iterator[None]:
    """Within the context, the address space of this process can grow by at most ``allowance`` bytes, so that a larger
    allocation raises an exception. Without this limit, the system might kill this process or another one. 0 means no
    limit.

    Only Linux reports the size of the address space; on other systems there is no limit.
    """
    if not allowance or not os.path.exists("/proc/self/statm"):
        yield
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as statm:
        now = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    least = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([now + allowance + _BESIDES, *least]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
