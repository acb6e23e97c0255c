"""The CPU: the reference of every other device, and a device of its own."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from devices.descriptor import Descriptor, common_facts, names


def _model() -> str:
    """The processor's name: from /proc/cpuinfo on Linux, else what Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "cpu model", "Model") and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()  # 64-bit Arm's cpuinfo names no model


def _facts() -> dict[str, str]:
    """No driver and no runtime: a CPU has neither, and a `when` that asks for one is an error."""
    return common_facts(device_name=_model())


def _workers() -> int:
    """The processors that this process may use: containers often allow fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


DESCRIPTOR = Descriptor(
    name="cpu",
    torch_type="cpu",
    title="CPU",
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-dtype",
        "https://docs.pytorch.org/docs/stable/cpu.html",
        "c10/core/alignment.h",
    ),
    # Not streams, events or properties: torch.cpu.Stream and Event do nothing, there is no
    # accelerator's allocator behind torch.accelerator.memory, and pinning needs an accelerator.
    # Not multi_device: device_count() is 1, although "cpu:1" is accepted. distributed: gloo.
    capabilities=names(
        "strides storage generator dlpack serialization autocast compile inductor profiler "
        "distributed deterministic_algorithms"
    ),
    # What allocates and converts. Not float4_e2m1fn_x2, bits*, int1 to int7, uint1 to uint7:
    # they allocate, and their copy_ is not implemented. Not the quantised ones: deprecated.
    dtypes=names(
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float8_e4m3fn float8_e4m3fnuz "
        "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float16 bfloat16 float32 float64 "
        "complex32 complex64 complex128"
    ),
    alignment=64,  # c10::gAlignment
    workers_per_device=_workers(),
    facts=_facts,
)
