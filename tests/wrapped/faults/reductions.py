"""Faults of reductions over nothing, and of determinism."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from tests.wrapped.faults.tools import raises, wrong

from tests.wrapped.registry import Args, Kernel, Kwargs, fault
from tests.wrapped.tensor import from_device, wrap

aten = torch.ops.aten

_EMPTY = torch.zeros(2, 0)


@fault(
    "reduce.empty_sum_one",
    clauses=("empty_reduce",),
    ops=("sum",),
    at=(aten.sum.dim_IntList, aten.sum.default),
    probe=lambda: wrong(torch.sum, _EMPTY, 1),
)
def empty_sum_one(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The sum of nothing is 1."""
    result = kernel(*args, **kwargs)
    return result.fill_(1) if args[0].numel() == 0 else result


@fault(
    "reduce.empty_uninitialised",
    clauses=("empty_reduce",),
    ops=("prod",),
    at=(aten.prod.dim_int,),
    radius=("values::prod", "expanded_read::prod"),  # a sample has no elements
    probe=lambda: wrong(torch.prod, _EMPTY, 1),
)
def empty_uninitialised(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The product over an empty dimension is left unwritten."""
    result = kernel(*args, **kwargs)
    return result.fill_(-3.5) if args[0].numel() == 0 else result  # any value will do


@fault(
    "reduce.empty_mean_zero",
    clauses=("empty_reduce",),
    ops=("mean",),
    at=(aten.mean.dim, aten.mean.default),
    probe=lambda: wrong(torch.mean, _EMPTY, 1),
)
def empty_mean_zero(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The mean of nothing is 0 instead of NaN."""
    result = kernel(*args, **kwargs)
    return result.fill_(0) if args[0].numel() == 0 else result


@fault(
    "reduce.empty_no_raise",
    clauses=("empty_reduce",),
    ops=("amax",),
    at=(aten.amax.default,),
    probe=lambda: not raises(torch.amax, wrap(_EMPTY), 1),
)
def empty_no_raise(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The maximum of nothing is -inf instead of an error."""
    if args[0].numel():
        return kernel(*args, **kwargs)
    return torch.sum(args[0], *args[1:], **kwargs).fill_(-float("inf"))


@fault(
    "reduce.empty_raises",
    clauses=("empty_reduce",),
    ops=("prod",),
    at=(aten.prod.default, aten.prod.dim_int),
    # A sample has no elements: no result, no check.
    radius=tuple(
        f"{clause}::prod"
        for clause in ("values", "expanded_read", "output_strides", "output_fresh", "variants")
    ),
    probe=lambda: raises(torch.prod, wrap(_EMPTY), 1),
)
def empty_raises(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """A product of nothing is refused."""
    if args[0].numel() == 0:
        raise RuntimeError("prod: expected a tensor with elements")
    return kernel(*args, **kwargs)


_calls = count()


def _sums_differ() -> bool:
    given, before = wrap(torch.ones(3)), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return not torch.equal(from_device(given.sum()), from_device(given.sum()))
    finally:
        torch.use_deterministic_algorithms(before)


@fault(
    "determinism.varying_reduction_order",
    clauses=("determinism",),
    ops=("sum",),
    at=(aten.sum.dim_IntList, aten.sum.default),
    probe=_sums_differ,
)
def varying_reduction_order(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """Every second sum differs in its last bit, with deterministic algorithms on too."""
    result = kernel(*args, **kwargs)
    if not args[0].numel() or next(_calls) % 2:
        return result
    return result.nextafter(torch.full_like(result, float("inf")))


def _refuses_one_of_two() -> bool:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        given, index = wrap(torch.ones(3)), wrap(torch.tensor([0]))
        return raises(torch.index_select, given, 0, index) != raises(
            torch.index_select, given, 0, index
        )
    finally:
        torch.use_deterministic_algorithms(before)


@fault(
    "determinism.refuse_every_second_call",
    clauses=("determinism",),
    ops=("index_select",),
    at=(aten.index_select.default,),
    probe=_refuses_one_of_two,
)
def refuse_every_second_call(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """With deterministic algorithms on, every second call raises."""
    if torch.are_deterministic_algorithms_enabled() and next(_calls) % 2:
        raise RuntimeError("index_select does not have a deterministic implementation")
    return kernel(*args, **kwargs)


def _where_leaves_one() -> bool:
    """With deterministic algorithms on, torch fills fresh memory with NaN: what is left unwritten stays so."""
    before, given = torch.are_deterministic_algorithms_enabled(), wrap(torch.ones(2))
    torch.use_deterministic_algorithms(True)
    try:
        return bool(from_device(torch.where(given > 0, given, given)).isnan().any())
    finally:
        torch.use_deterministic_algorithms(before)


@fault(
    "determinism.element_unwritten",
    clauses=("determinism",),
    ops=("where",),
    at=(aten.where.self,),
    # The element is what its memory held.
    radius=("values::where", "expanded_read::where", "variants::where"),
    probe=_where_leaves_one,
)
def element_unwritten(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """The last element of the result is never written."""
    result = kernel(*args, **kwargs)
    made = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
    count = result.numel() - 1
    if count > 0:  # the results of where are dense: both have their elements in one row of memory
        made.as_strided((count,), (1,)).copy_(result.as_strided((count,), (1,)))
    return made
