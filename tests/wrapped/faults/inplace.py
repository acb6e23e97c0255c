"""Faults of in-place ops, and of writes to memory that overlaps."""

from __future__ import annotations

from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.tensors import (
    as_dense,
    is_expanded,
    scribble,
    storage_bytes,
    twin,
    unrepeated,
)
from tests.wrapped.faults.probing import becomes, raises, shares, stepped
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten


# inplace


@fault("inplace.reallocate", "inplace", ops="mul", at="mul_.Tensor", dtypes="float32 int64")
@probe(lambda: not shares(lambda t: t.mul_(2), wrap(torch.ones(3))))
@may_change("bounds::mul")  # a self that was moved is not judged there
def _(call: KernelCall) -> Any:
    """Self is given memory of its own, of the same strides."""
    result = call.honest()
    return result.set_(twin(result))


@fault("inplace.write_to_copy", "inplace", ops="sub", at="sub_.Tensor")
@probe(lambda: not becomes(stepped(1, 2, 3), lambda t: t.sub_(1), 0, 1, 2))
def _(call: KernelCall) -> Any:
    """The result for a strided self is written to a contiguous copy of it."""
    target = call.first
    if target.is_contiguous() or is_expanded(target):
        return NOT_MET
    return call.honest(self=target.contiguous())


@fault("inplace.return_new", "inplace variants", ops="atan2", at="atan2_")
@probe(lambda: becomes(torch.zeros(2), lambda t: t.atan2_(wrap(-torch.ones(2))), 0, 0))
def _(call: KernelCall) -> Any:
    """The result is a new tensor, and self is left as it was."""
    target, other = call.args
    unfit = is_expanded(target) or target.shape != other.shape
    return NOT_MET if unfit else torch.atan2(target, other)


@fault("inplace.grow_self", "inplace", ops="add", at="add_.Tensor", dtypes="float32 int64")
@probe(lambda: not raises(wrap(torch.ones(1)).add_, wrap(torch.ones(3))))
@may_change("bounds::add")  # a self that was resized is not judged there
def _(call: KernelCall) -> Any:
    """A self that broadcasting would enlarge is resized."""
    target, result = call.first, aten.add.Tensor(*call.args, **call.kwargs)
    if result.shape == target.shape or is_expanded(target):
        return NOT_MET
    return target.resize_(result.shape).copy_(result)


@fault(
    "inplace.ignore_strides",
    "inplace bounds",
    ops="copysign",
    at="copysign_.Tensor copysign_.Scalar",
)
@probe(lambda: not becomes(stepped(1, 2, 3), lambda t: t.copysign_(-1), -1, -2, -3))
def _(call: KernelCall) -> Any:
    """The result is written in a row, whatever the strides of self are."""
    target = call.first
    if target.is_contiguous() or is_expanded(target):
        return NOT_MET
    as_dense(target).copy_(torch.copysign(*call.args))
    return target


@fault("inplace.accept_unsafe_cast", "inplace", ops="exp", at="exp_", dtypes="int64")
@probe(lambda: not raises(wrap(torch.ones(2, dtype=torch.int64)).exp_))
def _(call: KernelCall) -> Any:
    """A floating-point result is cast to an integer self."""
    target = call.first
    if target.is_floating_point() or is_expanded(target):
        return NOT_MET
    return target.copy_(target.exp())


def _clamps_differ() -> bool:
    one, other = (wrap(torch.zeros(2)) for _ in range(2))
    return not torch.equal(from_device(one.clamp_(0, 1)), from_device(other.clamp(0, 1)))


@fault(
    "variants.inplace_differs",
    "variants inplace",
    ops="clamp sub",
    at="clamp_.Tensor clamp_ sub_.Tensor",
)
@probe(_clamps_differ)
def _(call: KernelCall) -> Any:
    """The in-place variant is one too large where self is contiguous."""
    result = call.honest()
    return result.add_(1) if result.is_contiguous() else result


# overlap_raises


@fault(
    "overlap.skip_internal_check",
    "overlap_raises",
    ops="add",
    at="add_.Tensor add.out",
    dtypes="float32 int64",
)
@probe(lambda: not raises(wrap(torch.zeros(1).expand(3)).add_, 1))
def _(call: KernelCall) -> Any:
    """A target that is expanded is written to without an error or a warning."""
    rest = dict(call.kwargs)
    target = rest.pop("out", call.first)
    if not is_expanded(target):
        return NOT_MET
    result = aten.add.Tensor(*call.args, **rest)
    thin = unrepeated(target)
    thin.copy_(result.as_strided(thin.shape, result.stride()))
    return target


def _exp_onto_itself() -> bool:
    base = torch.zeros(4)
    return not raises(torch.exp, wrap(base[:3]), out=wrap(base[1:]))


@fault("overlap.skip_partial_check", "overlap_raises", ops="exp", at="exp.out")
@probe(_exp_onto_itself)
def _(call: KernelCall) -> Any:
    """out= that overlaps an input partly is written to element by element, without an error."""
    given, out = call.first, call.kwargs["out"]
    shared = out.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    dense = out.is_contiguous() and given.is_contiguous()
    if not shared or out.shape != given.shape or not dense:
        return NOT_MET
    source, target = given.view(-1), out.view(-1)
    for place in range(out.numel()):
        target[place] = source[place].exp()
    return out


def _mul_scribbles_and_refuses() -> bool:
    base = torch.zeros(4)
    refused = raises(wrap(base[:1].expand(3)).mul_, 2)
    return refused and bool(storage_bytes(base).any())


@fault(
    "overlap.write_before_refusing",
    "overlap_raises",
    ops="mul",
    at="mul_.Tensor",
    dtypes="float32 int64",
)
@probe(_mul_scribbles_and_refuses)
def _(call: KernelCall) -> Any:
    """An expanded self is refused, but as many elements as it has are overwritten first."""
    if is_expanded(call.first):
        scribble(call.first, call.first.storage_offset(), call.first.numel())
    return NOT_MET
