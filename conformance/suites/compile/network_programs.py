"""Compiled programs that use layers of neural networks, and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import compare
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: For sums of some hundred products, in forward and backward.
CLOSE: Any = {"rtol": 1e-4, "atol": 1e-4}


@cases("compile.programs", more=True)
def resized_image(context: CaseContext) -> None:
    """An image is enlarged bilinearly, cropped, convolved and pooled, and masked with torch.where. Each compiled
    call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = functional.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear")[..., 1:, :-1]
        y = functional.max_pool2d(functional.conv2d(y, weight), 2)
        return torch.where(y > 0, y, y * 0.1)

    compare(
        context,
        program,
        lambda new: (new(2, 3, 8, 8, grad=True), new(4, 3, 3, 3, grad=True)),
        **CLOSE,
    )


@cases("compile.programs", more=True)
def transposed_convolution(context: CaseContext) -> None:
    """A transposed convolution with stride and groups is followed by a group norm, in channels_last. Each compiled
    call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = functional.conv_transpose2d(x, weight, stride=2, groups=2)
        return functional.group_norm(y, 2, scale).sigmoid()

    compare(
        context,
        program,
        lambda new: (
            new(2, 4, 5, 4, layout="channels_last", grad=True),
            new(4, 3, 3, 3, grad=True),
            new(6, grad=True),
        ),
        **CLOSE,
    )


@cases("compile.programs", more=True)
def convolution_of_a_line(context: CaseContext) -> None:
    """A one-dimensional convolution with dilation and padding reads a permuted input; max pooling with indices
    follows. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        y = functional.conv1d(x.permute(0, 2, 1), weight, bias, padding=2, dilation=2)
        return functional.max_pool1d(y, 3, return_indices=True)

    compare(
        context,
        program,
        lambda new: (new(2, 9, 3, grad=True), new(5, 3, 3, grad=True), new(5, grad=True)),
        **CLOSE,
    )


@cases("compile.programs", more=True)
def long_root_mean_square_norm(context: CaseContext) -> None:
    """A root-mean-square norm over 2,048 elements of one vector. Each compiled call must leave the same outputs,
    inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (2048,), weight, 1e-6)

    compare(context, program, lambda new: (new(2048, grad=True), new(2048, grad=True)), **CLOSE)


@cases("compile.programs", more=True)
def normalised_einsum(context: CaseContext) -> None:
    """An exponential is divided by its sum, which torch.einsum computes. Each compiled call must leave the same
    outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(torch.einsum("bchw,bcwk->bchk", x, x) * 0.1)
        return y / torch.einsum("bchw->bch", y).unsqueeze(-1)

    compare(context, program, lambda new: (new.of(torch.ones(5, 1, 32, 32), grad=True),), **CLOSE)


@cases("compile.programs", more=True)
def embedding_and_loss(context: CaseContext) -> None:
    """An embedding with a padding index, an output projection that shares the embedding's weight, and a cross
    entropy that ignores a class. Each compiled call must leave the same outputs, inputs and gradients as the eager
    call."""

    def program(tokens: torch.Tensor, table: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = functional.embedding(tokens, table, padding_idx=0)
        logits = y @ table.t()
        return functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=2, label_smoothing=0.1
        )

    compare(
        context,
        program,
        lambda new: (new.index(3, 4, below=7), new(7, 5, grad=True), new.index(3, 4, below=7)),
        **CLOSE,
    )


def _sine_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.tanh(functional.linear(x, weight, bias)).sin()


class _Blocks(nn.Module):
    """Two residual blocks, the second of which is recomputed in backward, and a head that uses the first block's
    weight."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = x + torch.tanh(self.first(x))
        # The parameters are arguments: in eager execution, functional_call has ended when they are read again.
        second = self.second.weight, self.second.bias
        x = x + checkpoint(_sine_layer, x, *second, use_reentrant=False)
        return x @ self.first.weight.t()


@cases("compile.programs", more=True)
def recomputed_block(context: CaseContext) -> None:
    """A module counts its calls in a buffer, recomputes an activation in backward, and uses one weight twice. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        made: torch.Tensor = torch.func.functional_call(module, state, (x,))
        return made

    module = _Blocks().to(context.device)

    def make(new: Any) -> Any:
        state = {
            "first.weight": new(6, 6, grad=True),
            "first.bias": new(6, grad=True),
            "second.weight": new(6, 6, grad=True),
            "second.bias": new(6, grad=True),
            "calls": new.of(torch.tensor(3)),
        }
        return new(4, 6, grad=True), state

    compare(context, program, make, **CLOSE)


@cases("compile.programs", more=True)
def training_step(context: CaseContext) -> None:
    """A step of stochastic gradient descent with momentum runs inside of a compiled program and changes the
    parameters in place. A graph break at torch.autograd.grad is allowed. Each compiled call must leave the same
    outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
        loss = (torch.tanh(x @ weight) - 1).square().mean()
        (grad,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            momentum.mul_(0.9).add_(grad)
            weight.sub_(momentum, alpha=0.1)
        return loss.detach()

    compare(
        context,
        program,
        lambda new: (new(6, 4), new(4, 3, grad=True), new(4, 3, layout="transposed")),
        fullgraph=False,
        **CLOSE,
    )


@cases("compile.programs", more=True)
def optimiser_step(context: CaseContext) -> None:
    """A step of Adam, written with foreach ops, changes parameters of several shapes and layouts in place. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(parameters: Any, gradients: Any, means: Any, squares: Any) -> None:
        torch._foreach_lerp_(means, gradients, 0.1)
        torch._foreach_mul_(squares, 0.99)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.01)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, 1e-6)
        torch._foreach_addcdiv_(parameters, means, roots, -0.1)

    def make(new: Any) -> Any:
        def of_each(layout: str) -> list[torch.Tensor]:
            return [new(5, 4, layout=layout), new(7), new(2, 3, 4, layout=layout), new(1)]

        squares = [each.square() for each in of_each("contiguous")]
        return (
            of_each("transposed"),
            of_each("contiguous"),
            of_each("contiguous+step_inner"),
            squares,
        )

    compare(context, program, make, **CLOSE)


@cases("compile.programs", more=True)
def padded_sequence_lengths(context: CaseContext) -> None:
    """The lengths of sequences are computed as sums of a mask of 16,384 elements, and a zero is put in front of the
    lengths. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(mask: torch.Tensor) -> Any:
        lengths = mask.sum(-1, dtype=torch.int32)
        return functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0)), mask.cumsum(1)[
            :, -1
        ]

    compare(context, program, lambda new: (new(3, 16384, dtype=torch.bool),))
