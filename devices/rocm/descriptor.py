"""AMD GPUs through ROCm: torch calls them "cuda" too.

From torch's headers, documentation and own tables. Not tried: no AMD GPU was at hand when it was
written, so every statement here is one that a first run may correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from devices.cuda.descriptor import DESCRIPTOR as CUDA
from devices.cuda.descriptor import FUNCTIONS, busy
from devices.descriptor import (
    Descriptor,
    common_facts,
    first_that_loads,
    lent,
    plain_version,
    torch_lacks,
    version_in,
)


def _unavailable() -> str | None:
    if (lacks := torch_lacks("torch_hip")) is not None:
        return lacks
    if not Path("/dev/kfd").exists():
        return "no AMD GPU driver: /dev/kfd, which the amdgpu kernel module makes, is missing"
    libraries = ("libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.7")  # the wheel has its own
    lacks = torch_lacks("amdhip64")
    if lacks is not None and first_that_loads(libraries) is None:
        return "the HIP runtime (libamdhip64.so) is neither in torch/lib nor found by the loader"
    return None


def _facts() -> Mapping[str, str]:
    """The driver's version exists where amdgpu comes from AMD's package; in the kernel's own it has none."""
    torch = lent("torch")
    return common_facts(
        driver=version_in("/sys/module/amdgpu/version"),
        runtime=plain_version(torch.version.hip),
        device_name=torch.cuda.get_device_name(0),
    )


def _count() -> int:
    return int(lent("torch.cuda").device_count())


DESCRIPTOR = Descriptor(
    name="rocm",
    torch_type="cuda",
    title="AMD GPU",
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/hip.html: torch.cuda is reused",
        "c10/core/AllocatorConfig.h: kMinBlockSize",
        "c10/cuda/CUDAStream.cpp: kStreamsPerPoolBits",
        "torch.testing._internal.opinfo: dtypesIfROCM, for dtypes by op",
    ),
    # As cuda, without device_assert (kernel assertions are off by default, notes/hip) and event_ipc,
    # which nobody has tried.
    capabilities=CUDA.capabilities - {"device_assert", "event_ipc"},
    dtypes=CUDA.dtypes - {"float8_e8m0fnu"},
    alignment=512,
    granularity=512,
    granularity_above={2**20: 2**20 + 512},  # as for cuda: the same allocator
    stream_pool_size=32,
    captures_default_stream=False,  # docs/source/notes/cuda ("Constraints")
    functions=FUNCTIONS,
    busy=busy,  # torch.cuda._sleep is compiled for HIP too; it counts another clock, and is measured
    workers_per_device=4,
    facts=_facts,
    unavailable=_unavailable,
    device_count=_count,
)
