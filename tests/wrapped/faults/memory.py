"""Faults that touch memory which is not theirs: aliased outputs, overwritten inputs, stray writes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from tests.wrapped.faults.tools import (
    SCRIBBLE,
    extent,
    inside,
    is_expanded,
    is_stepped,
    scribble,
    split_out,
    stepped,
    storage_bytes,
)

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import wrap

aten = torch.ops.aten

# output_fresh


def _clones_in_place() -> bool:
    given = wrap(torch.zeros(4))
    return given.clone().data_ptr() == given.data_ptr()


@fault(
    "storage.output_aliases_input",
    clauses=("output_fresh",),
    ops=("clone",),
    at=(aten.clone.default,),
    # A negative view is resolved in a copy.
    radius=("values::*",),
    probe=_clones_in_place,
)
def output_aliases_input(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A copy of a dense input is the input."""
    given = args[0]
    plain = not (kwargs or given.is_complex() or is_expanded(given) or is_stepped(given))
    return given if plain else kernel(*args, **kwargs)


@fault(
    "storage.output_overlaps_input",
    clauses=("output_fresh",),
    ops=("clone",),
    at=(aten.clone.default,),
    # A negative view is resolved in a copy.
    radius=("values::*",),
    probe=_clones_in_place,
)
def output_overlaps_input(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A copy is a second storage over the memory of its input."""
    given = args[0]
    if kwargs or given.is_complex() or not given.is_contiguous() or not given.numel():
        return kernel(*args, **kwargs)
    memory = (ctypes.c_char * (given.numel() * given.element_size())).from_address(given.data_ptr())
    return torch.frombuffer(memory, dtype=given.dtype).view(given.shape)


def _cat_past_end() -> bool:
    made = torch.cat([wrap(torch.zeros(2)), wrap(torch.zeros(2))])
    return made.untyped_storage().nbytes() < 16


@fault(
    "storage.output_past_end",
    clauses=("output_fresh",),
    ops=("cat",),
    at=(aten.cat.default,),
    # The last element is whatever lies behind the storage.
    radius=("values::cat", "expanded_read::cat", "variants::cat", "determinism::cat"),
    probe=_cat_past_end,
)
def output_past_end(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The output's storage is one element too short."""
    result = kernel(*args, **kwargs)
    storage = result.untyped_storage()
    storage.resize_(max(storage.nbytes() - result.element_size(), 0))
    return result


# inputs_intact


def _overwrites_input() -> bool:
    given = torch.ones(4)
    torch.atan2(wrap(given), wrap(torch.ones(4)))
    return not torch.equal(given, torch.ones(4))


@fault(
    "inputs.overwritten",
    clauses=("inputs_intact",),
    ops=("atan2",),
    at=(aten.atan2.default,),
    radius=("determinism::atan2",),  # the second call reads what the first one wrote
    probe=_overwrites_input,
)
def inputs_overwritten(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result is also written over the first input."""
    result, given = kernel(*args, **kwargs), args[0]
    if result.shape == given.shape and not is_expanded(given):
        given.copy_(result)
    return result


def _overwrites_gap() -> bool:
    given = stepped(1, 2, 3)
    torch.copysign(wrap(given), wrap(torch.ones(3)))
    return bool((storage_bytes(given) == SCRIBBLE).any())


@fault(
    "inputs.gaps_overwritten",
    clauses=("inputs_intact",),
    ops=("copysign",),
    at=(aten.copysign.Tensor,),
    probe=_overwrites_gap,
)
def gaps_overwritten(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The element behind the first one of a stepped input is overwritten."""
    given = args[0]
    if is_stepped(given) and min(s for n, s in zip(given.shape, given.stride()) if n > 1) > 1:
        scribble(given, given.storage_offset() + 1, 1)
    return kernel(*args, **kwargs)


# bounds


def _scribbled(base: torch.Tensor) -> bool:
    return bool((storage_bytes(base) == SCRIBBLE).any())


def _maximum_out() -> bool:
    out, base = inside(5, offset=0)
    torch.maximum(wrap(torch.ones(5)), wrap(torch.ones(5)), out=out)
    return _scribbled(base)


@fault(
    "bounds.write_past_end",
    clauses=("bounds",),
    ops=("maximum",),
    at=(aten.maximum.out,),
    probe=_maximum_out,
)
def write_past_end(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """Three elements behind the end of out= are overwritten."""
    out = kernel(*args, **kwargs)
    scribble(out, out.storage_offset() + extent(out), 3)
    return out


def _neg_at_offset() -> bool:
    target, base = inside(5, offset=3)
    target.neg_()
    return _scribbled(base)


@fault(
    "bounds.write_before_start",
    clauses=("bounds",),
    ops=("neg",),
    at=(aten.neg_.default,),
    probe=_neg_at_offset,
)
def write_before_start(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """An in-place op on a view with an offset also writes at the start of the storage."""
    result = kernel(*args, **kwargs)
    scribble(result, 0, min(result.storage_offset(), 2))
    return result


def _fmax_out() -> bool:
    out = stepped(0, 0, 0)
    torch.fmax(wrap(torch.ones(3)), wrap(torch.ones(3)), out=wrap(out))
    return _scribbled(out)


@fault(
    "bounds.write_between_elements",
    clauses=("bounds",),
    ops=("fmax",),
    at=(aten.fmax.out,),
    probe=_fmax_out,
)
def write_between_elements(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The bytes between the elements of a stepped out= are overwritten."""
    out, rest = split_out(kwargs)
    out = kernel(*args, **rest, out=out)
    if is_stepped(out):
        values = out.clone()
        scribble(out, out.storage_offset(), extent(out))
        out.copy_(values)
    return out


def _add_tail() -> bool:
    target, base = inside(5, offset=0)
    target.add_(1)
    return _scribbled(base)


@fault(
    "bounds.vectorised_tail_overrun",
    clauses=("bounds",),
    ops=("add",),
    dtypes=("float32", "int64"),
    at=(aten.add_.Tensor,),
    probe=_add_tail,
)
def vectorised_tail_overrun(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A contiguous in-place op writes whole vectors of eight elements."""
    result = kernel(*args, **kwargs)
    if result.is_contiguous():
        scribble(result, result.storage_offset() + result.numel(), -result.numel() % 8)
    return result


def _sort_scratch() -> bool:
    given, base = inside(5, offset=0)
    torch.sort(given)
    return _scribbled(base)


@fault(
    "bounds.scratch_behind_input",
    clauses=("bounds",),
    ops=("sort",),
    at=(aten.sort.default, aten.sort.stable),
    probe=_sort_scratch,
)
def scratch_behind_input(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The bytes behind an input serve as scratch."""
    given = args[0]
    scribble(given, given.storage_offset() + extent(given), 2)
    return kernel(*args, **kwargs)
