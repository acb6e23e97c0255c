"""What counts as a kernel that leaves its work to the op of its reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance import judge
from conformance.kernels.delegation import op_of_reference
from conformance.kernels.observation import Observer
from opinfo.compare import Arguments
from tests.kernels import references, right


def op_of(reference: Any, *shapes: tuple[int, ...]) -> Any:
    call = Arguments(tuple(map(torch.rand, shapes)), {})
    samples: Any = [SimpleNamespace(call=call, tensors=call.tensors)]
    return op_of_reference(SimpleNamespace(reference=reference), samples)  # type: ignore[arg-type]


def test_the_op_of_a_reference_does_all_for_a_kernel_that_passes_its_arguments_on() -> None:
    shape = (2, 3, 4, 8)
    op, observer = op_of(references.attention, shape, shape, shape), Observer(None)
    assert op.name == "aten::scaled_dot_product_attention"
    given = [torch.rand(shape) for _ in range(3)]

    def moved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q.contiguous(), k, v).clone()

    def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q * 2.0, k, v, scale=0.5**2.5)

    for kernel, does_all in ((moved, True), (scaled, False), (right.attention, False)):
        observer.observed(lambda: kernel(*given))  # noqa: B023
        assert op.does_all(observer.calls) is does_all


def test_a_reference_of_several_ops_has_no_op_of_its_own() -> None:
    assert op_of(references.swiglu, (3, 4), (3, 4)) is None
    assert op_of(torch.t, (3, 4)) is None  # it computes nothing


@pytest.mark.slow
def test_a_kernel_that_adds_work_to_the_op_of_its_reference_has_a_note() -> None:
    found = judge(right.row_sum, reference=references.row_sum, samples=references.single)
    assert found.right
    (note,) = found.notes
    assert note.startswith("the kernel calls aten::sum, the only op of its reference, in ")
