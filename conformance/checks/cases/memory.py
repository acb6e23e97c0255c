"""The memory of a device, and a limit on the memory of a process that makes large tensors.

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
    """Returns the bytes of memory in which tensors of the device lie, free or not; None if the device does not say.

    The number does not depend on what runs on the machine, so that two runs leave out the same cases.
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
    """Limits the address space of this process to what it has now and ``allowance`` bytes more, so that a request for
    more raises an exception. Without the limit, the system would end a process, this one or another. 0: no limit.

    Only Linux says how large the address space is; on other systems there is no limit.
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
