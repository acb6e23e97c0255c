"""Faults of in-place ops, and of writes to memory that overlaps."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import (
    as_dense,
    is_expanded,
    raises,
    scribble,
    split_out,
    stepped,
    storage_bytes,
    twin,
    unrepeated,
)

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten


# inplace


def _mul_moves_self() -> bool:
    target = wrap(torch.ones(3))
    address = target.data_ptr()
    target.mul_(2)
    return target.data_ptr() != address


@fault(
    "inplace.reallocate",
    clauses=("inplace",),
    ops=("mul",),
    dtypes=("float32", "int64"),
    at=(aten.mul_.Tensor,),
    radius=("bounds::mul",),  # a self that was moved is not judged there
    probe=_mul_moves_self,
)
def inplace_reallocate(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """Self is given memory of its own, of the same strides."""
    result = kernel(*args, **kwargs)
    return result.set_(twin(result))


def _sub_leaves_stepped() -> bool:
    target = stepped(1, 2, 3)
    wrap(target).sub_(1)
    return target.tolist() != [0.0, 1.0, 2.0]


@fault(
    "inplace.write_to_copy",
    clauses=("inplace",),
    ops=("sub",),
    at=(aten.sub_.Tensor,),
    probe=_sub_leaves_stepped,
)
def inplace_write_to_copy(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result for a strided self is written to a contiguous copy of it."""
    target = args[0]
    if target.is_contiguous() or is_expanded(target):
        return kernel(*args, **kwargs)
    return kernel(target.contiguous(), *args[1:], **kwargs)


@fault(
    "inplace.return_new",
    clauses=("inplace", "variants"),
    ops=("atan2",),
    at=(aten.atan2_.default,),
    probe=lambda: bool(
        from_device(_after(wrap(torch.zeros(2)), "atan2_", wrap(-torch.ones(2)))).eq(0).all()
    ),
)
def inplace_return_new(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result is a new tensor, and self is left as it was."""
    if is_expanded(args[0]) or args[0].shape != args[1].shape:
        return kernel(*args, **kwargs)
    return aten.atan2.default(*args, **kwargs)


def _after(target: torch.Tensor, method: str, *args: Any) -> torch.Tensor:
    """The tensor that an in-place method was called on."""
    getattr(target, method)(*args)
    return target


@fault(
    "inplace.grow_self",
    clauses=("inplace",),
    ops=("add",),
    dtypes=("float32", "int64"),
    at=(aten.add_.Tensor,),
    radius=("bounds::add",),  # a self that was resized is not judged there
    probe=lambda: not raises(wrap(torch.ones(1)).add_, wrap(torch.ones(3))),
)
def inplace_grow_self(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A self that broadcasting would enlarge is resized."""
    target = args[0]
    result = aten.add.Tensor(*args, **kwargs)
    if result.shape == target.shape or is_expanded(target):
        return kernel(*args, **kwargs)
    return target.resize_(result.shape).copy_(result)


def _copysign_into_row() -> bool:
    target = stepped(1, 2, 3)
    wrap(target).copysign_(-1)
    return target.tolist() != [-1.0, -2.0, -3.0]


@fault(
    "inplace.ignore_strides",
    clauses=("inplace", "bounds"),
    ops=("copysign",),
    at=(aten.copysign_.Tensor, aten.copysign_.Scalar),
    probe=_copysign_into_row,
)
def inplace_ignore_strides(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result is written in a row, whatever the strides of self are."""
    target = args[0]
    if target.is_contiguous() or is_expanded(target):
        return kernel(*args, **kwargs)
    as_dense(target).copy_(torch.copysign(*args, **kwargs))
    return target


@fault(
    "inplace.accept_unsafe_cast",
    clauses=("inplace",),
    ops=("exp",),
    dtypes=("int64",),
    at=(aten.exp_.default,),
    probe=lambda: not raises(wrap(torch.ones(2, dtype=torch.int64)).exp_),
)
def accept_unsafe_cast(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A floating-point result is cast to an integer self."""
    target = args[0]
    if target.is_floating_point() or is_expanded(target):
        return kernel(*args, **kwargs)
    return target.copy_(target.exp())


@fault(
    "variants.inplace_differs",
    clauses=("variants", "inplace"),
    ops=("clamp", "sub"),
    at=(aten.clamp_.Tensor, aten.clamp_.default, aten.sub_.Tensor),
    probe=lambda: (
        not torch.equal(
            from_device(wrap(torch.zeros(2)).clamp_(0, 1)),
            from_device(wrap(torch.zeros(2)).clamp(0, 1)),
        )
    ),
)
def variants_inplace_differs(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The in-place variant is one too large where self is contiguous."""
    result = kernel(*args, **kwargs)
    return result.add_(1) if result.is_contiguous() else result


# overlap_raises


@fault(
    "overlap.skip_internal_check",
    clauses=("overlap_raises",),
    ops=("add",),
    dtypes=("float32", "int64"),
    at=(aten.add_.Tensor, aten.add.out),
    probe=lambda: not raises(wrap(torch.zeros(1).expand(3)).add_, 1),
)
def skip_internal_check(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A target that is expanded is written to without an error or a warning."""
    rest = dict(kwargs)
    target = rest.pop("out", args[0])
    if not is_expanded(target):
        return kernel(*args, **kwargs)
    result = aten.add.Tensor(*args, **rest)
    thin = unrepeated(target)
    thin.copy_(result.as_strided(thin.shape, result.stride()))
    return target


def _exp_onto_itself() -> bool:
    base = torch.zeros(4)
    return not raises(torch.exp, wrap(base[:3]), out=wrap(base[1:]))


@fault(
    "overlap.skip_partial_check",
    clauses=("overlap_raises",),
    ops=("exp",),
    at=(aten.exp.out,),
    probe=_exp_onto_itself,
)
def skip_partial_check(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= that overlaps an input partly is written to element by element, without an error."""
    out, rest = split_out(kwargs)
    given = args[0]
    shared = out.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    if (
        not shared
        or out.shape != given.shape
        or not (out.is_contiguous() and given.is_contiguous())
    ):
        return kernel(*args, **kwargs)
    source, target = given.view(-1), out.view(-1)
    for place in range(out.numel()):
        target[place] = aten.exp.default(source[place], **rest)
    return out


def _mul_scribbles_and_refuses() -> bool:
    base = torch.zeros(4)
    refused = raises(wrap(base[:1].expand(3)).mul_, 2)
    return refused and bool(storage_bytes(base).any())


@fault(
    "overlap.write_before_refusing",
    clauses=("overlap_raises",),
    ops=("mul",),
    dtypes=("float32", "int64"),
    at=(aten.mul_.Tensor,),
    probe=_mul_scribbles_and_refuses,
)
def write_before_refusing(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """An expanded self is refused, but as many elements as it has are overwritten first."""
    if is_expanded(args[0]):
        scribble(args[0], args[0].storage_offset(), args[0].numel())
    return kernel(*args, **kwargs)
