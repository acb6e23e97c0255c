"""The calls that are made once more with FakeTensor."""

from __future__ import annotations

import torch

from conformance.suites.compile.fake_calls import BesideFake


def test_a_call_of_a_number_is_not_one_of_the_device() -> None:
    x = torch.ones(2, requires_grad=True)
    product = x * 1j
    with BesideFake() as mode:
        torch.autograd.grad(product, [x], [torch.ones_like(product)])
    names = [each.name for each in mode.calls]
    assert "aten.mul.Tensor" in names and "aten._conj.default" not in names
    assert all(each.real == each.fake for each in mode.calls)
