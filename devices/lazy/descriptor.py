"""The descriptor of lazy tensors (``torch._lazy``) on torch's in-tree TorchScript backend. Like the CPU, this device
exists on every machine.

Ops are traced into a graph. The CPU runs the graph through TorchScript when a value is read or a step is marked. A lazy
tensor has a shape and a dtype; it always reports the strides of a contiguous tensor, offset 0 and no address, even for
a view. Therefore the descriptor declares neither strides nor storage.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Sequence
from typing import Any

from devices.descriptor import Descriptor, names
from devices.machine import is_installed, late_module

#: The number of barriers until no late error remains. torch 2.13 raises each error twice.
_BARRIERS = 4


def settle(tensors: Sequence[Any]) -> None:
    """Computes the given tensors and waits for them. Raises the first error of a delayed computation, and leaves no
    such error behind.

    The error of a failed graph is raised by the barrier that waits for the graph, and once more by the next barrier
    (torch 2.13), where it seems to come from another op. Barriers are therefore repeated until one raises no error.

    The function does not use ``mark_step``, which computes all live tensors in one graph: the cache of compiled graphs
    confuses operands of equal shape (torch 2.13: with lazy a and b, ``(a - b) * b`` after ``(a - b) * a`` gives ``(a -
    b) * a``), so the result of a call would depend on all live tensors.
    """
    lazy = late_module("torch._lazy")
    first: Exception | None = None
    for barrier in range(_BARRIERS):
        try:
            # Only once: computing a failed graph again would leave another error.
            if barrier == 0:
                lazy.sync_multi(list(tensors), [])
            lazy.wait_device_ops()
        except RuntimeError as error:
            first = first or error
        else:
            break
    if first is not None:
        raise first


def from_device(tensor: Any) -> Any:
    """Returns the value of a tensor as a CPU tensor. Errors of delayed computations are raised here, not in
    a later op that did not cause them."""
    try:
        return tensor.cpu()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):  # the same error, raised a second time
            settle([])
        raise


def _unavailable() -> str | None:
    if not is_installed("torch"):
        return "torch is not installed"
    if platform.system() == "Windows":  # caffe2/CMakeLists.txt: BUILD_LAZY_TS_BACKEND is for others
        return "on Windows, torch is built without the TorchScript backend of lazy tensors"
    return None


DESCRIPTOR = Descriptor(
    name="lazy",
    torch_type="lazy",
    title="Lazy tensors on TorchScript",
    sources=(
        "torch/csrc/lazy/tutorial.md",
        "torch/_lazy/__init__.py",
        "torch/_lazy/ts_backend.py",
        "torch/csrc/lazy/core/tensor_impl.cpp: always the strides of a contiguous tensor, and no storage",
        "torch/csrc/lazy/ts_backend/ts_eager_fallback.cpp: ops that have no lazy node run on the CPU",
    ),
    module="torch._lazy.ts_backend",
    init="init",
    # Not generator: torch.Generator(device="lazy") raises. Not events, streams, properties or an
    # allocator: lazy is no accelerator for torch.accelerator. Not deterministic_algorithms: the
    # flag is read when the graph runs, not when the op is called.
    capabilities=frozenset(),
    # Tested: each can be allocated, and converted to and from float32.
    dtypes=names(
        "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
    ),
    # Ops without a node run on the CPU by design (ts_eager_fallback.cpp), whichever they are.
    permitted_fallbacks=frozenset({"*"}),
    workers_per_device=2,
    unavailable=_unavailable,
    settle=settle,
    from_device=from_device,
)
