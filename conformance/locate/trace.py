"""Summarises the results of each call of a program as a digest and a few statistics. These form a trace, by which two
runs on different machines can be compared."""

from __future__ import annotations

import ctypes
import hashlib
from functools import lru_cache

import torch

from conformance.locate.steps import Operand
from conformance.locate.traces import TracedTensor

#: The number of projections of each tensor. Their distance estimates the distance of two tensors.
_PROJECTIONS = 8


def traced_tensor(each: Operand, data: torch.Tensor) -> TracedTensor:
    """Returns the digest and the statistics of a tensor. ``data`` are the bytes of its storage."""
    tensor = each.view(data).resolve_conj().resolve_neg()
    tensor = tensor.clone(memory_format=torch.contiguous_format).view(-1)
    dtype = str(each.dtype)[6:]
    digest = digest_of(tensor.view(torch.uint8)) if tensor.numel() else ""
    if not (each.dtype.is_floating_point or each.dtype.is_complex):
        return TracedTensor(dtype, each.shape, digest)
    plain = torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor
    wide = plain.reshape(-1).to(torch.float64)
    finite = wide.nan_to_num(0.0, 0.0, 0.0)
    return TracedTensor(
        dtype,
        each.shape,
        digest,
        rms=float(finite.square().mean().sqrt()) if len(finite) else 0.0,
        sketch=tuple((_signs(len(finite)) @ finite / max(len(finite), 1) ** 0.5).tolist()),
        not_finite=int((~wide.isfinite()).sum()),
    )


def digest_of(data: torch.Tensor) -> str:
    """Returns a hash, in hexadecimal, of a contiguous uint8 tensor on the CPU."""
    raw = ctypes.string_at(data.data_ptr(), data.numel()) if data.numel() else b""
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


@lru_cache(maxsize=64)
def _signs(count: int) -> torch.Tensor:
    """Returns a matrix of 1 and -1 with ``count`` columns, the same in each process. A tensor with ``count`` elements
    is multiplied by it to get its projections, from which the distance of two tensors is estimated."""
    source = torch.Generator().manual_seed(count)
    drawn = torch.randint(0, 2, (_PROJECTIONS, count), generator=source)
    return (drawn * 2 - 1).to(torch.float64)
