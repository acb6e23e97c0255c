"""The documents of a trace folder of FlashInfer-Bench (https://github.com/flashinfer-ai/flashinfer-bench,
flashinfer_bench/data): ``definitions/``, ``workloads/``, ``solutions/`` and ``traces/``. Fields that are not used here are
left out; a trace keeps its workload as it was read."""

from __future__ import annotations

from typing import Any

import msgspec


class Axis(msgspec.Struct, frozen=True):
    """A named size: a constant, or one that each workload sets ("var")."""

    type: str
    value: int | None = None


class TensorSpec(msgspec.Struct, frozen=True):
    """An input or an output: the names of its axes, or None for a scalar, and its dtype."""

    shape: tuple[str, ...] | None
    dtype: str


class Definition(msgspec.Struct, frozen=True):
    """What a kernel computes. ``reference`` is the text of a Python module with a function ``run``."""

    name: str
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    op_type: str = "other"


class WorkloadInput(msgspec.Struct, frozen=True):
    """How an input of a workload is made: "random", "scalar" or "safetensors"."""

    type: str
    value: Any = None
    path: str = ""
    tensor_key: str = ""


class Workload(msgspec.Struct, frozen=True):
    """The sizes and inputs of one call."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, WorkloadInput]


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a solution."""

    path: str
    content: str


class Spec(msgspec.Struct, frozen=True):
    """How a solution is called. ``entry_point`` is "file::function". In destination-passing style, the function gets its
    outputs as further arguments."""

    language: str
    entry_point: str
    destination_passing_style: bool = True


class Solution(msgspec.Struct, frozen=True):
    """A kernel for a definition."""

    name: str
    definition: str
    spec: Spec
    sources: tuple[SourceFile, ...]


class Environment(msgspec.Struct, frozen=True):
    """The machine of an evaluation."""

    hardware: str
    libs: dict[str, str]


class Correctness(msgspec.Struct, frozen=True):
    """The largest errors. ``extra`` is free: our judgement stands there."""

    max_relative_error: float
    max_absolute_error: float
    extra: dict[str, Any]


class Performance(msgspec.Struct, frozen=True):
    """The times of a call."""

    latency_ms: float
    reference_latency_ms: float
    speedup_factor: float


class Evaluation(msgspec.Struct, frozen=True):
    """The verdict on a solution for a workload."""

    status: str
    environment: Environment
    timestamp: str
    log: str
    correctness: Correctness | None
    performance: Performance | None


class Trace(msgspec.Struct, frozen=True):
    """A line of ``workloads/`` (without a solution) or of ``traces/``."""

    definition: str
    workload: Any
    solution: str | None = None
    evaluation: Evaluation | None = None
