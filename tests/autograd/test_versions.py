"""Version counters: which writes the clause makes, and which wrong implementations it notices."""

from __future__ import annotations

import pytest
import torch

from conformance.suites.autograd.version_counters import FOREACH, IN_PLACE
from tests.autograd.trying import names, replaced, tried, unbumped

CLAUSE = "autograd.version_counter"

#: In-place methods that the clause does not call, by why.
LEFT_OUT = {
    "it changes the shape, the strides or the memory, and writes no value": (
        "as_strided_ resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_"
    ),
    "it writes nothing": "detach_ requires_grad_ share_memory_",
    "it is for sparse tensors": "resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_",
    "it calls Python for each element of a CPU tensor": "apply_ map_ map2_",
    "it takes float64 only": "float_power_",
    "it takes a number first; its kernel is that of special.polygamma": "polygamma_",
}


@pytest.mark.parametrize("name", names(CLAUSE))
def test_every_case_passes_on_cpu_and_makes_every_write(name: str) -> None:
    made = tried(CLAUSE, name)
    assert made.passes and made.checks > 0, made
    assert list(made.notes) == []


def test_every_in_place_method_is_called_or_left_out_with_a_reason() -> None:
    there = {n for n in dir(torch.Tensor) if n.endswith("_") and not n.startswith("_")}
    called = {name for group in IN_PLACE.values() for name in group}
    left_out = {name for names in LEFT_OUT.values() for name in names.split()}
    assert called & left_out == set()
    assert there - called - left_out == set()


def test_every_in_place_foreach_op_is_called() -> None:
    there = {n for n in dir(torch) if n.startswith("_foreach_") and n.endswith("_")}
    assert there == {f"_foreach_{name}_" for name in FOREACH}


WRONG = {
    "sqrt_": "in_place_unary",
    "logical_xor_": "in_place_binary",
    "clamp_": "in_place_binary",
    "bitwise_and_.Tensor": "in_place_integers",
    "addmm_": "in_place_matrices",
    "index_add_": "in_place_indexed",
    "scatter_.src": "in_place_indexed",
    "masked_fill_.Scalar": "in_place_filled",
    "uniform_": "in_place_random",
    "sin.out": "out_unary",
    "maximum.out": "out_binary",
    "sum.IntList_out": "out_reductions",
    "mm.out": "out_matrices",
    "gather.out": "out_indexed",
    "max.dim_max": "several_outs",
    "topk.values": "several_outs",
    "copy_": "from_the_host",
    "_foreach_mul_.List": "foreach_lists",
    "_foreach_zero_": "foreach_numbers",
    "_foreach_addcdiv_.Scalar": "optimisers_foreach",
    "view": "to_the_base",
    "slice.Tensor": "to_the_base",
    "expand": "to_a_view",
    "as_strided": "strided_to_the_base",
    "detach": "counts",
    "leaky_relu_": "modules",
}  # fmt: skip


@pytest.mark.parametrize("op", WRONG)
def test_an_op_that_counts_no_write_or_no_view_is_noticed(op: str) -> None:
    with replaced(op, unbumped(op)):
        made = tried(CLAUSE, WRONG[op])
    assert made.failure is not None


@pytest.mark.parametrize("read", ["cos", "round", "reciprocal"])
def test_a_function_that_counts_a_write_although_it_makes_none_is_noticed(read: str) -> None:
    def counting(x: torch.Tensor) -> torch.Tensor:
        torch.autograd.graph.increment_version(x)
        return torch.zeros_like(x)

    with replaced(read, counting):
        assert tried(CLAUSE, "reads_unary").failure is not None


def test_writes_that_torch_itself_does_not_count() -> None:
    """Of torch 2.13: when one of these is counted, it belongs into the tables of the clause."""
    parameter, target = torch.ones(3, requires_grad=True), torch.zeros(4, 4)
    mean, var = torch.zeros(4), torch.ones(4)
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], lr=0.1, fused=True).step()
    torch.kron(torch.ones(4, 4), torch.ones(1, 1), out=target)
    torch.nn.functional.batch_norm(torch.randn(3, 4), mean, var, training=True)
    assert [each._version for each in (parameter, target, mean, var)] == [0, 0, 0, 0]
