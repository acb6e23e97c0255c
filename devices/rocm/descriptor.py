"""The descriptor of AMD GPUs through ROCm. torch calls these devices "cuda" as well. The descriptor was written from
documentation and has never been run; the first run may show that it needs corrections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from devices import machine
from devices.cuda.descriptor import DESCRIPTOR as CUDA
from devices.descriptor import common_facts


def _unavailable() -> str | None:
    if (lacks := machine.torch_lacks("torch_hip")) is not None:
        return lacks
    if not Path("/dev/kfd").exists():
        return "no AMD GPU driver: /dev/kfd, which the amdgpu kernel module makes, is missing"
    libraries = (
        "libamdhip64.so",
        "libamdhip64.so.6",
        "libamdhip64.so.7",
    )  # the wheel of torch contains its own runtime
    lacks = machine.torch_lacks("amdhip64")
    if lacks is not None and not machine.loads(*libraries):
        return "the HIP runtime (libamdhip64.so) is neither in torch/lib nor found by the loader"
    return None


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. The driver has a version only if amdgpu was installed from AMD's package, not
    as part of the kernel."""
    torch = machine.late_module("torch")
    return common_facts(
        driver=machine.version_in("/sys/module/amdgpu/version"),
        runtime=machine.plain_version(torch.version.hip),
        device_name=torch.cuda.get_device_name(0),
    )


# torch.cuda's allocator, streams and functions are compiled for HIP too. So is _sleep, by which `busy` waits: it
# counts another clock, and is measured.
DESCRIPTOR = replace(
    CUDA,
    name="rocm",
    title="AMD GPU",
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/hip.html: torch.cuda is the module for AMD GPUs too",
        "c10/core/AllocatorConfig.h: kMinBlockSize",
        "c10/cuda/CUDAStream.cpp: kStreamsPerPoolBits",
        "torch.testing._internal.opinfo: dtypesIfROCM, the dtypes of each op",
    ),
    # As cuda, without device_assert (kernel assertions are off by default, notes/hip) and event_ipc,
    # which is untested.
    capabilities=CUDA.capabilities - {"device_assert", "event_ipc"},
    dtypes=CUDA.dtypes - {"float8_e8m0fnu"},
    settings=frozenset(),  # untested which settings have an effect
    facts=_facts,
    unavailable=_unavailable,
)
