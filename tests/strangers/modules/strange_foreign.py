"""A device over another framework, with that framework's manners.

Its exceptions are the framework's own, what it has no kernel for included. It has no types of 64 bits: it narrows
them, and says nothing.
"""

from __future__ import annotations

from typing import Any

import strange
import torch
import torch.utils._pytree as pytree

NARROW = {
    torch.float64: torch.float32,
    torch.int64: torch.int32,
    torch.uint64: torch.uint32,
    torch.complex128: torch.complex64,
}
REFUSED = (torch.ops.aten.clamp_min.Tensor, torch.ops.aten.maximum.default)

WITHOUT = (torch.ops.aten.ldexp.Tensor, torch.ops.aten._neg_view.default)


class NoLowering(Exception):
    """There is no kernel."""


def before(func: Any, args: Any, kwargs: Any) -> None:
    if func in WITHOUT:
        raise NoLowering(f"{func.overloadpacket.__name__} has no lowering")
    if func is torch.ops.aten.neg.out:
        raise TypeError("neg() got an unexpected keyword argument 'out'")
    given = (leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor))
    if func in REFUSED and any(tensor.is_complex() for tensor in given):
        raise ValueError("complex values have no ordering")


def narrowed(func: Any, result: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(NARROW[t.dtype]) if t.dtype in NARROW else t, result
    )


_wide = strange._empty_strided


def _narrow(size: Any, stride: Any, *, dtype: Any = None, **more: Any) -> strange.Tensor:
    return _wide(size, stride, dtype=NARROW.get(dtype, dtype), **more)


strange._empty_strided = _narrow
strange.register("foreign", before=before, after=narrowed)
