"""A found example in words and numbers: what reports show of it."""

from __future__ import annotations

from typing import Any

import torch

from conformance.cells import Failure
from conformance.layout.directed import DirectedScript
from conformance.layout.repro import CallScript
from conformance.minimise.search import Found
from opinfo.catalog import dtype_name
from opinfo.layouts import Geometry
from reports.model import Example, ExampleTensor

#: Elements of a tensor that are shown.
_SHOWN = 8


def example_of(found: Found) -> Example:
    """The example for the results folder."""
    return described(found.failure, found.tried, found.whole)


def described(failure: Failure, tried: int = 0, whole: bool = True) -> Example:
    """A failure as an example, whether a search found it or not."""
    script: Any = failure.repro
    call = failure.layout
    tensors: tuple[ExampleTensor, ...] = ()
    if isinstance(script, (CallScript, DirectedScript)):
        call = script.call()
    if isinstance(script, CallScript):
        laid = script.laid
        pairs = zip(laid.sample.tensors, laid.geometries, strict=True)
        tensors = tuple(_tensor(t, g) for t, g in pairs)
    return Example(call, failure.layout, failure.message, tensors, tried, whole)


def _tensor(tensor: torch.Tensor, geometry: Geometry) -> ExampleTensor:
    if tensor.layout != torch.strided:
        name = str(tensor.layout).removeprefix("torch.")
        return ExampleTensor(dtype_name(tensor.dtype), tuple(tensor.shape), (), 0, f"<{name}>")
    if geometry.expanded is not None:
        tensor = tensor.narrow(geometry.expanded, 0, 1)
    flat = tensor.reshape(-1)
    shown = ", ".join(repr(v) for v in flat[:_SHOWN].tolist())
    more = ", …" if flat.numel() > _SHOWN else ""
    return ExampleTensor(
        dtype_name(tensor.dtype),
        geometry.shape,
        geometry.stride,
        geometry.offset,
        f"[{shown}{more}]",
    )
