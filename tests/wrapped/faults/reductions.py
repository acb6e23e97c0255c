"""Faults of reductions over nothing, and of determinism."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch

from tests.planting.calls import NOT_MET, KernelCall
from tests.wrapped.faults.probing import raises, wrong
from tests.wrapped.registry import fault, may_change, probe
from tests.wrapped.tensor import from_device, wrap

_EMPTY = torch.zeros(2, 0)


@fault("reduce.empty_sum_one", "empty_reduce", ops="sum", at="sum.dim_IntList sum")
@probe(lambda: wrong(torch.sum, _EMPTY, 1))
def _(call: KernelCall) -> Any:
    """The sum of nothing is 1."""
    return NOT_MET if call.first.numel() else call.honest().fill_(1)


@fault("reduce.empty_uninitialised", "empty_reduce", ops="prod", at="prod.dim_int")
@probe(lambda: wrong(torch.prod, _EMPTY, 1))
@may_change("values::prod expanded_read::prod")  # a sample has no elements
def _(call: KernelCall) -> Any:
    """The product over an empty dimension is left unwritten."""
    return NOT_MET if call.first.numel() else call.honest().fill_(-3.5)  # any value will do


@fault("reduce.empty_mean_zero", "empty_reduce", ops="mean", at="mean.dim mean")
@probe(lambda: wrong(torch.mean, _EMPTY, 1))
def _(call: KernelCall) -> Any:
    """The mean of nothing is 0 instead of NaN."""
    return NOT_MET if call.first.numel() else call.honest().fill_(0)


@fault("reduce.empty_no_raise", "empty_reduce", ops="amax")
@probe(lambda: not raises(torch.amax, wrap(_EMPTY), 1))
def _(call: KernelCall) -> Any:
    """The maximum of nothing is -inf instead of an error."""
    if call.first.numel():
        return NOT_MET
    return torch.sum(*call.args, **call.kwargs).fill_(-float("inf"))


@fault("reduce.empty_raises", "empty_reduce", ops="prod", at="prod prod.dim_int")
@probe(lambda: raises(torch.prod, wrap(_EMPTY), 1))
# A sample has no elements: no result, no check.
@may_change(
    "values::prod expanded_read::prod output_strides::prod output_fresh::prod variants::prod"
)
def _(call: KernelCall) -> Any:
    """A product of nothing is refused."""
    if call.first.numel() == 0:
        raise RuntimeError("prod: expected a tensor with elements")
    return NOT_MET


_calls = count()


def _deterministic(look: Callable[[], bool]) -> Callable[[], bool]:
    """A probe that looks with deterministic algorithms on."""

    def looked() -> bool:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return look()
        finally:
            torch.use_deterministic_algorithms(before)

    return looked


def _sums_differ() -> bool:
    given = wrap(torch.ones(3))
    return not torch.equal(from_device(given.sum()), from_device(given.sum()))


@fault("determinism.varying_reduction_order", "determinism", ops="sum", at="sum.dim_IntList sum")
@may_change("determinism::*")  # gradients of other ops are sums
@probe(_deterministic(_sums_differ))
def _(call: KernelCall) -> Any:
    """Every second sum differs in its last bit, with deterministic algorithms on too."""
    if not call.first.numel() or next(_calls) % 2:
        return NOT_MET
    result = call.honest()
    return result.nextafter(torch.full_like(result, float("inf")))


def _refuses_one_of_two() -> bool:
    given, index = wrap(torch.ones(3)), wrap(torch.tensor([0]))
    refused = [raises(torch.index_select, given, 0, index) for _ in range(2)]
    return refused[0] != refused[1]


@fault("determinism.refuse_every_second_call", "determinism", ops="index_select")
@probe(_deterministic(_refuses_one_of_two))
def _(call: KernelCall) -> Any:
    """With deterministic algorithms on, every second call raises."""
    if torch.are_deterministic_algorithms_enabled() and next(_calls) % 2:
        raise RuntimeError("index_select does not have a deterministic implementation")
    return NOT_MET


def _where_leaves_one() -> bool:
    """With deterministic algorithms on, torch fills fresh memory with NaN: what is left unwritten stays so."""
    given = wrap(torch.ones(2))
    return bool(from_device(torch.where(given > 0, given, given)).isnan().any())


@fault("determinism.element_unwritten", "determinism", ops="where", at="where.self")
@probe(_deterministic(_where_leaves_one))
@may_change("values::where expanded_read::where variants::where")  # it is what its memory held
def _(call: KernelCall) -> Any:
    """The last element of the result is never written."""
    result = call.honest()
    made = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
    count = result.numel() - 1
    if count > 0:  # the results of where are dense: both have their elements in one row of memory
        made.as_strided((count,), (1,)).copy_(result.as_strided((count,), (1,)))
    return made
