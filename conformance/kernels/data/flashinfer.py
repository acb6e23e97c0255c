"""The JSON documents in a trace folder of FlashInfer-Bench (https://github.com/flashinfer-ai/flashinfer-bench,
flashinfer_bench/data): ``definitions/``, ``workloads/``, ``solutions/`` and ``traces/``. Fields that this project does
not use are left out, except that a trace keeps its workload unchanged."""

from __future__ import annotations

from typing import Any

import msgspec


class Axis(msgspec.Struct, frozen=True):
    """A named size of a definition: a constant, or "var" if each workload sets it."""

    type: str
    value: int | None = None


class TensorSpec(msgspec.Struct, frozen=True):
    """The type of an input or output: its dtype and the names of its axes, which are None for a scalar."""

    shape: tuple[str, ...] | None
    dtype: str


class Definition(msgspec.Struct, frozen=True):
    """The definition of a computation. ``reference`` is the source of a Python module with a function ``run`` that
    computes the right result."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    op_type: str = "other"


class WorkloadInput(msgspec.Struct, frozen=True):
    """How the values of a workload's input are created: "random", "scalar" or "safetensors"."""

    type: str
    value: Any = None
    path: str = ""
    tensor_key: str = ""


class Workload(msgspec.Struct, frozen=True):
    """A workload: the sizes and inputs of one call."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, WorkloadInput]


class SourceFile(msgspec.Struct, frozen=True):
    """A source file of a solution."""

    path: str
    content: str


class Spec(msgspec.Struct, frozen=True):
    """How to call a solution. ``entry_point`` is "file::function". In destination-passing style, the function gets its
    output tensors as additional arguments."""

    language: str
    entry_point: str
    destination_passing_style: bool = True


class Solution(msgspec.Struct, frozen=True):
    """A solution: a kernel that implements a definition."""

    name: str
    definition: str
    spec: Spec
    sources: tuple[SourceFile, ...]


class Environment(msgspec.Struct, frozen=True):
    """The machine on which an evaluation was made."""

    hardware: str
    libs: dict[str, str]


class Correctness(msgspec.Struct, frozen=True):
    """The largest errors of a solution. Our judgement is stored in ``extra``, whose content the format leaves open."""

    max_relative_error: float
    max_absolute_error: float
    extra: dict[str, Any]


class Performance(msgspec.Struct, frozen=True):
    """The measured times of a call."""

    latency_ms: float
    reference_latency_ms: float
    speedup_factor: float


class Evaluation(msgspec.Struct, frozen=True):
    """The verdict on a solution for one workload."""

    status: str
    environment: Environment
    timestamp: str
    log: str
    correctness: Correctness | None
    performance: Performance | None


class Trace(msgspec.Struct, frozen=True):
    """A line of a file in ``workloads/`` (without a solution) or in ``traces/``."""

    definition: str
    workload: Any
    solution: str | None = None
    evaluation: Evaluation | None = None
