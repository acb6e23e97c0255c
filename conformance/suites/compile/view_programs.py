"""Compiled programs with views, unusual strides, aliases and mutation."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import compare
from devices.failure import Kind

cases = Cases(Kind.STRIDES)


@cases("compile.programs", more=True)
def as_strided_of_channels_last(context: CaseContext) -> None:
    """as_strided reads an intermediate result in channels_last. The compiled intermediate result must have the
    strides of the eager one, so that as_strided reads the same elements."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x + 1, (2, 4, 6, 5), (120, 1, 20, 4)) * 2

    compare(context, program, lambda new: (new(2, 4, 6, 5, layout="channels_last"),))


@cases("compile.programs", more=True)
def size_one_dimensions(context: CaseContext) -> None:
    """Views with dimensions of size 1 have the strides of eager execution, also in these dimensions."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            (x + 1).view(-1, 1, 2),
            (y * 2).unsqueeze(1),
            (x + 1).t().unsqueeze(0),
            y.sum(0, True),
        )

    compare(context, program, lambda new: (new(3, 2), new(1, 4)), size_one=True)


@cases("compile.programs", more=True)
def odd_strides_of_size_one(context: CaseContext) -> None:
    """Inputs have a dimension of size 1 with a stride that no memory format gives it. Each compiled call must leave
    the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.contiguous().view(-1), (x + y).sum(2), x.reshape(4, 5) @ y.reshape(5, 4)

    compare(
        context,
        program,
        lambda new: (
            new(4, 5).as_strided((4, 1, 5), (5, 77, 1)),
            new(4, 5).as_strided((4, 1, 5), (5, 1, 1)),
        ),
    )


@cases("compile.programs", more=True)
def strided_view_of_an_activation(context: CaseContext) -> None:
    """An in-place op on a strided view changes the base tensor, which requires gradients. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        y = x * 2
        z = y[0::2]
        z.add_(1)
        z.mul_(3)
        return y, z

    compare(context, program, lambda new: (new(8, 3, grad=True),))


@cases("compile.programs", more=True)
def mutated_view_argument(context: CaseContext) -> None:
    """The argument of the program is a strided view, which the program changes in place. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    compare(context, program, lambda new: (new(8, 3)[0::2],))


@cases("compile.programs", more=True)
def mutated_view_of_an_activation(context: CaseContext) -> None:
    """The argument of the program is a strided view of a tensor that was computed from a leaf, and the program changes the
    view in place. Each compiled call must leave the same outputs, base and gradients of the leaf as the eager call."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x.mul_(3)
        return x * 2

    compare(
        context,
        program,
        lambda new: ((new(8, 3, grad=True) * 2)[0::2],),
        lambda new: ((new(8, 6, grad=True) * 2)[:, 1::2].t(),),
    )


@cases("compile.programs", more=True)
def scattered_gradients(context: CaseContext) -> None:
    """diagonal_scatter, slice_scatter, select_scatter and as_strided_scatter, with the gradients of both operands.
    Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, line: torch.Tensor, block: torch.Tensor) -> Any:
        return (
            x.diagonal_scatter(line),
            x.slice_scatter(block, 1, 1, 4),
            x.select_scatter(line, 0, 2),
            x.as_strided_scatter(line, (8,), (2,), 3),
        )

    compare(
        context,
        program,
        lambda new: (new(8, 8, grad=True), new(8, grad=True), new(8, 3, grad=True)),
    )


@cases("compile.programs", more=True)
def overlapping_reads_of_foreach(context: CaseContext) -> None:
    """Foreach ops read views of tensors and add these views, in another order, to the same tensors. Each compiled
    call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        torch._foreach_add_([x, y], [x.flip(0), y.flip(1)])
        return torch._foreach_mul([x, y], 2.0)

    compare(context, program, lambda new: (new(64), new(9, 9)))


@cases("compile.programs", more=True)
def overlapping_inputs(context: CaseContext) -> None:
    """Two inputs are overlapping views of the same memory, and one of them is changed in place. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        return a + b, b * 2

    def make(new: Any) -> Any:
        whole = new(10)
        return whole[:8], whole[2:]

    compare(context, program, make)


@cases("compile.programs", more=True)
def input_given_twice(context: CaseContext) -> None:
    """The same tensor is passed as both arguments, and changed in place through the first one. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.mul_(3)
        return a + b, b

    def twice(new: Any) -> Any:
        x = new(5, 4)
        return x, x

    compare(context, program, twice, lambda new: (new(5, 4), new(5, 4)))


@cases("compile.programs", more=True)
def input_with_new_data(context: CaseContext) -> None:
    """The program gives an input the memory of another input by assigning to ``data``. Each compiled call must leave the
    same inputs as the eager call, and the same of them must share memory."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.data = y
        return x + 1, y * 3

    compare(context, program, lambda new: (new(4, 5), new(4, 5)))


