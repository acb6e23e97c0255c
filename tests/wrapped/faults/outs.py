"""Faults of ``out=`` and of variants: targets moved, refused, accepted or left as they were."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.tensors import as_dense, dense_strides, is_expanded
from tests.wrapped.faults.probing import becomes, raises, shares, stepped
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import from_device, wrap


def _ones(*shape: int) -> torch.Tensor:
    return wrap(torch.ones(shape))


_TWO = _ones(2, 2)


# out_kept


@fault("out.reallocate", "out_kept", ops="mul", at="mul.out", dtypes="float32 int64")
@probe(lambda: not shares(lambda out: torch.mul(out, out, out=out), _ones(3)))
@may_change("bounds::mul")  # a target that was moved is not judged there
def _(call: KernelCall) -> Any:
    """out= is given memory of its own."""
    out = call.honest()
    return out.set_(out.clone())


def _add_restrides_out() -> bool:
    out = wrap(torch.ones(2, 3).t())
    torch.add(_ones(3, 2), _ones(3, 2), out=out)
    return bool(out.stride() != (1, 3))


@fault(
    "out.restride",
    "out_kept",
    ops="add nn.functional.avg_pool2d",
    at="add.out avg_pool2d.out",
    dtypes="float32 int64",
)
@probe(_add_restrides_out)
# A target that was restrided is not judged there.
@may_change("bounds::add bounds::nn.functional.avg_pool2d")
def _(call: KernelCall) -> Any:
    """out= becomes contiguous."""
    out = call.honest()
    values = out.clone()
    out.set_(out.untyped_storage(), out.storage_offset(), out.shape, dense_strides(out.shape))
    return out.copy_(values)


@fault("out.ignore_strides", "out_kept bounds", ops="exp", at="exp.out", dtypes="float32 int64")
@probe(lambda: not becomes(stepped(0, 0, 0), lambda t: torch.exp(_ones(3) * 0, out=t), 1, 1, 1))
def _(call: KernelCall) -> Any:
    """The result is written in a row, whatever the strides of out= are."""
    out = call.kwargs["out"]
    if out.is_contiguous() or is_expanded(out) or out.shape != call.first.shape:
        return NOT_MET
    as_dense(out).copy_(torch.exp(call.first))
    return out


@fault("out.strided_unwritten", "out_kept", ops="mm", at="mm.out")
@probe(lambda: becomes(torch.zeros(2, 2).t(), lambda out: torch.mm(_TWO, _TWO, out=out), *[0] * 4))
def _(call: KernelCall) -> Any:
    """A strided out= is left as it was."""
    out = call.kwargs["out"]
    return NOT_MET if out.is_contiguous() or is_expanded(out) else out


@fault("out.accumulate_into_old_values", "out_kept", ops="atan2", at="atan2.out")
@probe(
    lambda: becomes(torch.ones(2), lambda out: torch.atan2(_ones(2) * 0, _ones(2), out=out), 1, 1)
)
@may_change("variants::atan2")  # its targets hold what their memory held
def _(call: KernelCall) -> Any:
    """The result is added to what out= held."""
    old = call.kwargs["out"].clone()
    out = call.honest()
    return out.add_(old) if out.shape == old.shape else out


# out_resize


def _fits(call: KernelCall) -> bool:
    """Whether out= has the shape of the result of two operands."""
    shape = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape)
    return bool(call.kwargs["out"].shape == shape)


@fault("out.refuse_resize", "out_resize", ops="sub", at="sub.out")
@probe(lambda: raises(torch.sub, _ones(2), _ones(2), out=wrap(torch.empty(0))))
def _(call: KernelCall) -> Any:
    """out= without elements is refused."""
    if call.kwargs["out"].numel() == 0 and not _fits(call):
        raise RuntimeError("sub: out= must have the shape of the result")
    return NOT_MET


def _copysign_is_silent() -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.copysign(_ones(2), _ones(2), out=_ones(3))
    return not caught


@fault("out.resize_silently", "out_resize", ops="copysign", at="copysign.out")
@probe(_copysign_is_silent)
def _(call: KernelCall) -> Any:
    """out= of a wrong shape is resized without a warning."""
    if not _fits(call):
        call.kwargs["out"].resize_(0)
    return NOT_MET


@fault("out.accept_unsafe_dtype", "out_resize", ops="neg", at="neg.out")
@probe(lambda: not raises(torch.neg, _ones(2), out=wrap(torch.ones(2, dtype=torch.int64))))
def _(call: KernelCall) -> Any:
    """A floating-point result is cast to an integer out=."""
    given, out = call.first, call.kwargs["out"]
    return NOT_MET if torch.can_cast(given.dtype, out.dtype) else out.copy_(given.neg())


@fault("out.accept_wrong_device", "out_resize", ops="fmax", at="fmax.out")
@probe(lambda: not raises(torch.fmax, _ones(2), _ones(2), out=torch.ones(2, device="meta")))
def _(call: KernelCall) -> Any:
    """out= on another device is taken, and nothing is written to it."""
    out = call.kwargs["out"]
    return out if out.device != call.first.device else NOT_MET


def _index_select_keeps_shape() -> bool:
    out = _ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.index_select(_ones(2), 0, wrap(torch.tensor([0, 1])), out=out)
    return out.shape == (4,)


@fault("out.keep_wrong_shape", "out_resize", ops="index_select", at="index_select.out")
@probe(_index_select_keeps_shape)
def _(call: KernelCall) -> Any:
    """out= of a wrong shape keeps it, and holds the result in its first elements."""
    out, result = call.kwargs["out"], torch.index_select(*call.args)
    if out.shape == result.shape or out.numel() < result.numel() or not out.is_contiguous():
        return NOT_MET
    out.view(-1)[: result.numel()].copy_(result.reshape(-1))
    return out


# variants


def _bmm_variants_differ() -> bool:
    out = _ones(1, 2, 2)
    first, second = _ones(1, 2, 2), _ones(1, 2, 2)
    torch.bmm(first, second, out=out)
    return not torch.equal(from_device(out), from_device(torch.bmm(first, second)))


@fault("variants.out_differs", "variants out_kept out_resize", ops="bmm", at="bmm.out")
@probe(_bmm_variants_differ)
def _(call: KernelCall) -> Any:
    """The out variant is one too large."""
    return call.honest().add_(1)


@fault("variants.out_cleared_first", "variants", ops="neg", at="neg.out")
@probe(lambda: becomes(torch.ones(2), lambda x: torch.neg(x, out=x), 0, 0))
def _(call: KernelCall) -> Any:
    """The target is cleared before the operand is read, which may be the same tensor."""
    call.kwargs["out"].zero_()
    return NOT_MET


# The operator calls the method.
@fault(
    "variants.method_differs", "variants", ops="neg sub", at=(torch.Tensor.neg, torch.Tensor.sub)
)
@probe(lambda: not torch.equal(from_device(_ones(2).neg()), from_device(torch.neg(_ones(2)))))
def _(call: KernelCall) -> Any:
    """The method is one too large."""
    return call.honest() + 1
