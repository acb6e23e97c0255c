"""The descriptor of NVIDIA GPUs through CUDA. It was tested on an H100 with torch 2.11 (docs/cuda.md)."""

from __future__ import annotations

import functools
from pathlib import Path

from devices import machine
from devices.descriptor import Descriptor, common_facts, names


def _unavailable() -> str | None:
    if (lacks := machine.torch_lacks("torch_cuda")) is not None:
        return lacks
    if not machine.loads("libcuda.so.1", "nvcuda.dll"):
        return "no NVIDIA driver: its library (libcuda.so.1) cannot be loaded"
    gpus = Path("/proc/driver/nvidia/gpus")
    if gpus.is_dir() and not any(gpus.iterdir()):
        return "the NVIDIA driver sees no GPU (/proc/driver/nvidia/gpus is empty)"
    return None


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. The driver's version comes from the kernel module, because torch reports only
    the CUDA version."""
    torch = machine.late_module("torch")
    return common_facts(
        driver=machine.version_in("/sys/module/nvidia/version"),
        runtime=machine.plain_version(torch.version.cuda),
        device_name=torch.cuda.get_device_name(0),
    )


@functools.cache
def _cycles_per_ms() -> float:
    """Returns the number of clock cycles for which ``torch.cuda._sleep`` must be called to wait one millisecond. The
    number is measured once, as in torch's own tests (torch.testing._internal.common_utils)."""
    cuda = machine.late_module("torch.cuda")
    cycles, rates = 1_000_000, []
    for _ in range(5):
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        cuda._sleep(cycles)
        end.record()
        end.synchronize()
        rates.append(cycles / start.elapsed_time(end))
    return float(sorted(rates)[len(rates) // 2])


def _busy(milliseconds: float) -> None:
    """Keeps the current stream busy for the given time, by ``torch.cuda._sleep``, which takes a number of clock
    cycles."""
    machine.late_module("torch.cuda")._sleep(max(1, int(milliseconds * _cycles_per_ms())))


DESCRIPTOR = Descriptor(
    name="cuda",
    torch_type="cuda",
    title="NVIDIA GPU",
    sources=(
        "c10/core/AllocatorConfig.h: kMinBlockSize",
        "c10/cuda/CUDAStream.cpp: kStreamsPerPoolBits",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html",
        "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
        "torch.cuda: streams.py, graphs.py, memory.py",
        "torch.testing._internal.opinfo: dtypesIfCUDA, the dtypes of each op",
    ),
    # Not allocator_pluggable: CUDAPluggableAllocator takes functions of a library, not Python's.
    capabilities=names(
        "strides storage streams events timed_events event_ipc tensor_ipc stream_priority native_handle "
        "external_streams allocator_statistics allocator_memory_info allocator_fraction "
        "allocator_settings allocator_pools allocator_history "
        "pinned_memory host_statistics graphs graph_pools graph_modes graph_callables "
        "generator multi_device peer_access properties device_assert dlpack serialization "
        "autocast compile inductor profiler distributed fork_detection "
        "deterministic_algorithms"
    ),
    # The dtypes of each op come from torch's op database. Not float4_e2m1fn_x2, bits* and the quantized dtypes.
    dtypes=names(
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float8_e4m3fn float8_e4m3fnuz "
        "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float16 bfloat16 float32 float64 "
        "complex32 complex64 complex128"
    ),
    dtypes_by_op={"sparse.mm.reduce": frozenset()},  # only SparseCsrCPU registers a kernel
    alignment=512,  # every block begins at a multiple of kMinBlockSize
    granularity=512,
    # In a large segment, the rest of a block is split off only if it is larger than 1 MiB (kSmallSize).
    granularity_above={2**20: 2**20 + 512},
    stream_pool_size=32,  # per priority
    busy=_busy,
    compiler="inductor",
    settings=names(
        "max_split_size_mb max_non_split_rounding_mb garbage_collection_threshold "
        "roundup_power2_divisions expandable_segments"
    ),
    # For some arguments, these ops synchronize with the host or copy a number from it (same notes; observed in a run).
    not_captured=names(
        "__getitem__ _segment_reduce.lengths cholesky cholesky_inverse cholesky_solve "
        "combinations corrcoef cov histc index_fill index_put isin linalg.cholesky linalg.cond linalg.eig "
        "linalg.eigh linalg.eigvals linalg.eigvalsh linalg.inv linalg.ldl_factor "
        "linalg.ldl_factor_ex linalg.ldl_solve linalg.lu linalg.lu_factor linalg.lu_factor_ex "
        "linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_rank.hermitian "
        "linalg.norm linalg.norm.subgradients_at_zero linalg.pinv linalg.pinv.hermitian "
        "linalg.pinv.singular linalg.solve linalg.svd linalg.svdvals linalg.tensorinv "
        "linalg.tensorsolve linspace.tensor_overload logspace.tensor_overload lu masked.amax "
        "masked.amin masked.argmax masked.argmin masked.cumprod masked.cumsum masked.log_softmax "
        "masked.logaddexp masked.logsumexp masked.mean masked.median masked.norm masked.prod "
        "masked.softmax masked.softmin masked.std masked.sum masked.var masked_fill matrix_exp "
        "mode narrow nn.functional.ctc_loss nn.functional.gaussian_nll_loss norm.nuc normal "
        "pca_lowrank pinverse searchsorted svd svd_lowrank unique"
    ),
    captures_default_stream=False,  # docs/source/notes/cuda ("Constraints")
    functions={
        "record_history": "memory._record_memory_history",
        "snapshot": "memory._snapshot",
        "set_fraction": "memory.set_per_process_memory_fraction",
        "get_fraction": "memory.get_per_process_memory_fraction",
        "allocator_settings": "memory._set_allocator_settings",
        "pool": "MemPool",
        "use_pool": "use_mem_pool",
        "host_statistics": "memory.host_memory_stats",
        "stream": "Stream",
        "event": "Event",
        "ipc_collect": "ipc_collect",
        "external_stream": "ExternalStream",
        "properties": "get_device_properties",
        "can_access_peer": "can_device_access_peer",
        "manual_seed_all": "manual_seed_all",
        "get_rng_state": "get_rng_state",
        "set_rng_state": "set_rng_state",
        "graph": "CUDAGraph",
        "graph_callables": "make_graphed_callables",
        "is_capturing": "is_current_stream_capturing",
    },
    workers_per_device=4,  # each takes about 800 MiB; on an H100, twelve were hardly faster, because contexts take turns
    facts=_facts,
    unavailable=_unavailable,
    device_count=machine.counting("torch.cuda"),
)
