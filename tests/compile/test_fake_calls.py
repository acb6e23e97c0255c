"""The calls that are made once more with FakeTensor."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import torch

from conformance.checks.ops.calls import Invocation
from conformance.suites.compile.fake_calls import BesideFake, called_beside_fake
from devices import registry
from opinfo.device import open_device


class _Noting(torch.autograd.Function):
    """The identity, whose backward notes the thread in which it runs."""

    threads: ClassVar[set[int]] = set()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        _Noting.threads.add(threading.get_ident())
        return gradients[0]


def test_a_call_of_a_number_is_not_one_of_the_device() -> None:
    x = torch.ones(2, requires_grad=True)
    product = x * 1j
    with BesideFake() as mode:
        torch.autograd.grad(product, [x], [torch.ones_like(product)])
    names = [each.name for each in mode.calls]
    assert "aten.mul.Tensor" in names and "aten._conj.default" not in names
    assert all(each.real == each.fake for each in mode.calls)


def test_the_backward_runs_in_the_thread_of_the_call() -> None:
    """A thread of autograd's own that releases the dispatch mode while a repro script ends aborts the process."""
    open_device(registry.get("simulated"))
    device = torch.device("simulated")
    call = Invocation(
        function=_Noting.apply,
        arguments=lambda tensors, _: (tensors, {}),
        values=[torch.ones(2)],
        inputs=[torch.ones(2, device=device)],
        device=device,
        move=lambda value: value.to(device),
        back=lambda value: value.cpu(),
        settle=lambda _: None,
    )
    _Noting.threads.clear()
    found = called_beside_fake(call, [0])
    assert found.raised is None and found.calls
    assert _Noting.threads == {threading.get_ident()}
