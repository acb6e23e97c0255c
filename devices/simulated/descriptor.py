"""The simulated device: the one that everyone has, and on which the suites prove themselves."""

from __future__ import annotations

from collections.abc import Mapping

from devices.cpu.descriptor import DESCRIPTOR as CPU
from devices.descriptor import Descriptor, common_facts
from devices.simulated.toolchain import missing_tools


def _facts() -> Mapping[str, str]:
    return {**common_facts(), "device_name": "Simulated device"}


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
    capabilities=frozenset(
        {
            "strides",
            "storage",
            "graphs",
            "graph_pools",
            "graph_modes",
            "graph_callables",
            "generator",
            "deterministic_algorithms",
        }
    ),
    # The CPU's kernels run here; its descriptor says why not others.
    dtypes=CPU.dtypes,
    # Their results or operands are sparse, and the device has strided tensors only.
    dtypes_by_op={
        op: frozenset() for op in ("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse")
    },
    alignment=512,
    granularity=512,
    workers_per_device=CPU.workers_per_device,  # kernels run on the host's processors
    facts=_facts,
    unavailable=missing_tools,
)
