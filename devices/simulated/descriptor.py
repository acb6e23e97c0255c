"""The simulated device: the one that everyone has, and on which the suites prove themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping

from devices.descriptor import Descriptor, common_facts
from devices.simulated.toolchain import missing_tools


def _facts() -> Mapping[str, str]:
    return {**common_facts(), "device_name": "Simulated device"}


def _workers() -> int:
    """Kernels run on the host's processors: as many workers as this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


DESCRIPTOR = Descriptor(
    name="simulated",
    torch_type="simulated",
    title="Simulated device",
    sources=(
        "https://docs.pytorch.org/docs/stable/accelerator/index.html",
        "c10/core/impl/DeviceGuardImplInterface.h",
        "c10/core/CachingDeviceAllocator.h",
        "ATen/detail/PrivateUse1HooksInterface.h",
    ),
    module="devices.simulated.backend",  # builds the library at first use
    capabilities=frozenset({"strides", "storage", "generator", "deterministic_algorithms"}),
    # The CPU's kernels run here, so these are the CPU's: devices/cpu/descriptor.py says why not others.
    dtypes=frozenset(
        {
            "bool",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float16",
            "bfloat16",
            "float32",
            "float64",
            "complex32",
            "complex64",
            "complex128",
        }
    ),
    # Their results or operands are sparse, and the device has strided tensors only.
    dtypes_by_op={
        op: frozenset() for op in ("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse")
    },
    alignment=512,
    granularity=512,
    workers_per_device=_workers(),
    facts=_facts,
    unavailable=missing_tools,
)
