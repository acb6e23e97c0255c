"""Kernels whose cache forgets an argument."""

from __future__ import annotations

import torch

from tests.mutation.cache_keys import Forgetful, result_of
from tests.planting.calls import NOT_MET, KernelCall


def test_a_later_call_of_the_same_shapes_gets_the_first_value() -> None:
    effect = Forgetful(1)
    x = torch.arange(6.0).view(2, 3)
    assert effect(KernelCall(torch.sum, (x, 0), {})) is NOT_MET
    assert torch.equal(effect(KernelCall(torch.sum, (x, 1), {})), x.sum(0))
    assert effect(KernelCall(torch.sum, (x.t(), 1), {})) is NOT_MET  # other shapes
    assert effect.struck == 1


def test_a_forgotten_dimension_is_noticed() -> None:
    assert result_of("cumsum", 1) == "noticed by layout.values"
