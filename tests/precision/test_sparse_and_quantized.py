"""precision.sparse_and_quantized: each operation that is wrong is seen, and the CPU's own operations are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.suites.precision import quantized_products, sparse
from devices import registry
from opinfo.compare import tensors_of
from opinfo.device import open_device

CASES = {each.name: each for each in (*sparse.cases, *quantized_products.cases)}


class Wrong(TorchDispatchMode):
    """Makes one element of each result of an op wrong, if an operand or the result is sparse, or of a quantized product."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.met = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = tensors_of((args, kwargs, result))
        strange = any(each.layout != torch.strided for each in tensors)
        if func._schema.name != f"aten::{self.op}" or not (strange or "_mm" in self.op):
            return result
        self.met = True
        dense = result.clone() if result.layout == torch.strided else result.to_dense()
        dense.view(-1)[-1] += 1
        return dense


def judged(case: BehaviourCase) -> str:
    """Returns the message with which the case fails, or an empty string."""
    try:
        case.check(CaseContext(open_device(registry.get("cpu")), "a test"), *case.arguments)
    except CheckFailed as failed:
        return str(failed)
    return ""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_cpu_passes(case: BehaviourCase) -> None:
    assert judged(case) == ""


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("binary_ops_of_coo", "add"), ("binary_ops_of_coo", "mul"), ("binary_ops_of_coo", "sub"),
        ("binary_ops_of_coo", "div"), ("binary_ops_of_coo", "_coalesce"), ("binary_ops_of_coo", "sum"),
        ("binary_ops_of_csr", "add"), ("binary_ops_of_csr", "mul"), ("binary_ops_of_csr", "sum"),
        ("products_of_coo", "mm"), ("products_of_coo", "addmm"),
        ("products_of_csr", "mm"), ("products_of_csr", "addmm"),
        ("int_mm", "_int_mm"), ("int8pack", "_weight_int8pack_mm"),
        ("int4pack", "_weight_int4pack_mm_for_cpu"), ("scaled_mm_of_e4m3", "_scaled_mm"),
    ],
)  # fmt: skip
def test_an_operation_that_is_wrong_is_seen(name: str, op: str) -> None:
    with Wrong(op) as wrong:
        message = judged(CASES[name])
    assert wrong.met, f"the case calls no aten::{op}"
    assert "differs from the" in message


def test_a_gradient_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args: honest(*args)[::-1])
    assert "gradient of torch.sparse.mm" in judged(CASES["gradients"])
