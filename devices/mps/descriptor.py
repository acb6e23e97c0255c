"""The descriptor of Apple GPUs through Metal Performance Shaders. It was written from documentation and has never been
run; the first run may show that it needs corrections."""

from __future__ import annotations

import platform

from devices.descriptor import Descriptor, common_facts, names
from devices.machine import is_installed, late_module


def _unavailable() -> str | None:
    if not is_installed("torch"):
        return "torch is not installed"
    if platform.system() != "Darwin":
        return f"MPS exists on macOS only; this is {platform.system()}"
    if platform.machine() != "arm64":
        return f"torch for macOS needs Apple silicon (arm64); this is {platform.machine()}"
    return None


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. The driver is part of macOS, so its version is that of macOS. The device has no
    separate runtime."""
    name = late_module("torch.backends.mps").get_name()
    return common_facts(driver=platform.mac_ver()[0], device_name=name)


DESCRIPTOR = Descriptor(
    name="mps",
    torch_type="mps",
    title="Apple GPU",
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/mps.html: no float64",
        "https://docs.pytorch.org/docs/stable/mps.html",
        "ATen/mps/MPSAllocator.h: BufferBlock::alignUp, kMaxScalarAlloc",
        "ATen/mps/MPSGuardImpl.h: a new stream is the default one",
        "torch.testing._internal.common_mps: the dtypes that torch's tests leave out on MPS, op by op",
    ),
    # Not streams: a new stream is the default stream. Not multi_device: there is only one device.
    # Not allocator_statistics: torch.mps counts allocated and driver bytes, nothing else.
    capabilities=names(
        "strides storage events timed_events allocator_fraction generator serialization "
        "dlpack autocast compile inductor profiler fork_detection"
    ),
    # No float64, complex128 and float8: Metal has none (notes/mps).
    dtypes=names("bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 complex64"),
    dtypes_by_op={
        # torch.testing._internal.common_mps: convolutions of integers are not supported on MPS.
        f"nn.functional.conv{kind}{rank}d": frozenset(
            {"float16", "bfloat16", "float32", "complex64"}
        )
        for kind in ("", "_transpose")
        for rank in (1, 2, 3)
    },
    alignment=64,  # not documented: Metal's heaps decide; c10 guarantees at least 64 (gAlignment)
    granularity=None,  # sizes are rounded by a table that depends on the machine's memory
    compiler="inductor",
    busy=None,  # torch.mps has no primitive that spins
    facts=_facts,
    unavailable=_unavailable,
)
