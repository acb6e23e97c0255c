"""The descriptor of Intel Gaudi through habana_frameworks, in eager mode, the default of habana_frameworks
(PT_HPU_LAZY_MODE=0). The descriptor was written from documentation and has never been run; the first run may show that
it needs corrections."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from devices.descriptor import Descriptor, common_facts, names
from devices.machine import counting, is_installed, late_module, plain_version, version_in


def _unavailable() -> str | None:
    if not is_installed("torch"):
        return "torch is not installed"
    if not is_installed("habana_frameworks"):
        return "the module habana_frameworks (Intel Gaudi's PyTorch bridge) is not installed"
    if not any(Path("/dev/accel").glob("accel*")):
        return "no Gaudi driver: /dev/accel, which the habanalabs kernel module makes, is empty"
    return None


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. The driver's version is that of the kernel module, the runtime's version that
    of the PyTorch bridge."""
    try:
        runtime = importlib.metadata.version("habana-torch-plugin")
    except importlib.metadata.PackageNotFoundError:
        runtime = ""  # unknown for a bridge that was built from source
    name = str(late_module("habana_frameworks.torch.hpu").get_device_name())
    return common_facts(
        driver=version_in("/sys/module/habanalabs/version"),
        runtime=plain_version(runtime),
        device_name=name,
    )


DESCRIPTOR = Descriptor(
    name="hpu",
    torch_type="hpu",
    title="Intel Gaudi",
    sources=(
        "https://docs.habana.ai/en/latest/PyTorch/Reference/PyTorch_Support_Matrix.html",
        "https://docs.habana.ai/en/latest/Pytorch_Operators/Pytorch_Operators.html",
        "https://docs.habana.ai/en/latest/PyTorch/Python_Packages.html: importing, autoloading",
        "https://docs.habana.ai/en/latest/PyTorch/PyTorch_Model_Porting: Placement of Ops on HPU",
        "torch.testing._internal.opinfo: dtypesIfHPU, the dtypes of each op",
    ),
    module="habana_frameworks.torch.core",
    compiler="hpu_backend",
    # Not graphs: HPU graphs exist in lazy mode only. Not inductor: torch.compile uses hpu_backend.
    capabilities=names(
        "strides storage streams events timed_events allocator_statistics "
        "allocator_memory_info pinned_memory generator properties serialization autocast "
        "compile profiler distributed"
    ),
    # The support matrix for eager mode. int64 is stored as int32 unless PT_ENABLE_INT64_SUPPORT=1. No float64 and complex.
    dtypes=names(
        "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float8_e4m3fn float8_e5m2"
    ),
    alignment=64,  # not documented; c10 guarantees at least this (c10::gAlignment)
    workers_per_device=1,  # one process uses a Gaudi exclusively
    # What is not registered for HPU, or not for the dtype, runs on the CPU by design; the bridge
    # keeps that list, so it is not repeated here.
    permitted_fallbacks=frozenset({"*"}),
    facts=_facts,
    unavailable=_unavailable,
    device_count=counting("habana_frameworks.torch.hpu"),
)
