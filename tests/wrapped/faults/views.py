"""Faults of view ops: copies, wrong geometry, writes that do not come through."""

from __future__ import annotations

from typing import Any

import torch
from tests.wrapped.faults.tools import dense_strides, twin, unrepeated
from torch.utils.weak import WeakTensorKeyDictionary

from tests.wrapped.registry import Args, Kernel, Kwargs, fault, read
from tests.wrapped.tensor import from_device, to_device, wrap

aten = torch.ops.aten


def _transpose_copies() -> bool:
    given = wrap(torch.zeros(2, 3))
    return given.transpose(0, 1).data_ptr() != given.data_ptr()


@fault(
    "views.copy_instead_of_alias",
    clauses=("views",),
    ops=("transpose",),
    at=(aten.transpose.int,),
    probe=_transpose_copies,
)
def copy_instead_of_alias(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A transposition has memory of its own."""
    return twin(kernel(*args, **kwargs))


@fault(
    "views.wrong_offset",
    clauses=("views",),
    ops=("select",),
    at=(aten.select.int,),
    radius=("values::select", "expanded_read::select"),  # other elements have other values
    probe=lambda: wrap(torch.zeros(3, 2)).select(0, 1).storage_offset() != 2,
)
def wrong_offset(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view starts one element early."""
    view = kernel(*args, **kwargs)
    return view.as_strided(view.shape, view.stride(), max(view.storage_offset() - 1, 0))


@fault(
    "views.wrong_strides",
    clauses=("views", "output_strides"),
    ops=("diagonal",),
    at=(aten.diagonal.default,),
    radius=("values::diagonal", "expanded_read::diagonal"),  # other elements have other values
    probe=lambda: wrap(torch.zeros(3, 3)).diagonal().stride() != (4,),
)
def wrong_strides(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view walks its storage in a row."""
    view = kernel(*args, **kwargs)
    return view.as_strided(view.shape, dense_strides(view.shape), view.storage_offset())


@fault(
    "views.drop_conj_bit",
    clauses=("views",),
    ops=("conj",),
    dtypes=("complex64",),
    at=(aten._conj.default,),
    radius=("views::transpose",),  # is given a conjugated view
    probe=lambda: not wrap(torch.zeros(2, dtype=torch.complex64)).conj().is_conj(),
)
def drop_conj_bit(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The conjugate is computed at once instead of noted in the conj bit."""
    result = twin(args[0])
    unrepeated(result).imag.neg_()
    return result


@fault(
    "views.forget_conj_bit",
    clauses=("views",),
    ops=("transpose",),
    dtypes=("complex64",),
    at=(aten.transpose.int,),
    probe=lambda: (
        not wrap(torch.zeros(2, 2, dtype=torch.complex64)).conj().transpose(0, 1).is_conj()
    ),
)
def forget_conj_bit(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view of a conjugated tensor shows the values that are not conjugated."""
    view = kernel(*args, **kwargs)
    return view.conj() if view.is_conj() else view


@fault(
    "views.forget_neg_bit",
    clauses=("views",),
    ops=("select",),
    at=(aten.select.int,),
    probe=lambda: not torch._neg_view(wrap(torch.zeros(2, 2))).select(0, 1).is_neg(),
)
def forget_neg_bit(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view of a negated tensor shows the values that are not negated."""
    view = kernel(*args, **kwargs)
    return torch._neg_view(view) if view.is_neg() else view


def _fill_is_lost() -> bool:
    base = to_device(torch.zeros(4))
    base[2:].fill_(1)
    return not bool(from_device(base).any())


@fault(
    "views.write_lost",
    clauses=("views",),
    ops=("narrow", "select", "transpose", "diagonal"),
    at=(aten.fill_.Scalar,),
    radius=("views::*", "inplace::fill"),  # whatever is filled through a view
    probe=_fill_is_lost,
)
def write_lost(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A fill through a view with an offset is dropped."""
    return args[0] if args[0].storage_offset() else kernel(*args, **kwargs)


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
    clauses=("views",),
    ops=("narrow", "select", "transpose", "diagonal"),
    at=(aten.fill_.Scalar, read),
    radius=("views::*",),  # whatever is filled through a view, and read again
    probe=_reads_stale,
)
def base_write_unseen(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A view that was filled reads as it did then, whatever is written to its base."""
    if kernel is read:
        held = _stale.get(args[0])
        return kernel(*args) if held is None or held.shape != args[0].shape else held.clone()
    result = kernel(*args, **kwargs)
    _stale[result] = result.clone()
    return result
