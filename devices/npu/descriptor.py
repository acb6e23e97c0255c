"""The descriptor of Huawei Ascend NPUs through torch_npu, which gives torch's backend PrivateUse1 the name
npu. The descriptor was written from documentation and has never been run; the first run may show that it needs
corrections."""

from __future__ import annotations

import os
from pathlib import Path

from devices.descriptor import Descriptor, common_facts, names
from devices.machine import counting, is_installed, late_module, version_in

#: "24.1.rc1", "8.0.RC2": PEP 440 takes both.
_VERSION = r"\d+(?:\.\d+)+(?:\.(?:rc|RC)\d+)?"


def _unavailable() -> str | None:
    if not is_installed("torch"):
        return "torch is not installed"
    if not is_installed("torch_npu"):
        return "the module torch_npu (the Ascend adapter) is not installed"
    if not any(Path("/dev").glob("davinci[0-9]*")):
        return "no Ascend driver: there is no davinci device in /dev"
    return None


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. The driver's version is in a file of the driver. The runtime is CANN,
    whose script set_env.sh sets an environment variable to the folder of CANN."""
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    runtime = version_in(Path(home) / "compiler" / "version.info", _VERSION) if home else ""
    return common_facts(
        driver=version_in("/usr/local/Ascend/driver/version.info", _VERSION),
        runtime=runtime,
        device_name=str(late_module("torch_npu").npu.get_device_name(0)),
    )


DESCRIPTOR = Descriptor(
    name="npu",
    torch_type="npu",
    title="Huawei Ascend NPU",
    sources=(
        "https://github.com/Ascend/pytorch: torch_npu/csrc/core/npu/NPUStream.cpp, NPUCachingAllocator.cpp",
        "https://www.hiascend.com/document: PyTorch native API support, torch_npu.npu",
    ),
    module="torch_npu",
    # Not dlpack: torch.from_dlpack is listed as unsupported. Not external_streams, event_ipc: neither
    # is listed. Not inductor: it needs a package of its own.
    capabilities=names(
        "strides storage streams events timed_events allocator_statistics "
        "allocator_memory_info allocator_fraction allocator_settings allocator_pools "
        "allocator_history allocator_pluggable pinned_memory graphs graph_pools generator "
        "multi_device peer_access properties serialization autocast compile profiler "
        "distributed"
    ),
    # As listed in the tables of native APIs (torch.empty, torch.zeros_like).
    dtypes=names(
        "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
    ),
    alignment=512,  # kMinBlockSize, and 32 bytes more behind each block
    granularity=512,
    stream_pool_size=8,  # 2^3 in releases up to 2.7, more in later ones: 8 are distinct in all
    facts=_facts,
    unavailable=_unavailable,
    device_count=counting("torch_npu.npu"),
)
