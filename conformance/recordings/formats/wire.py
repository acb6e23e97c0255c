"""The data structures of the JSON and YAML files of all formats. Fields that are not used are left out. The module does
not import torch."""

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
    """The arguments of the call that a node of an execution trace describes. Each list has one entry for each argument.
    A tensor's value is ``[tensor id, storage id, storage offset, number of elements, size of an element, device]``."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] | None = None  # None: a schema before 1.1 has no strides


class TraceAttribute(msgspec.Struct, frozen=True):
    """A named attribute of a node of an execution trace, such as the schema of the op."""

    name: str
    value: Any = None


class TraceNode(msgspec.Struct, frozen=True):
    """A node of an execution trace: a call of an op, or a region that contains calls. ``ctrl_deps`` is the id of the
    enclosing node."""

    id: int
    name: str
    ctrl_deps: int = 0
    inputs: TraceValues = TraceValues()
    attrs: list[TraceAttribute] = []

    def attribute(self, name: str) -> Any:
        """Returns the value of the attribute called ``name``; None if the node does not have it."""
        return next((each.value for each in self.attrs if each.name == name), None)


class ExecutionTrace(msgspec.Struct, frozen=True):
    """The content of the file of an execution trace."""

    schema: str
    nodes: list[TraceNode]


# -- Kineto's trace of a profile (torch/csrc/profiler/kineto_shim.cpp, collection.cpp)


class OpArguments(msgspec.Struct, frozen=True):
    """The ``args`` field of an event of a Chrome trace that is a call of an op. Each list has one entry for each
    argument of the op's schema."""

    dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    strides: list[Any] | None = msgspec.field(default=None, name="Input Strides")
    types: list[str] | None = msgspec.field(default=None, name="Input type")
    values: list[str] | None = msgspec.field(default=None, name="Concrete Inputs")


class TraceEvent(msgspec.Struct, frozen=True):
    """An event of a Chrome trace. Its start and duration are in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    pid: Any = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0
    args: Any = None


class ChromeTrace(msgspec.Struct, frozen=True):
    """The content of the file of a Chrome trace."""

    traceEvents: list[TraceEvent]


# -- exported programs (torch/_export/serde/schema.py): models/model.json in the archive

#: The dtypes, layouts and memory formats by their number in that module.
EXPORTED_TYPES: Final = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "float16"), 1)),
    **dict(enumerate(("float32", "float64", "complex32", "complex64", "complex128"), 7)),
    **{12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2"},
    **{31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu"},
    **{34: "uint32", 35: "uint64"},
}
EXPORTED_LAYOUTS: Final = {
    **{1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc"},
    **{6: "_mkldnn", 7: "strided"},
}
EXPORTED_FORMATS: Final = {
    1: "contiguous_format",
    2: "channels_last",
    3: "channels_last_3d",
    4: "preserve_format",
}


class ExportedTensor(msgspec.Struct, frozen=True):
    """The dtype, geometry and device of a tensor in an exported program. Each size, stride and offset is ``{"as_int":
    N}`` or ``{"as_expr": {"hint": {"as_int": N}}}``."""

    dtype: int
    sizes: list[Any]
    strides: list[Any]
    storage_offset: Any
    requires_grad: bool = False
    layout: int = 7
    device: dict[str, Any] = {}


class ExportedInput(msgspec.Struct, frozen=True):
    """An argument of a node of an exported program, such as ``{"as_tensor": {"name": "x"}}``."""

    name: str
    arg: dict[str, Any]


class ExportedNode(msgspec.Struct, frozen=True):
    """A node of an exported program: a call of an op."""

    target: str
    inputs: list[ExportedInput]
    outputs: list[dict[str, Any]] = []
    metadata: dict[str, str] = {}


class ExportedGraph(msgspec.Struct, frozen=True):
    """The calls of an exported program, and the geometry of each of its tensors by name."""

    nodes: list[ExportedNode]
    tensor_values: dict[str, ExportedTensor]
    sym_int_values: dict[str, Any] = {}


class ExportedSignature(msgspec.Struct, frozen=True):
    """The inputs of an exported program: its parameters, its buffers and the inputs from the user."""

    input_specs: list[dict[str, Any]] = []


class ExportedModule(msgspec.Struct, frozen=True):
    """The graph of an exported program, with its signature."""

    graph: ExportedGraph
    signature: ExportedSignature = ExportedSignature()


class ExportedProgram(msgspec.Struct, frozen=True):
    """An exported program without its weights."""

    graph_module: ExportedModule


# -- dumps of msprobe (Ascend): dump.json, and stack.json beside it


class DumpedCall(msgspec.Struct, frozen=True):
    """A call of a Python function in a dump of msprobe. In the entry of a backward pass, ``input`` has the gradients of
    the outputs. Values are ``{"type": "torch.Tensor", "dtype": …, "shape": …, "Max": …, "Min": …, "requires_grad": …}``
    or ``{"type": "int", "value": 2}``."""

    input_args: list[Any] | None = None
    input_kwargs: dict[str, Any] | None = None
    input: list[Any] | None = None


class Dump(msgspec.Struct, frozen=True):
    """The content of a dump of msprobe: its calls by names such as ``Tensor.__mul__.7.forward``."""

    data: dict[str, DumpedCall]
    task: str | None = None
    level: str | None = None
    framework: str | None = None


# -- test configurations of torch-spyre


class SpyreTensor(msgspec.Struct, frozen=True):
    """A tensor argument in a test configuration of torch-spyre. ``init`` names the method by which its elements are
    created."""

    shape: list[int]
    dtype: str
    stride: list[int] | None = None
    storage_offset: int = 0
    device: str = ""
    init: str = ""
    init_args: dict[str, Any] = {}


class SpyreArguments(msgspec.Struct, frozen=True):
    """The arguments of a call in a test configuration of torch-spyre. Each is ``{"tensor": …}``, ``{"tensor_list":
    […]}``, ``{"value": …}`` or ``{"py": "…"}``."""

    args: list[dict[str, Any]] = []
    kwargs: dict[str, Any] = {}


class SpyreCall(msgspec.Struct, frozen=True):
    """A call in a test configuration of torch-spyre, of a function such as ``torch.nn.functional.embedding``."""

    name: str
    sample_inputs_func: SpyreArguments | None = None
    inputs: SpyreArguments | None = None
    description: str = ""
