"""The descriptor of the CPU. The CPU is the reference for every other device, and can itself be tested as a device."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from devices.descriptor import Autocast, Descriptor, ProcessGroup, common_facts, names


def _cpuinfo(*names: str) -> str:
    """Returns the value of the first of the given names that is found in /proc/cpuinfo; an empty text if none is found,
    or if the system is not Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in names and value.strip():
                return " ".join(value.split())
    return ""


def _model() -> str:
    """Returns the name of the processor, from /proc/cpuinfo if that file has the name, otherwise from Python."""
    named = _cpuinfo("model name", "cpu model", "Model")
    return (
        named or platform.processor() or platform.machine()
    )  # on 64-bit Arm, /proc/cpuinfo names no model


def _instructions() -> str:
    """Returns the names of the vector instructions that decide which dtypes torch passes to oneDNN: bfloat16 needs
    avx512bw, avx512vl and avx512dq, or avx_ne_convert; float16 needs avx512_fp16 or avx_ne_convert
    (mkldnn_check_low_precision, ATen/native/mkldnn/Utils.h)."""
    flags = set(_cpuinfo("flags").split())
    if {"avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "avx512_fp16" if "avx512_fp16" in flags else "avx512"
    return next((each for each in ("avx_ne_convert", "avx2") if each in flags), "other")


def _facts() -> dict[str, str]:
    """Returns the facts of the machine. A CPU has no driver and no runtime, so a manifest condition (`when`) on either
    of them is an error."""
    return common_facts(device_name=_model(), instructions=_instructions())


def _workers() -> int:
    """Returns the number of processors that the current process may use. In a container this number is often smaller
    than that of the machine."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_OWN_LISTS = (
    'the CPU\'s own lists (ATen/autocast_mode.cpp; docs/source/amp, "CPU Op-Specific Behavior")'
)

_AUTOCAST = (
    Autocast(
        "unlisted",
        names(
            "_convolution convolution addmv addr mv acos asin cosh erfinv exp expm1 log log10 log2 log1p "
            "reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm "
            "native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim "
            "cosine_similarity dist pdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d "
            "upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d "
            "upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d "
            "upsample_bicubic2d _upsample_bicubic2d_aa norm.Scalar norm.ScalarOpt_dim softmax.int "
            "log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord "
            "sum sum.dim_IntList addcdiv addcmul atan2 cross dot vdot index_put scatter_add"
        ),
        f"{_OWN_LISTS} do not name these ops",
    ),
    Autocast("float32", names("grid_sampler binary_cross_entropy"), f"{_OWN_LISTS} name these ops"),
    Autocast(
        "composed",
        names("bilinear tensordot lstm_cell gru_cell chain_matmul linalg_multi_dot"),
        f"{_OWN_LISTS} do not name these ops, but name mm and linear, which these ops call",
    ),
)

#: gloo refuses the other dtypes, and other reductions of complex numbers (ProcessGroupGloo.cpp, GENERATE_ALL_TYPES).
_REDUCED = names("float32 float64 float16 bfloat16 int64 int32 int8 uint8 bool")
GLOO = ProcessGroup(
    "gloo",
    {
        "SUM": _REDUCED - {"bool"} | names("complex64 complex128"),
        "AVG": names("float32 float64 float16 bfloat16 complex64 complex128"),
        **dict.fromkeys(("PRODUCT", "MIN", "MAX"), _REDUCED),
        **dict.fromkeys(("BAND", "BOR", "BXOR"), names("int64 int32 int8 uint8 bool")),
    },
    shares_indices=True,
)

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
        "distributed tensor_ipc deterministic_algorithms sparse quantized_products"
    ),
    # All dtypes that can be allocated and converted. Not float4_e2m1fn_x2, bits*, int1 to int7, uint1 to uint7, because their
    # copy_ is not implemented. Not the quantized dtypes, which are deprecated.
    dtypes=names(
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float8_e4m3fn float8_e4m3fnuz "
        "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float16 bfloat16 float32 float64 "
        "complex32 complex64 complex128"
    ),
    autocast=_AUTOCAST,
    process_group=GLOO,
    compiler="inductor",
    host_memory=True,
    alignment=64,  # c10::gAlignment
    workers_per_device=_workers(),
    facts=_facts,
)
