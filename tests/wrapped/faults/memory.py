"""Faults that touch memory which is not theirs: aliased outputs, overwritten inputs, stray writes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.tensors import (
    extent,
    is_expanded,
    is_stepped,
    scribble,
)
from tests.wrapped.faults.probing import inside, scribbles, shares, stepped
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import wrap

# output_fresh


@fault("storage.output_aliases_input", "output_fresh", ops="clone")
@probe(lambda: shares(torch.clone, wrap(torch.zeros(4))))
@may_change("values::*")  # a negative view is resolved in a copy
def _(call: KernelCall) -> Any:
    """A copy of a dense input is the input."""
    given = call.first
    plain = not (call.kwargs or given.is_complex() or is_expanded(given) or is_stepped(given))
    return given if plain else NOT_MET


@fault("storage.output_overlaps_input", "output_fresh", ops="clone")
@probe(lambda: shares(torch.clone, wrap(torch.zeros(4))))
@may_change("values::*")  # a negative view is resolved in a copy
def _(call: KernelCall) -> Any:
    """A copy is a second storage over the memory of its input."""
    given = call.first
    if call.kwargs or given.is_complex() or not given.is_contiguous() or not given.numel():
        return NOT_MET
    memory = (ctypes.c_char * (given.numel() * given.element_size())).from_address(given.data_ptr())
    return torch.frombuffer(memory, dtype=given.dtype).view(given.shape)


def _cat_past_end() -> bool:
    made = torch.cat([wrap(torch.zeros(2)), wrap(torch.zeros(2))])
    return made.untyped_storage().nbytes() < 16


@fault("storage.output_past_end", "output_fresh", ops="cat")
@probe(_cat_past_end)
# The last element is whatever lies behind the storage.
@may_change("values::cat expanded_read::cat variants::cat determinism::cat")
def _(call: KernelCall) -> Any:
    """The output's storage is one element too short."""
    result = call.honest()
    storage = result.untyped_storage()
    storage.resize_(max(storage.nbytes() - result.element_size(), 0))
    return result


# inputs_intact


def _overwrites_input() -> bool:
    given = torch.ones(4)
    torch.atan2(wrap(given), wrap(torch.ones(4)))
    return not torch.equal(given, torch.ones(4))


@fault("inputs.overwritten", "inputs_intact", ops="atan2")
@probe(_overwrites_input)
@may_change("determinism::atan2")  # the second call reads what the first one wrote
def _(call: KernelCall) -> Any:
    """The result is also written over the first input."""
    result, given = call.honest(), call.first
    if result.shape == given.shape and not is_expanded(given):
        given.copy_(result)
    return result


@fault("inputs.gaps_overwritten", "inputs_intact", ops="copysign", at="copysign.Tensor")
@probe(lambda: scribbles(stepped(1, 2, 3), lambda t: t.copysign(wrap(torch.ones(3)))))
def _(call: KernelCall) -> Any:
    """The element behind the first one of a stepped input is overwritten."""
    given = call.first
    if is_stepped(given) and min(s for n, s in zip(given.shape, given.stride()) if n > 1) > 1:
        scribble(given, given.storage_offset() + 1, 1)
    return NOT_MET


# bounds

_THREE, _FIVE = wrap(torch.ones(3)), wrap(torch.ones(5))


@fault("bounds.write_past_end", "bounds", ops="maximum", at="maximum.out")
@probe(lambda: scribbles(inside(5), lambda out: torch.maximum(_FIVE, _FIVE, out=out)))
def _(call: KernelCall) -> Any:
    """Three elements behind the end of out= are overwritten."""
    out = call.honest()
    scribble(out, out.storage_offset() + extent(out), 3)
    return out


@fault("bounds.write_before_start", "bounds", ops="neg", at="neg_")
@probe(lambda: scribbles(inside(5, offset=3), torch.Tensor.neg_))
def _(call: KernelCall) -> Any:
    """An in-place op on a view with an offset also writes at the start of the storage."""
    result = call.honest()
    scribble(result, 0, min(result.storage_offset(), 2))
    return result


@fault("bounds.write_between_elements", "bounds", ops="fmax", at="fmax.out")
@probe(lambda: scribbles(stepped(0, 0, 0), lambda out: torch.fmax(_THREE, _THREE, out=out)))
def _(call: KernelCall) -> Any:
    """The bytes between the elements of a stepped out= are overwritten."""
    out = call.honest()
    if is_stepped(out):
        values = out.clone()
        scribble(out, out.storage_offset(), extent(out))
        out.copy_(values)
    return out


@fault(
    "bounds.vectorised_tail_overrun", "bounds", ops="add", at="add_.Tensor", dtypes="float32 int64"
)
@probe(lambda: scribbles(inside(5), lambda t: t.add_(1)))
def _(call: KernelCall) -> Any:
    """A contiguous in-place op writes whole vectors of eight elements."""
    result = call.honest()
    if result.is_contiguous():
        scribble(result, result.storage_offset() + result.numel(), -result.numel() % 8)
    return result


@fault("bounds.scratch_behind_input", "bounds", ops="sort", at="sort sort.stable")
@probe(lambda: scribbles(inside(5), torch.sort))
def _(call: KernelCall) -> Any:
    """The bytes behind an input serve as scratch."""
    scribble(call.first, call.first.storage_offset() + extent(call.first), 2)
    return NOT_MET
