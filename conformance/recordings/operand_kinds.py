"""Determines which calls of a program can be recorded and judged, by the kinds of tensors among their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from opinfo.torch_private import FakeTensor

#: The namespaces of ops that compute nothing: markers of the profiler.
COMPUTE_NOTHING: Final = frozenset({"profiler"})

_COMMON: Final = (torch.Tensor, torch.nn.Parameter)


def answering_class(tensors: Iterable[torch.Tensor]) -> str:
    """Returns the name of the first tensor class that handles calls itself (by ``__torch_dispatch__``), such as
    DTensor; an empty string if there is none. A dispatch mode that returns NotImplemented for such a call then sees the
    calls that the class makes on the plain tensors inside. Subclasses that do not handle calls, such as Parameter,
    count as plain tensors."""
    for each in tensors:
        kind = type(each)
        if kind not in _COMMON and _answers(kind):
            return kind.__name__
    return ""


def _answers(kind: type[torch.Tensor]) -> bool:
    own = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return own and not issubclass(kind, FakeTensor)


def without_elements(tensors: Iterable[torch.Tensor]) -> str:
    """Returns ``fake`` or ``meta`` if one of the tensors is of this kind, which has a geometry but no elements;
    otherwise an empty string."""
    for each in tensors:
        if isinstance(each, FakeTensor):
            return "fake"
        if each.is_meta:
            return "meta"
    return ""


def names_meta(values: Iterable[Any]) -> bool:
    """Returns True if one of the values is the device ``meta``, on which tensors have no elements."""
    return any(isinstance(each, torch.device) and each.type == "meta" for each in values)


def not_strided(tensors: Iterable[torch.Tensor]) -> str:
    """Returns a phrase about the first tensor that is not defined by a storage, strides and an offset, such as ``a
    tensor of layout sparse_coo``; an empty string if there is none."""
    for each in tensors:
        if each.is_nested:
            return "a nested tensor"
        if each.layout is not torch.strided:
            return f"a tensor of layout {str(each.layout)[6:]}"
        if each.is_quantized:
            return "a quantized tensor"
    return ""
