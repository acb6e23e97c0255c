"""Faults that strike large tensors only, none of them planted in a device: each is noticed by the case of its op."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from devices.failure import Kind
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.size.planting import case_named, flat, past, tried

GRID, WORD, FLOAT32 = 65535, 2**16, 2**24


def zero_after(limit: int, dim: int = 0) -> Effect:
    """What lies past a limit is never written."""

    def spoil(result: Any, call: KernelCall) -> Any:
        return torch.cat(
            [
                result.narrow(dim, 0, limit),
                torch.zeros_like(result.narrow(dim, limit, result.shape[dim] - limit)),
            ],
            dim,
        )

    return past(limit, spoil)


def wraps(limit: int, dim: int = 0) -> Effect:
    """Slices past a limit are those at the start."""

    def spoil(result: Any, call: KernelCall) -> Any:
        places = torch.arange(result.shape[dim]) % limit
        return result.index_select(dim, places)

    return past(limit, spoil)


def rounds_the_index(place: int) -> Effect:
    """An index goes through float32, in an argument of the call."""

    def effect(call: KernelCall) -> Any:
        args = list(call.args)
        args[place] = args[place].float().long().clamp(max=call.first.shape[0] - 1)
        return call.function(*args, **call.kwargs)

    return effect


def clamps_the_index(place: int, limit: int) -> Effect:
    def effect(call: KernelCall) -> Any:
        args = list(call.args)
        args[place] = args[place].clamp(max=limit)
        return call.function(*args, **call.kwargs)

    return effect


def puts_the_index(place: int, limit: int) -> Effect:
    def effect(call: KernelCall) -> Any:
        args = list(call.args)
        args[place] = args[place] % limit
        return call.function(*args, **call.kwargs)

    return effect


def spoils(limit: int, change: Callable[[torch.Tensor], Any]) -> Effect:
    return past(limit, lambda result, call: change(result))


def last_of_gradient(limit: int) -> Effect:
    """The gradients of shared operands leave out the slices past a limit."""

    def effect(call: KernelCall) -> Any:
        first, *shared = call.args
        if len(first) <= limit or not any(each.requires_grad for each in shared):
            return NOT_MET
        apart = [each.detach() for each in shared]
        parts = call.function(first[:limit], *shared), call.function(first[limit:], *apart)
        return torch.cat(parts)

    return effect


def _change_the_end(result: torch.Tensor) -> torch.Tensor:
    flat(result)[-1:] += 1
    return result


def _arange_in_float32(call: KernelCall) -> Any:
    made = call.honest()
    return made.float().to(made.dtype) if call.first > FLOAT32 else NOT_MET


def _copy_the_first_half(result: torch.Tensor) -> torch.Tensor:
    half = result.numel() // 2
    result[half : 2 * half] = result[:half]
    return result


def _swap_blocks(result: Any) -> Any:
    values, places = result
    cut = len(values) - 1000
    return torch.cat([values[cut:], values[:cut]]), places


def _write_at_the_start(call: KernelCall) -> Any:
    target, values = call.args[:2]
    if target.storage_offset() < 2**31:
        return NOT_MET
    start = target.storage_offset() - 2**31
    target.as_strided(target.shape, target.stride(), start).copy_(values)
    return target


MUTANTS: dict[str, tuple[str, str, Effect]] = {
    "rows of softmax are those at the start": ("softmax@65536 rows", "softmax", wraps(WORD)),
    "rows of linear are not computed": ("nn.functional.linear@65536 rows", "linear", zero_after(GRID)),
    "batches of conv1d are not computed": ("nn.functional.conv1d@65536 batches", "conv1d", zero_after(GRID)),
    "groups of conv1d are those at the start": ("nn.functional.conv1d@65536 groups", "conv1d", wraps(WORD, 1)),
    "channels of conv1d are wrong": ("nn.functional.conv1d@65536 channels", "conv1d", zero_after(WORD, 1)),
    "grid_sample past the grid": ("nn.functional.grid_sample@65536 batches", "grid_sample", zero_after(GRID)),
    "max_pool1d in the middle": ("nn.functional.max_pool1d@65536 channels", "max_pool1d", zero_after(GRID, 1)),
    "attention past the grid": (
        *("nn.functional.scaled_dot_product_attention@65536 batches", "scaled_dot_product_attention"),
        zero_after(GRID),
    ),
    "inverses past the grid": ("linalg.inv@65536 batches", "linalg_inv", wraps(GRID)),
    "reflection pad past the grid": ("nn.functional.pad@65536 batches", "pad", zero_after(GRID)),
    "fft in 16 bits": ("fft.fft@65536 batches", "fft_fft", wraps(WORD)),
    "weight gradient of conv1d": ("nn.functional.conv1d@65536 batches", "conv1d", last_of_gradient(GRID)),
    "weight gradient of layer_norm": (
        *("nn.functional.layer_norm@65536 rows", "layer_norm"),
        spoils(GRID, lambda result: result.clone().index_fill_(0, torch.tensor([len(result) - 1]), 0.0)),
    ),
    "table gradient": ("nn.functional.embedding@65536 rows", "embedding", last_of_gradient(GRID)),
    "argmax of a column": ("argmax@65536 channels", "argmax", wraps(WORD)),
    "sorted columns": ("sort@65536 channels", "sort", spoils(GRID, lambda r: SimpleNamespace(values=r[0].flip(0)))),
    "running sum of columns": ("cumsum@65536 channels", "cumsum", zero_after(GRID, 1)),
    "the end of flip": ("flip@2^24 elements", "flip", spoils(FLOAT32, lambda r: r.roll(1))),
    "the end of cat": ("cat@2^24 elements", "cat", spoils(FLOAT32 - 1000, _change_the_end)),
    "the end of add_": ("add@2^24 elements", "add_", spoils(FLOAT32, _change_the_end)),
    "places of nonzero": ("nonzero@2^24 elements", "nonzero", spoils(FLOAT32, lambda r: r.float().long())),
    "places of where": ("where@2^24 elements of a condition", "where", spoils(FLOAT32, lambda r: (r[0].float().long(),))),
    "any stops early": ("any@2^24 elements", "any", spoils(FLOAT32, lambda r: ~r)),
    "count stops early": ("count_nonzero@2^24 elements", "count_nonzero", spoils(FLOAT32, lambda r: r * 0)),
    "sorted blocks are not merged": ("sort@2^24 elements", "sort", spoils(FLOAT32, _swap_blocks)),
    "bincount loses the end": ("bincount@2^24 elements", "bincount", spoils(FLOAT32, _change_the_end)),
    "topk keeps places in float32": (
        *("topk@2^24 elements", "topk"),
        spoils(FLOAT32, lambda r: (r[0], r[1].float().long())),
    ),
    "arange in float32": ("arange@2^24 elements", "arange", _arange_in_float32),
    "mean divides by another number": ("mean@2^25 ones", "mean", spoils(FLOAT32, lambda r: r * 1.01)),
    "equal does not look at the end": ("equal@2^24 elements", "equal", spoils(FLOAT32, lambda r: True)),
    "random numbers come twice": ("random_@2^24 elements", "random_", spoils(FLOAT32, _copy_the_first_half)),
    "dropout keeps the end": ("nn.functional.dropout@2^24 elements", "dropout", spoils(FLOAT32, lambda r: torch.cat([r[:-4096], r[-4096:] * 0 + 99]))),
    "take with an index in float32": ("take@2^24 elements", "take", rounds_the_index(1)),
    "scatter_ wraps": ("scatter@2^24 elements", "scatter_", puts_the_index(2, FLOAT32)),
    "index_add_ wraps": ("index_add@2^24 elements", "index_add_", puts_the_index(2, FLOAT32)),
    "index_select stops at 2^31": ("index_select@2^31 elements", "index_select", clamps_the_index(2, 2**31 - 1)),
    "take wraps at 2^32": ("take@2^32 elements", "take", puts_the_index(1, 2**32)),
    "put_ wraps at 2^32": ("put@2^32 elements", "put_", puts_the_index(1, 2**32)),
    "a copy into a slice keeps 31 bits": ("copy_@offset 2^31, into a slice", "copy_", _write_at_the_start),
    "rows of a table in 32 bits": (
        *("nn.functional.embedding@2^32 bytes of rows, int64", "embedding"),
        puts_the_index(0, 2**26),
    ),
}  # fmt: skip

#: One of each room is fast.
FAST = {
    "rows of softmax are those at the start",
    "weight gradient of conv1d",
    "the end of cat",
    "places of nonzero",
    "take wraps at 2^32",
    "random numbers come twice",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in MUTANTS],
)
def test_the_case_of_the_op_notices(name: str) -> None:
    cell, function, effect = MUTANTS[name]
    made, struck = tried(case_named(cell), function, effect)
    assert struck, "no call met the fault"
    assert made.failure is not None, made.not_shown or "the case passed"
    assert made.failure.kind in (Kind.VALUES, Kind.SHAPE)
