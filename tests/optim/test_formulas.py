"""A wrong derivative that one of the trained networks uses is noticed by the cell of its op, not by the training alone."""

from __future__ import annotations

import pytest
from torch.nn import functional as F

from conformance import contract
from conformance.checks.ops.context import run_checks
from conformance.suites import planned_op_checks
from conformance.suites.autograd.first_order import FIRST
from conformance.suites.optim import train
from devices.cell import Outcome
from opinfo.catalog import catalogue
from tests.mutation import gradients as mutants
from tests.mutation.items import Subject, device

#: The nodes of the networks' graphs on the simulated device, and the op whose derivative each of them is.
OF_OP = {
    "Add": "add",
    "Addmm": "addmm",
    "Bmm": "bmm",
    "Clone": "clone",
    "Convolution": "nn.functional.conv2d",
    "Embedding": "nn.functional.embedding",
    "Expand": "expand",
    "Gelu": "nn.functional.gelu",
    "LogSoftmax": "log_softmax",
    "Mean": "mean",
    "Mm": "mm",
    "Mul": "mul",
    "NativeBatchNorm": "native_batch_norm",
    "NativeLayerNorm": "native_layer_norm",
    "NllLoss": "nn.functional.nll_loss",
    "Permute": "permute",
    "Relu": "nn.functional.relu",
    "ReshapeAlias": "reshape",
    "SafeSoftmax": "torch.ops.aten._safe_softmax.default",
    "Select": "select",
    "Squeeze": "squeeze",
    "T": "t",
    "Transpose": "transpose",
    "UnsafeView": "reshape",
    "Unsqueeze": "unsqueeze",
    "View": "view",
}


def _formulas(task: train.Task) -> set[str]:
    """The nodes of the graph of a network and its loss, without ``Backward0``."""
    network = train.network_of(task).to("simulated")
    inputs, classes = (each.to("simulated") for each in train.data_of(task)[0])
    loss = F.cross_entropy(network(inputs), classes)
    names: set[str] = set()
    seen: set[object] = set()
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.add(node.name().partition("Backward")[0])
            nodes += [each for each, _ in node.next_functions]
    return names - {"torch::autograd::AccumulateGrad"}


def test_each_formula_of_the_networks_is_that_of_an_op() -> None:
    device()
    found = set().union(*(_formulas(task) for task in train.TASKS.values()))
    assert found == set(OF_OP)


def _outcome(subject: Subject) -> Outcome:
    context = subject.context([FIRST])
    run_checks(context, [c for c in planned_op_checks(contract.load()) if c.clause == FIRST])
    return context.recorder.cells[FIRST].outcome()


#: Every fifth is fast.
OPS = [*enumerate(sorted(set(OF_OP.values())))]


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[pytest.mark.slow] if place % 5 else []) for place, op in OPS]
)
def test_a_wrong_derivative_is_noticed_by_the_cell_of_its_op(op: str) -> None:
    subject = Subject(op, mutants.DTYPE, run=False)
    mutant = mutants.Mutant(catalogue()[op], "always", "off by a thousandth", None)
    assert _outcome(subject) is Outcome.PASS
    with mutants.planted(mutant):
        assert _outcome(subject) is Outcome.FAIL
    assert mutant.reached
