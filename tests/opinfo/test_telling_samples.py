"""Handwritten samples for ops whose result is the same, or nearly so, for all values that other axes draw."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
import torch

from opinfo.axes import by_axis
from opinfo.axes.equal_values import TRUTHS
from opinfo.axes.handwritten import WRITTEN
from opinfo.catalog import catalogue
from opinfo.compare import Arguments, tensors_of
from opinfo.samples import draw


def written(op: str, dtype: str = "float32") -> list[Arguments]:
    found = catalogue()[op]
    samples = by_axis(found, dtype, draw(found, dtype))
    return [each.call for each in samples if each.axis == WRITTEN.name]


def called(op: str, call: Arguments) -> Any:
    args, kwargs = call.bind([each.clone() for each in call.tensors])
    return catalogue()[op].reference(*args, **kwargs)


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "complex64"])
def test_any_is_false_for_some_rows_and_true_for_others(dtype: str) -> None:
    for call in written("any", dtype):
        assert {*called("any", call).flatten().tolist()} == {False, True}


@pytest.mark.parametrize("op", ["linalg.matrix_rank", "linalg.matrix_rank.hermitian"])
def test_the_matrices_of_a_batch_have_different_ranks(op: str) -> None:
    for call in written(op):
        assert len({*called(op, call).flatten().tolist()}) > 1


def test_to_returns_a_tensor_that_has_the_dtype_already() -> None:
    for call in written("to"):
        args, kwargs = call.bind(call.tensors)
        assert catalogue()["to"].reference(*args, **kwargs) is call.tensors[0]


def test_reductions_of_a_sparse_product_give_different_results() -> None:
    calls = written("sparse.mm.reduce")
    assert {call.args[2] for call in calls} == {"sum", "mean", "amax", "amin"}
    for call in calls:
        sparse, dense, _ = call.args
        results = [
            called("sparse.mm.reduce", Arguments((sparse, dense, how), {}))
            for how in ("sum", "mean", "amax", "amin")
        ]
        assert not any(torch.equal(one, other) for one, other in combinations(results, 2))


def truths(op: str, dtype: str) -> list[Arguments]:
    found = catalogue()[op]
    samples = by_axis(found, dtype, draw(found, dtype))
    return [each.call for each in samples if each.axis == TRUTHS.name]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *product(("any", "logical_or"), ("float32", "int64", "bool")),
        *product(("max.reduction_no_dim", "min.reduction_no_dim", "outer"), ("bool",)),
        *product(("nonzero_static", "repeat", "unique", "unique_consecutive"), ("bool",)),
    ],
)
def test_expanded_operands_of_zeros_and_ones_have_different_results(op: str, dtype: str) -> None:
    results = []
    for call in truths(op, dtype):
        given = [each[:1].expand(each.shape) if each.dim() else each for each in call.tensors]
        args, kwargs = call.bind(given)
        results += tensors_of(catalogue()[op].reference(*args, **kwargs))
    assert len({repr(each.unique().tolist()) for each in results}) > 1
