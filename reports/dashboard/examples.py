"""What a run tells of a failure besides: its minimised example, and the failures like it.

Both come from the suite's minimiser. A run made without it has neither, and the pages then show
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from reports.dashboard.geometry import Geometry, guard_elements
from reports.junit import clean
from reports.model import CellResult
from reports.plan import RunError

GROUPS_FILE = "failures.json"
GROUPS_FORMAT = 1

# Cells of a group that a page names.
_NAMED = 12


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int
    values: str = ""


class _Example(msgspec.Struct):
    call: str
    layout: str
    message: str
    tensors: list[_Tensor] = []
    tried: int = 0
    whole: bool = True


class _Group(msgspec.Struct):
    kind: str
    family: str
    count: int
    cells: list[str]


class _Groups(msgspec.Struct):
    format: int
    groups: list[_Group] = []


def example_of(result: CellResult) -> dict[str, Any] | None:
    """The result's minimised example as the page shows it, with where its tensors lie."""
    example = getattr(result, "example", None)
    if example is None or not is_dataclass(example) or isinstance(example, type):
        return None
    known = msgspec.convert(asdict(example), _Example, strict=False)
    return {
        "call": clean(known.call),
        "layout": clean(known.layout),
        "message": clean(known.message),
        "tried": known.tried,
        "whole": known.whole,
        "tensors": [_tensor(tensor) for tensor in known.tensors],
    }


def _tensor(tensor: _Tensor) -> dict[str, Any]:
    reach = [max(size - 1, 0) * step for size, step in zip(tensor.shape, tensor.stride)]
    extent = tensor.offset + (sum(reach) + 1 if all(tensor.shape) else 0)
    geometry = Geometry(tensor.shape, tensor.stride, tensor.offset, extent, clean(tensor.dtype))
    return {
        **msgspec.to_builtins(geometry),
        "guard": guard_elements(geometry),
        "values": clean(tensor.values),
    }


def groups_in(folder: Path) -> Mapping[str, dict[str, Any]]:
    """The group of each cell that the run's ``failures.json`` names; empty where there is none.

    Raises RunError where the file is malformed.
    """
    path = folder / GROUPS_FILE
    try:
        read = msgspec.json.decode(path.read_bytes(), type=_Groups)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise RunError(f"{path}: no list of failures: {error}") from None
    if read.format != GROUPS_FORMAT:
        raise RunError(f"{path}: of format {read.format}, expected {GROUPS_FORMAT}")
    found: dict[str, dict[str, Any]] = {}
    for group in read.groups:
        told = {
            "kind": clean(group.kind),
            "family": clean(group.family),
            "count": group.count,
            "cells": [clean(cell) for cell in group.cells[:_NAMED]],
        }
        for cell in group.cells:
            found[cell] = told
    return found
