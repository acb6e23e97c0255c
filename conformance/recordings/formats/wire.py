"""The content of the files of all formats, as far as it is read. The module does not import torch."""

from __future__ import annotations

from typing import Any, Final

import msgspec

# -- numbers by which torch's C++ code writes constants

#: The dtypes by their number in c10::ScalarType.
SCALAR_TYPES: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
    *(f"uint{bits}" for bits in range(1, 8)),
    *(f"int{bits}" for bits in range(1, 8)),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
#: The layouts by their number in c10::Layout.
LAYOUTS: Final = (
    *("strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc"),
    "jagged",
)
#: The memory formats by their number in c10::MemoryFormat.
MEMORY_FORMATS: Final = (
    *("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
)
#: The dtypes by the name of the C++ type, as execution traces and Kineto write it.
CPP_TYPES: Final = {
    "unsigned char": "uint8",
    "signed char": "int8",
    "short int": "int16",
    "short": "int16",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "long long": "int64",
    "short unsigned int": "uint16",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "long unsigned int": "uint64",
    "unsigned long": "uint64",
    "float": "float32",
    "double": "float64",
    "bool": "bool",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::complex<c10::Half>": "complex32",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
}


# -- PyTorch's execution trace (torch/csrc/profiler/standalone/execution_trace_observer.cpp)


class TraceValues(msgspec.Struct, frozen=True):
    """The arguments of a node. The lists have one entry for each argument. A tensor's value is ``[tensor id, storage id,
    storage offset, number of elements, size of an element, device]``."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] | None = None  # None: a schema before 1.1 has no strides


class TraceAttribute(msgspec.Struct, frozen=True):
    """A named value of a node, such as its schema."""

    name: str
    value: Any = None


class TraceNode(msgspec.Struct, frozen=True):
    """A call of an op, or a region that contains calls. ``ctrl_deps`` is the id of the node that contains it."""

    id: int
    name: str
    ctrl_deps: int = 0
    inputs: TraceValues = TraceValues()
    attrs: list[TraceAttribute] = []

    def attribute(self, name: str) -> Any:
        """Returns the value of an attribute; None if the node does not have it."""
        return next((each.value for each in self.attrs if each.name == name), None)


class ExecutionTrace(msgspec.Struct, frozen=True):
    """An execution trace."""

    schema: str
    nodes: list[TraceNode]


# -- Kineto's trace of a profile (torch/csrc/profiler/kineto_shim.cpp, collection.cpp)


class OpArguments(msgspec.Struct, frozen=True):
    """The ``args`` of an event of an op. The lists have one entry for each argument of the op's schema."""

    dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    strides: list[Any] | None = msgspec.field(default=None, name="Input Strides")
    types: list[str] | None = msgspec.field(default=None, name="Input type")
    values: list[str] | None = msgspec.field(default=None, name="Concrete Inputs")


class TraceEvent(msgspec.Struct, frozen=True):
    """An event of a Chrome trace. Times are microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    pid: Any = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0
    args: Any = None


class ChromeTrace(msgspec.Struct, frozen=True):
    """A Chrome trace."""

    traceEvents: list[TraceEvent]
