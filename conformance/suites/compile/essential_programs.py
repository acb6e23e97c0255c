"""The programs that every plan compiles: one for each kind of compiler bug that is common."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import compare
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("compile.programs")
def strided_operands(context: CaseContext) -> None:
    """Pointwise ops read operands that are transposed, have steps, are expanded, or start at a storage offset. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return (a * 2 + b).sin() - c, torch.where(a > b, c, a)

    compare(
        context,
        program,
        lambda new: (
            new(6, 9, layout="transposed+offset", grad=True),
            new(6, 9, layout="contiguous+step_inner+offset", grad=True),
            new(6, 9, layout="contiguous+expand_first"),
        ),
    )


@cases("compile.programs")
def mutated_inputs(context: CaseContext) -> None:
    """In-place ops change inputs, small and large, that are views with gaps, and the program returns some of them.
    Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(a: torch.Tensor, b: torch.Tensor, large: torch.Tensor) -> Any:
        a.mul_(2).add_(b)
        b[1:].zero_()
        large[::2].neg_()
        return a, large

    compare(
        context,
        program,
        lambda new: (
            new(6, 9, layout="contiguous+step_inner+offset"),
            new(6, 9, layout="transposed"),
            new(40, 60, layout="transposed"),
        ),
    )


@cases("compile.programs")
def returned_views(context: CaseContext) -> None:
    """The outputs are views of an input, views of each other, and an input itself. Each compiled call must leave the
    same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        return x.t(), x[1:, 2:], x, y, y.view(-1), y.t()[::2]

    compare(context, program, lambda new: (new(6, 8),))


@cases("compile.programs")
def convolution_and_batch_norm(context: CaseContext) -> None:
    """A convolution of a channels_last image, a batch norm in training that updates its statistics, and a ReLU. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, *running: Any) -> Any:
        y = functional.conv2d(x, weight, padding=1)
        y = functional.batch_norm(y, running[0], running[1], weight=scale, training=True)
        return functional.relu(y)

    compare(
        context,
        program,
        lambda new: (
            new(2, 3, 8, 6, layout="channels_last", grad=True),
            new(4, 3, 3, 3, grad=True),
            new(4, grad=True),
            new.of(torch.zeros(4)),
            new.of(torch.ones(4)),
        ),
        atol=1e-4,
        rtol=1e-4,
    )


@cases("compile.programs")
def attention(context: CaseContext) -> None:
    """Attention in which the heads are a transposed view of the projection. Each compiled call must leave the same
    outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (x @ weight).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(batch, length, width)

    compare(
        context, program, lambda new: (new(2, 5, 8, grad=True), new(8, 24, grad=True)), atol=1e-4
    )


@cases("compile.programs")
def normalised_residual(context: CaseContext) -> None:
    """A layer norm, a GELU, a residual connection and a mean that is broadcast, with their gradients. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        made = x + functional.gelu(functional.layer_norm(x, (16,), weight, bias)) * 0.5
        return made + x.mean(1, keepdim=True)

    compare(
        context,
        program,
        lambda new: (
            new(4, 16, layout="transposed", grad=True),
            new(16, grad=True),
            new(16, grad=True),
        ),
        atol=1e-4,
    )


@cases("compile.programs")
def recurrent_cell(context: CaseContext) -> None:
    """Three steps of an LSTM cell that is written with chunk, sigmoid and tanh. Each compiled call must leave the
    same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> Any:
        cell = torch.zeros_like(hidden)
        for step in x:
            gates = torch.cat([step, hidden], 1) @ weight
            i, f, g, o = gates.chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
        return hidden, cell

    compare(
        context,
        program,
        lambda new: (new(3, 2, 4, grad=True), new(2, 5, grad=True), new(9, 20, grad=True)),
    )


@cases("compile.programs")
def repeated_indices(context: CaseContext) -> None:
    """Rows are gathered, accumulated and overwritten with indices that occur more than once. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> Any:
        total = torch.zeros_like(x).index_put((index,), rows, accumulate=True)
        summed = x.index_add(0, index, rows)
        return x[index] * 2, total, summed, torch.gather(x, 0, index[:, None].expand(-1, 3))

    compare(
        context,
        program,
        lambda new: (
            new(6, 7, layout="transposed", grad=True),
            new.index(9, below=6),
            new(9, 7, grad=True),
        ),
    )


@cases("compile.programs")
def wide_reductions(context: CaseContext) -> None:
    """Sums, maxima, their indices and variances of more than 2,048 elements, along each dimension of a strided
    matrix. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return x.sum(1), x.sum(0), x.amax(1), x.argmin(0), x.var(1), x.mean(), (x > 0).sum(1)

    compare(
        context, program, lambda new: (new(3, 2500, layout="transposed", grad=True),), atol=1e-3
    )


@cases("compile.programs")
def mixed_dtypes(context: CaseContext) -> None:
    """Integers, booleans and floating-point numbers of two widths are promoted, divided and converted. Each compiled
    call must leave the same outputs, inputs and gradients as the eager call."""

    def program(i: torch.Tensor, x: torch.Tensor, half: torch.Tensor, flag: torch.Tensor) -> Any:
        return (
            i / 3,
            (i - 5) // 3,
            (i - 5) % 3,
            i + x,
            half * 2 + flag,
            x.to(torch.int32),
            (x * 100).to(torch.int16),
            flag.sum() + i,
            half.to(torch.float32).exp(),
        )

    compare(
        context,
        program,
        lambda new: (
            new(4, 5, dtype=torch.int64),
            new(4, 5),
            new(4, 5, dtype=torch.bfloat16, layout="transposed"),
            new(4, 5, dtype=torch.bool),
        ),
    )


@cases("compile.programs")
def updated_slices(context: CaseContext) -> None:
    """Slices, diagonals and rows of a new tensor are overwritten in place, and the gradient reaches the values that
    were written. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, row: torch.Tensor) -> Any:
        y = x * 1
        y[1] = row
        y[:, ::2].mul_(3)
        y.diagonal().add_(1)
        y[2:4, 1:3] = y[0:2, 3:5]
        return y, y.flip(0)

    compare(context, program, lambda new: (new(6, 6, grad=True), new(6, grad=True)))


@cases("compile.programs")
def sizes_from_zero(context: CaseContext) -> None:
    """The same program is called with batches of 5, 3, 1, 0 and 7 rows, with dynamic shapes. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return (x * 2).sum(0), torch.cat([x, x.flip(0)]), x.reshape(-1)

    compare(
        context,
        program,
        *(_rows_of(count) for count in (5, 3, 1, 0, 7)),
        dynamic=True,
        graphs=4,
    )


def _rows_of(count: int) -> Any:
    return lambda new: (new(count, 4),)
