"""Calls: tensors taken out of nested arguments and put back in."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from opinfo.compare import Arguments, replace_tensors, tensors_of

Pair = namedtuple("Pair", "left right")


def t(value: float) -> torch.Tensor:
    return torch.tensor(value)


def numbers(value: Any) -> Any:
    """The structure with each tensor as its number."""
    return replace_tensors(value, lambda tensor: tensor.item())


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((t(1), 2, t(3), "mean"), {"dim": 0}),
        (([t(1), t(2)], 3), {}),
        ((t(1), (t(2), [t(3), None])), {"alpha": 2}),
        ((t(1),), {"weight": t(2), "bias": None}),
        (({"x": t(1)}, Pair(t(2), 5)), {"out": [t(3)]}),
        ((), {"size": (2, 3)}),
        ((t(1), slice(0, 2), ...), {}),
    ],
)
def test_bind_puts_other_tensors_in_the_same_places(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    call = Arguments(args, kwargs)
    bound_args, bound_kwargs = call.bind([x + 10 for x in call.tensors])
    plus_ten = replace_tensors((args, kwargs), lambda tensor: tensor.item() + 10)
    assert numbers((bound_args, bound_kwargs)) == plus_ten


def test_bind_leaves_the_call_as_it_was() -> None:
    args = ([t(1.0), 2], t(3.0))
    kwargs = {"other": t(4.0)}
    Arguments(args, kwargs).bind([t(7.0), t(8.0), t(9.0)])
    assert numbers((args, kwargs)) == (([1.0, 2], 3.0), {"other": 4.0})


def test_tensors_come_in_reading_order() -> None:
    value = (t(1), [t(2), (t(3),)], {"a": t(4), "b": [t(5)]})
    assert [x.item() for x in tensors_of(value)] == [1, 2, 3, 4, 5]


def test_positional_tensors_come_before_named_ones() -> None:
    assert [x.item() for x in Arguments((t(1), t(2)), {"a": t(3)}).tensors] == [1, 2, 3]


def test_a_named_tuple_stays_one() -> None:
    (pair,), _ = Arguments((Pair(t(1), 2),), {}).bind([t(5)])
    assert isinstance(pair, Pair) and (pair.left.item(), pair.right) == (5, 2)


def test_a_result_that_is_a_structseq_is_flattened() -> None:
    result = torch.max(torch.tensor([[1.0, 2.0], [4.0, 3.0]]), dim=1)
    assert [x.tolist() for x in tensors_of(result)] == [[2.0, 4.0], [1, 0]]