@cases("compile.programs", more=True)
def written_activations(context: CaseContext) -> None:
    """The program writes in place to inputs that earlier ops computed from leaves, and to a strided view of one. Each
    compiled call must leave the same inputs as the eager call, and the gradients must reach the leaves through the writes."""

    def program(leaf: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(3).add_(leaf)
        y[:, ::2].add_(x[:, ::2])
        return x.sum(0), y * 2

    def make(new: Any) -> Any:
        leaf = new(4, 5, grad=True)
        return leaf, leaf * 2, leaf.t().sin().t()

    compare(context, program, make)


@cases("compile.programs", more=True)
def added_rows_of_a_permuted_view(context: CaseContext) -> None:
    """index_add_, index_copy_ and index_fill_ change a permuted view of an input. Each compiled call must leave the
    same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> Any:
        view = x.permute(1, 0, 2)
        view.index_add_(0, index, rows, alpha=2)
        view.index_copy_(1, index[:2] % 3, rows[:, :2])
        x.index_fill_(2, index[2:3] % 5, 7.0)
        return view

    compare(
        context,
        program,
        lambda new: (new(3, 4, 5), new.of(torch.tensor([3, 1, 0, 2])), new(4, 3, 5)),
    )


@cases("compile.programs", more=True)
def added_rows_of_an_expanded_view(context: CaseContext) -> None:
    """index_add, index_copy and index_fill of an expanded tensor, whose rows share memory, change one row each in the
    result. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> Any:
        whole = x.expand(6, 5)
        return (
            whole.index_add(0, index, rows),
            whole.index_copy(0, index, rows),
            whole.index_fill(0, index, 7.0),
        )

    compare(
        context,
        program,
        lambda new: (new(1, 5, grad=True), new.of(torch.tensor([4, 1, 2])), new(3, 5, grad=True)),
    )


@cases("compile.programs", more=True)
def reads_of_shifted_slices_by_foreach(context: CaseContext) -> None:
    """Foreach ops read slices that overlap in memory, and write their sums to the tensors that the slices are taken
    from. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        sums = torch._foreach_add([x[1:], y[:, 2:]], [x[:-1], y[:, :-2]])
        torch._foreach_copy_([x[:-1], y[:, 1:-1]], sums)
        return torch._foreach_mul([x, y], [2.0, 3.0])

    compare(context, program, lambda new: (new(65), new(9, 11, layout="transposed")))


@cases("compile.programs", more=True)
def chain_of_views(context: CaseContext) -> None:
    """In-place ops change views of views of a new tensor, and the program returns the new tensor. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        base = x.clone()
        view = base.view(4, 3, 2).permute(2, 0, 1)[1].narrow(0, 1, 2)
        view.copy_(view.flip(0) + 1)
        base.as_strided((3, 2), (6, 2), 5).neg_()
        return base, view

    compare(context, program, lambda new: (new(24),))


@cases("compile.programs", more=True)
def conjugate_and_negative_views(context: CaseContext) -> None:
    """Complex tensors with the lazy conjugate bit, their real and imaginary parts, and products of these. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.conj(), x.conj() @ y, x.conj().imag * 2, torch.view_as_real(y), y.mH.abs()

    compare(
        context,
        program,
        lambda new: (
            new(3, 4, dtype=torch.complex64),
            new(4, 5, dtype=torch.complex64, layout="transposed"),
        ),
        atol=1e-4,
    )


@cases("compile.programs", more=True)
def strided_tangents(context: CaseContext) -> None:
    """The gradients that backward receives are transposed, although the outputs are contiguous. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = torch.tanh(x @ weight)
        return y, (y * 2).sum(0)

    compare(
        context,
        program,
        lambda new: (new(6, 5, grad=True), new(5, 7, grad=True)),
        tangents="contiguous+step_inner",
    )


@cases("compile.programs", more=True)
def gradients_of_expanded_inputs(context: CaseContext) -> None:
    """Operands are expanded inside of the program; their gradients are summed to the shapes of the operands. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, row: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return (x * row + number.expand(6, 5)).exp()

    compare(
        context,
        program,
        lambda new: (new(6, 5, layout="transposed", grad=True), new(5, grad=True), new(grad=True)),
    )


@cases("compile.programs", more=True)
def empty_tensors(context: CaseContext) -> None:
    """Tensors without elements are concatenated, reduced, multiplied and returned. Each compiled call must leave the
    same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, y]), x.sum(0), x @ y.t(), x.view(4, 0), x.prod()

    compare(context, program, lambda new: (new(0, 4), new(3, 4)))
