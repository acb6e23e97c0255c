"""Faults of ``out=`` and of variants: targets moved, refused, accepted or left as they were."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tests.wrapped.faults.tools import (
    as_dense,
    dense_strides,
    is_expanded,
    raises,
    split_out,
    stepped,
)

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten


def _ones(*shape: int) -> torch.Tensor:
    return wrap(torch.ones(shape))


# out_kept


def _mul_moves_out() -> bool:
    out = _ones(3)
    address = out.data_ptr()
    torch.mul(_ones(3), _ones(3), out=out)
    return out.data_ptr() != address


@fault(
    "out.reallocate",
    clauses=("out_kept",),
    ops=("mul",),
    dtypes=("float32", "int64"),
    at=(aten.mul.out,),
    radius=("bounds::mul",),  # a target that was moved is not judged there
    probe=_mul_moves_out,
)
def out_reallocate(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= is given memory of its own."""
    out = kernel(*args, **kwargs)
    return out.set_(out.clone())


def _add_restrides_out() -> bool:
    out = wrap(torch.ones(2, 3).t())
    torch.add(_ones(3, 2), _ones(3, 2), out=out)
    return bool(out.stride() != (1, 3))


@fault(
    "out.restride",
    clauses=("out_kept",),
    ops=("add", "nn.functional.avg_pool2d"),
    dtypes=("float32", "int64"),
    at=(aten.add.out, aten.avg_pool2d.out),
    radius=(
        "bounds::add",
        "bounds::nn.functional.avg_pool2d",
    ),  # a target that was restrided is not judged there
    probe=_add_restrides_out,
)
def out_restride(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= becomes contiguous."""
    out = kernel(*args, **kwargs)
    values = out.clone()
    out.set_(out.untyped_storage(), out.storage_offset(), out.shape, dense_strides(out.shape))
    return out.copy_(values)


def _exp_into_row() -> bool:
    out = stepped(0, 0, 0)
    torch.exp(wrap(torch.zeros(3)), out=wrap(out))
    return out.tolist() != [1.0, 1.0, 1.0]


@fault(
    "out.ignore_strides",
    clauses=("out_kept", "bounds"),
    ops=("exp",),
    dtypes=("float32", "int64"),
    at=(aten.exp.out,),
    probe=_exp_into_row,
)
def out_ignore_strides(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result is written in a row, whatever the strides of out= are."""
    out, rest = split_out(kwargs)
    if out.is_contiguous() or is_expanded(out) or out.shape != args[0].shape:
        return kernel(*args, **kwargs)
    as_dense(out).copy_(aten.exp.default(*args, **rest))
    return out


def _mm_skips_strided() -> bool:
    out = wrap(torch.zeros(2, 2).t())
    torch.mm(_ones(2, 2), _ones(2, 2), out=out)
    return not bool(from_device(out).any())


@fault(
    "out.strided_unwritten",
    clauses=("out_kept",),
    ops=("mm",),
    at=(aten.mm.out,),
    probe=_mm_skips_strided,
)
def strided_out_unwritten(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A strided out= is left as it was."""
    out = kwargs["out"]
    if not out.is_contiguous() and not is_expanded(out):
        return out
    return kernel(*args, **kwargs)


def _atan2_accumulates() -> bool:
    out = _ones(2)
    torch.atan2(wrap(torch.zeros(2)), _ones(2), out=out)
    return bool(from_device(out).any())


@fault(
    "out.accumulate_into_old_values",
    clauses=("out_kept",),
    ops=("atan2",),
    at=(aten.atan2.out,),
    radius=("variants::atan2",),  # its targets hold what their memory held
    probe=_atan2_accumulates,
)
def accumulate_into_old_values(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The result is added to what out= held."""
    old = kwargs["out"].clone()
    out = kernel(*args, **kwargs)
    return out.add_(old) if out.shape == old.shape else out


# out_resize


@fault(
    "out.refuse_resize",
    clauses=("out_resize",),
    ops=("sub",),
    at=(aten.sub.out,),
    probe=lambda: raises(torch.sub, _ones(2), _ones(2), out=wrap(torch.empty(0))),
)
def refuse_resize(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= without elements is refused."""
    out = kwargs["out"]
    if out.numel() == 0 and out.shape != torch.broadcast_shapes(args[0].shape, args[1].shape):
        raise RuntimeError("sub: out= must have the shape of the result")
    return kernel(*args, **kwargs)


def _copysign_is_silent() -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.copysign(_ones(2), _ones(2), out=_ones(3))
    return not caught


@fault(
    "out.resize_silently",
    clauses=("out_resize",),
    ops=("copysign",),
    at=(aten.copysign.out,),
    probe=_copysign_is_silent,
)
def resize_silently(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= of a wrong shape is resized without a warning."""
    out, rest = split_out(kwargs)
    if out.shape != torch.broadcast_shapes(args[0].shape, args[1].shape):
        out.resize_(0)
    return kernel(*args, **rest, out=out)


@fault(
    "out.accept_unsafe_dtype",
    clauses=("out_resize",),
    ops=("neg",),
    at=(aten.neg.out,),
    probe=lambda: not raises(torch.neg, _ones(2), out=wrap(torch.ones(2, dtype=torch.int64))),
)
def accept_unsafe_dtype(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A floating-point result is cast to an integer out=."""
    out = kwargs["out"]
    if torch.can_cast(args[0].dtype, out.dtype):
        return kernel(*args, **kwargs)
    return out.copy_(args[0].neg())


@fault(
    "out.accept_wrong_device",
    clauses=("out_resize",),
    ops=("fmax",),
    at=(aten.fmax.out,),
    probe=lambda: not raises(torch.fmax, _ones(2), _ones(2), out=torch.ones(2, device="meta")),
)
def accept_wrong_device(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= on another device is taken, and nothing is written to it."""
    out = kwargs["out"]
    return out if out.device != args[0].device else kernel(*args, **kwargs)


def _index_select_keeps_shape() -> bool:
    out = _ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.index_select(_ones(2), 0, wrap(torch.tensor([0, 1])), out=out)
    return out.shape == (4,)


@fault(
    "out.keep_wrong_shape",
    clauses=("out_resize",),
    ops=("index_select",),
    at=(aten.index_select.out,),
    probe=_index_select_keeps_shape,
)
def keep_wrong_shape(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """out= of a wrong shape keeps it, and holds the result in its first elements."""
    out, rest = split_out(kwargs)
    result = aten.index_select.default(*args, **rest)
    if out.shape == result.shape or out.numel() < result.numel() or not out.is_contiguous():
        return kernel(*args, **kwargs)
    out.view(-1)[: result.numel()].copy_(result.reshape(-1))
    return out


# variants


def _bmm_variants_differ() -> bool:
    out = _ones(1, 2, 2)
    first, second = _ones(1, 2, 2), _ones(1, 2, 2)
    torch.bmm(first, second, out=out)
    return not torch.equal(from_device(out), from_device(torch.bmm(first, second)))


@fault(
    "variants.out_differs",
    clauses=("variants", "out_kept", "out_resize"),
    ops=("bmm",),
    at=(aten.bmm.out,),
    probe=_bmm_variants_differ,
)
def variants_out_differs(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The out variant is one too large."""
    return kernel(*args, **kwargs).add_(1)


def _clears_its_input() -> bool:
    x = _ones(2)
    torch.neg(x, out=x)
    return bool((from_device(x) == 0).all())


@fault(
    "variants.out_cleared_first",
    clauses=("variants",),
    ops=("neg",),
    at=(aten.neg.out,),
    probe=_clears_its_input,
)
def out_cleared_first(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The target is cleared before the operand is read, which may be the same tensor."""
    split_out(kwargs)[0].zero_()
    return kernel(*args, **kwargs)


@fault(
    "variants.method_differs",
    clauses=("variants",),
    ops=("neg", "sub"),
    at=(torch.Tensor.neg, torch.Tensor.sub),  # the operator calls the method
    probe=lambda: not torch.equal(from_device(_ones(2).neg()), from_device(torch.neg(_ones(2)))),
)
def variants_method_differs(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The method is one too large."""
    return kernel(*args, **kwargs) + 1
