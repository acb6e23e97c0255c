"""Faults of view ops: copies, wrong geometry, writes that do not come through."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tests.planting.calls import NOT_MET, KernelCall
from tests.planting.places import overload_of
from tests.planting.tensors import dense_strides, twin, unrepeated
from tests.wrapped.faults.probing import shares
from tests.wrapped.registry import fault, may_change, probe, read
from tests.wrapped.tensor import from_device, to_device, wrap

_MATRIX = torch.zeros(3, 3)
_COMPLEX = torch.zeros(2, 2, dtype=torch.complex64)


@fault("views.copy_instead_of_alias", "views", ops="transpose", at="transpose.int")
@probe(lambda: not shares(lambda t: t.transpose(0, 1), wrap(_MATRIX)))
def _(call: KernelCall) -> Any:
    """A transposition has memory of its own."""
    return twin(call.honest())


@fault("views.wrong_offset", "views", ops="select", at="select.int")
@probe(lambda: wrap(_MATRIX).select(0, 1).storage_offset() != 3)
@may_change("values::select expanded_read::select")  # other elements have other values
def _(call: KernelCall) -> Any:
    """A view starts one element early."""
    view = call.honest()
    return view.as_strided(view.shape, view.stride(), max(view.storage_offset() - 1, 0))


@fault("views.wrong_strides", "views output_strides", ops="diagonal")
@probe(lambda: wrap(_MATRIX).diagonal().stride() != (4,))
@may_change("values::diagonal expanded_read::diagonal")  # other elements have other values
def _(call: KernelCall) -> Any:
    """A view walks its storage in a row."""
    view = call.honest()
    return view.as_strided(view.shape, dense_strides(view.shape), view.storage_offset())


@fault("views.drop_conj_bit", "views", ops="conj", at="_conj", dtypes="complex64")
@probe(lambda: not wrap(_COMPLEX).conj().is_conj())
@may_change("views::transpose")  # is given a conjugated view
def _(call: KernelCall) -> Any:
    """The conjugate is computed at once instead of noted in the conj bit."""
    result = twin(call.first)
    unrepeated(result).imag.neg_()
    return result


@fault("views.forget_conj_bit", "views", ops="transpose", at="transpose.int", dtypes="complex64")
@probe(lambda: not wrap(_COMPLEX).conj().transpose(0, 1).is_conj())
def _(call: KernelCall) -> Any:
    """A view of a conjugated tensor shows the values that are not conjugated."""
    view = call.honest()
    return view.conj() if view.is_conj() else view


@fault("views.forget_neg_bit", "views", ops="select", at="select.int")
@probe(lambda: not torch._neg_view(wrap(_MATRIX)).select(0, 1).is_neg())
def _(call: KernelCall) -> Any:
    """A view of a negated tensor shows the values that are not negated."""
    view = call.honest()
    return torch._neg_view(view) if view.is_neg() else view


def _fill_is_lost() -> bool:
    base = to_device(torch.zeros(4))
    base[2:].fill_(1)
    return not bool(from_device(base).any())


@fault("views.write_lost", "views", ops="narrow select transpose diagonal", at="fill_.Scalar")
@probe(_fill_is_lost)
@may_change("views::* inplace::fill")  # whatever is filled through a view
def _(call: KernelCall) -> Any:
    """A fill through a view with an offset is dropped."""
    return call.first if call.first.storage_offset() else NOT_MET


#: What a view held when it was last written to, for the fault below.
_stale: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _reads_stale() -> bool:
    base = to_device(torch.zeros(4))
    view = base[2:]
    view.fill_(1)
    base.zero_()
    return bool(from_device(view).any())


@fault(
    "views.base_write_unseen",
    "views",
    ops="narrow select transpose diagonal",
    at=(overload_of("fill_.Scalar"), read),
)
@probe(_reads_stale)
@may_change("views::*")  # whatever is filled through a view, and read again
def _(call: KernelCall) -> Any:
    """A view that was filled reads as it did then, whatever is written to its base."""
    if call.function is read:
        held = _stale.get(call.first)
        return NOT_MET if held is None or held.shape != call.first.shape else held.clone()
    result = call.honest()
    _stale[result] = result.clone()
    return result
