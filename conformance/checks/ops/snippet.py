"""Writes the first lines of a call's repro script: Python that makes the tensors, to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from conformance.checks.ops.script import literal
from opinfo.layouts import Geometry

#: Tensors up to this many elements are shown with their values.
_SHOWN = 24
#: The dtypes that ``torch.tensor`` gives to Python's numbers.
_DEFAULT = (torch.float32, torch.int64, torch.bool, torch.complex64)


def tensor_source(values: torch.Tensor, geometry: Geometry | None, device: str) -> str:
    """Returns a line of Python that makes a tensor on a device. The tensor has the strides of ``geometry``, or is
    contiguous if ``geometry`` is None. ``values`` is a CPU tensor with the elements. If there are too many elements to
    write down, the line makes other values, and a comment says so."""
    if values.layout != torch.strided:
        layout = str(values.layout).removeprefix("torch.").removeprefix("_")
        dense, comment = _values(values.to_dense(), "")
        return f'{dense}.to_{layout}().to("{device}"),{comment}'
    if geometry is None or _is_contiguous(geometry):
        made, comment = _values(values, device)
        return f"{made},{comment}"
    kept, shape = values, list(geometry.shape)
    for dim, (size, step) in enumerate(zip(geometry.shape, geometry.stride)):
        if size > 1 and step == 0:
            kept, shape[dim] = kept.narrow(dim, 0, 1), 1
    made, comment = _values(kept, "")
    place = f"{tuple(shape)}, {geometry.stride}" + (
        f", {geometry.offset}" if geometry.offset else ""
    )
    whole = f".expand({geometry.shape})" if tuple(shape) != geometry.shape else ""
    empty = f'torch.empty({geometry.extent}, dtype={values.dtype}, device="{device}")'
    return f"{empty}.as_strided({place}).copy_({made}){whole},{comment}"


def target_source(dtype: torch.dtype, geometry: Geometry, device: str) -> str:
    """Returns the Python expression of an ``out=`` target with the strides of a geometry."""
    if _is_contiguous(geometry):
        return f'torch.empty({geometry.shape}, dtype={dtype}, device="{device}")'
    place = f"{geometry.shape}, {geometry.stride}"
    offset = f", {geometry.offset}" if geometry.offset else ""
    empty = f'torch.empty({geometry.extent}, dtype={dtype}, device="{device}")'
    return f"{empty}.as_strided({place}{offset})"


def _is_contiguous(geometry: Geometry) -> bool:
    step = 1
    for size, stride in zip(reversed(geometry.shape), reversed(geometry.stride)):
        if size > 1 and stride != step:
            return False
        step *= max(size, 1)
    return geometry.offset == 0


def _values(values: torch.Tensor, device: str) -> tuple[str, str]:
    """Returns the expression of a contiguous tensor. If there are too many values to write down, the expression makes
    other values, and a comment that says so is returned too; otherwise the comment is empty."""
    dtype = "" if values.dtype in _DEFAULT else f", dtype={values.dtype}"
    there = f', device="{device}"' if device else ""
    if values.numel() == 0:
        return f"torch.empty({tuple(values.shape)}, dtype={values.dtype}{there})", ""
    if values.numel() <= _SHOWN:
        return f"torch.tensor({literal(values.tolist())}{dtype}{there})", ""
    maker = "torch.randn" if values.is_floating_point() or values.is_complex() else "torch.ones"
    made = f"{maker}({tuple(values.shape)}, dtype={values.dtype}{there})"
    return made, "  # the values of the run are below"


def list_source(name: str, items: Iterable[str]) -> list[str]:
    """Returns the lines of Python that assign a list, with an item in each line. The items end with a comma."""
    return [f"{name} = [", *(f"    {each}" for each in items), "]"]
