"""The descriptor of the simulated device, which can be built on every Linux machine and on which the suites themselves
are tested."""

from __future__ import annotations

import os

from devices.cpu.descriptor import DESCRIPTOR as CPU
from devices.cpu.descriptor import GLOO
from devices.descriptor import Descriptor, ProcessGroup, common_facts, names
from devices.machine import late_module
from devices.simulated.build_tools import missing_tools


def _count() -> int:
    text = os.environ.get("SIMULATED_DEVICES", "")  # the device itself refuses other texts
    return max(1, int(text)) if text.isdigit() else 2


#: Ops that, for some arguments at least, read values on the host or copy from its memory.
_NOT_CAPTURED = frozenset(
    {
        # a tensor of errors is asked whether it holds any
        *("cholesky", "linalg.cholesky", "linalg.inv", "linalg.ldl_factor", "linalg.lu_factor"),
        *("linalg.solve", "linalg.matrix_power", "linalg.tensorinv", "linalg.tensorsolve"),
        # values are looked at: numbers of elements, a start, lengths, whether weights or windows do
        *("linspace.tensor_overload", "logspace.tensor_overload", "narrow", "corrcoef", "cov"),
        *("histogramdd", "nn.functional.gaussian_nll_loss", "nn.functional.ctc_loss", "istft"),
        *("_segment_reduce.lengths", "nn.functional.one_hot"),
        # of the CPU, and tagged as drawing random numbers (it draws them if there is a dropout)
        *("_scaled_dot_product_flash_attention_for_cpu*",),
        # the shape of a result, on the way to another
        *("combinations", "unique"),
        # constants and indices are made on the host and copied; so is a result
        *("__getitem__", "masked.*", "unravel_index", "to"),
    }
)


DESCRIPTOR = Descriptor(
    name="simulated",
    torch_type="simulated",
    title="Simulated device",
    default=True,
    sources=(
        "https://docs.pytorch.org/docs/stable/accelerator/index.html",
        "c10/core/impl/DeviceGuardImplInterface.h",
        "c10/core/CachingDeviceAllocator.h",
        "ATen/detail/PrivateUse1HooksInterface.h",
    ),
    module="devices.simulated.backend",  # builds the library at first use
    capabilities=names(
        "strides storage streams events timed_events event_ipc tensor_ipc stream_priority native_handle "
        "external_streams allocator_statistics allocator_memory_info allocator_fraction "
        "allocator_settings allocator_pools allocator_history allocator_pluggable "
        "pinned_memory host_statistics graphs graph_pools graph_modes graph_callables "
        "generator multi_device peer_access properties device_assert dlpack serialization "
        "autocast compile profiler distributed fork_detection deterministic_algorithms "
        "quantized_products"
    ),
    # The CPU's kernels run here; its descriptor says why not others.
    dtypes=CPU.dtypes,
    # Their results or operands are sparse, and the device has strided tensors only.
    dtypes_by_op=dict.fromkeys(names("sparse.mm.reduce sparse.sampled_addmm to_sparse"), names("")),
    alignment=512,
    granularity=512,
    # What is left of a block in a large segment is split off above 1 MiB alone (kSmallSize).
    granularity_above={2**20: 2**20 + 512},
    stream_pool_size=16,  # of each priority: kPoolSize in csrc/stream.h
    priorities=(0, -1),  # kLeastPriority, kGreatestPriority
    concurrent_launches=16,  # each stream has a thread of its own
    busy=lambda milliseconds: late_module("torch.simulated").busy(milliseconds),
    gate=lambda: late_module("torch.simulated").Gate(),
    fail=lambda: late_module("devices.simulated.backend").library.fail(
        "a deliberate failure, which the suite queued for a test"
    ),
    compiler="simulated",  # backend/compiler.py
    kept_whole=names("native_layer_norm"),
    autoload="devices.simulated.autoload:autoload",
    settings=frozenset({"max_split_size_mb", "roundup_power2_divisions"}),
    assertions_are_fatal=False,  # an index is checked on the host
    process_group=ProcessGroup("simulated", GLOO.reductions, shares_indices=True),
    captures_default_stream=False,  # begin_capture in csrc/capture.cpp, as on CUDA
    not_captured=_NOT_CAPTURED,
    functions={
        "record_history": "memory._record_memory_history",
        "snapshot": "memory._snapshot",
        "set_fraction": "set_per_process_memory_fraction",
        "get_fraction": "get_per_process_memory_fraction",
        "allocator_settings": "memory._set_allocator_settings",
        "pool": "MemPool",
        "use_pool": "use_mem_pool",
        "pluggable": "memory.PluggableAllocator",
        "change_allocator": "memory.change_current_allocator",
        "driver_alloc": "memory.driver_alloc",
        "driver_free": "memory.driver_free",
        "host_statistics": "host_memory_stats",
        "empty_host_cache": "empty_host_cache",
        "ipc_collect": "ipc_collect",
        "stream": "Stream",
        "event": "Event",
        "external_stream": "ExternalStream",
        "properties": "get_device_properties",
        "can_access_peer": "can_device_access_peer",
        "manual_seed_all": "manual_seed_all",
        "get_rng_state": "get_rng_state",
        "set_rng_state": "set_rng_state",
        "graph_callables": "make_graphed_callables",
        "is_capturing": "is_current_stream_capturing",
    },
    workers_per_device=max(1, CPU.workers_per_device // _count()),  # they share its processors
    facts=lambda: common_facts(device_name="Simulated device"),
    unavailable=missing_tools,
    device_count=_count,
)
