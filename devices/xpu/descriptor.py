"""The descriptor of Intel GPUs through SYCL and Level Zero. It was written from documentation and has never been run;
the first run may show that it needs corrections."""

from __future__ import annotations

from pathlib import Path

from devices import machine
from devices.cuda.descriptor import DESCRIPTOR as CUDA
from devices.descriptor import Descriptor, common_facts, names


def _unavailable() -> str | None:
    if (lacks := machine.torch_lacks("torch_xpu")) is not None:
        return lacks
    if not machine.loads("libze_loader.so.1", "ze_loader.dll"):
        return "no Level Zero loader (libze_loader.so.1): install the Intel GPU driver"
    dri = Path("/dev/dri")
    if Path("/dev").is_dir() and not any(dri.glob("renderD*")):
        return "no GPU that this process may use (/dev/dri has no render node)"
    return None


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. The driver's version is the one that SYCL reports ("1.6.33276" for
    "1.6.33276+16"), the runtime's version is that of the SYCL compiler."""
    torch = machine.late_module("torch")
    properties = torch.xpu.get_device_properties(0)
    return common_facts(
        driver=machine.plain_version(properties.driver_version),
        runtime=machine.plain_version(str(torch.version.xpu or "")),
        device_name=properties.name,
    )


_AS_IN_CUDA = names(
    "record_history snapshot set_fraction get_fraction stream event properties "
    "can_access_peer manual_seed_all get_rng_state set_rng_state"
)

DESCRIPTOR = Descriptor(
    name="xpu",
    torch_type="xpu",
    title="Intel GPU",
    sources=(
        "c10/xpu/XPUCachingAllocator.cpp: kDeviceAlignment",
        "c10/core/AllocatorConfig.h: kMinBlockSize",
        "c10/xpu/XPUStream.h: 32 queues for each priority",
        "https://docs.pytorch.org/docs/stable/xpu.html",
        "torch.xpu: streams.py, graphs.py, memory.py, random.py",
        "torch.testing._internal.opinfo: dtypesIfXPU, the dtypes of each op",
    ),
    # As cuda. Not external_streams: get_stream_from_external takes a sycl::queue pointer, which Python has
    # no other way to make. Not event_ipc, host_statistics, graph_callables: torch.xpu has none. Not tensor_ipc:
    # torch/multiprocessing/reductions.py sends tensors of the CPU and of CUDA.
    capabilities=CUDA.capabilities
    - names(
        "external_streams event_ipc tensor_ipc host_statistics graph_callables graph_modes device_assert"
    ),
    # Some GPUs have no float64 in hardware (Arc A-series): it is declared, and such a GPU's manifest
    # says so with `when = { device_name = "*Arc*A*" }`.
    dtypes=CUDA.dtypes - names("float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu complex32"),
    alignment=512,
    granularity=512,
    granularity_above={2**20: 2**20 + 512},  # c10/xpu/XPUCachingAllocator.cpp: kSmallSize
    stream_pool_size=32,
    functions={
        **{role: CUDA.functions[role] for role in _AS_IN_CUDA},
        "pool": "memory.MemPool",
        "use_pool": "memory.use_mem_pool",
        "external_stream": "get_stream_from_external",
    },
    busy=None,  # torch.xpu has no _sleep
    workers_per_device=2,
    # None: torch-xpu-ops runs a few ops on the CPU (XPUFallback.template), fewer with each release;
    # a first run says which are left.
    facts=_facts,
    unavailable=_unavailable,
    device_count=machine.counting("torch.xpu"),
)
