"""Compiled programs that are compiled again, or take another path, when the context or the inputs of a call change:
sizes, layouts, Python values, autocast and gradient modes, exceptions, several device indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.compile.comparing import compare
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Make = Callable[[Any], Any]


def _one(*shape: int, **options: Any) -> Make:
    """Returns a function that takes an ``Inputs`` and creates the only input of a call, a tensor of the given shape.
    The options are those of ``Inputs``."""
    return lambda new: (new(*shape, **options),)


@cases("compile.programs", more=True)
def branch_on_a_size(context: CaseContext) -> None:
    """A program branches on the size of its input. Called with another size, the compiled program must take the
    other branch, as eager execution does."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.cos() if x.size() != (5, 1, 2, 3) else x.sin()

    compare(context, program, _one(5, 1, 2, 3), _one(5, 1, 2, 4), _one(5, 1, 2, 3), dynamic=True)


@cases("compile.programs", more=True)
def other_layouts(context: CaseContext) -> None:
    """The program is called again with operands of the same size in other layouts. Each compiled call must leave the
    same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return x * 2 + 1, x.sum(1), x.view_as(x).exp()

    layouts = (
        "contiguous",
        "transposed",
        "contiguous+step_inner",
        "transposed+step_outer",
        "contiguous",
    )
    compare(context, program, *(_one(6, 8, layout=each) for each in layouts))


@cases("compile.programs", more=True)
def other_offsets(context: CaseContext) -> None:
    """The program is called with views at several storage offsets; one of them is not aligned for vector loads. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return x.sin() + x, x[1:]

    def at(offset: int) -> Make:
        return lambda new: (new(70)[offset : offset + 64],)

    compare(context, program, at(0), at(4), at(1), at(0), graphs=3)


@cases("compile.programs", more=True)
def other_dtypes(context: CaseContext) -> None:
    """The program is called with inputs of float32, float64, int32 and bool in turn. Each compiled call must leave
    the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return x + 1, x.sum(), x.to(torch.float32).mean(0)

    kinds = (torch.float32, torch.float64, torch.int32, torch.bool)
    compare(context, program, *(_one(5, 6, dtype=each) for each in kinds))


@cases("compile.programs", more=True)
def other_arguments(context: CaseContext) -> None:
    """The program is called with different Python numbers, flags and lists, some of which become symbols of the
    graph. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, number: Any, flag: bool, dims: list[int]) -> Any:
        y = x * number if flag else x - number
        return y.sum(dims)

    arguments = (
        (2, True, [0]),
        (3, True, [0]),
        (2.5, True, [0]),
        (2.5, False, [0, 1]),
        (-1, False, [1]),
    )
    compare(context, program, *(_given(each) for each in arguments))


def _given(arguments: tuple[Any, ...]) -> Make:
    return lambda new: (new(4, 5), *arguments)


@cases("compile.programs", more=True)
def gradients_on_and_off(context: CaseContext) -> None:
    """The program is called with inputs that require gradients and with inputs that do not. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * y).tanh(), x.detach() * 2

    compare(
        context,
        program,
        *(
            _with_gradients(*each)
            for each in ((True, False), (False, False), (False, True), (True, True))
        ),
    )


def _with_gradients(first: bool, second: bool) -> Make:
    return lambda new: (new(4, 5, grad=first), new(4, 5, grad=second))


@cases("compile.programs", more=True)
def dynamic_sizes(context: CaseContext) -> None:
    """Matrix products, reshapes, a softmax and a scatter that reduces, with sizes that change from call to call, need one
    or two graphs."""

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        y = (x @ weight).view(x.shape[0], 2, -1).transpose(1, 2)
        rows = torch.arange(x.shape[0], device=x.device)
        pairs = x.new_zeros(x.shape[0]).scatter_reduce(0, rows // 2, x[:, 0], "sum")
        return y.softmax(1), y.reshape(-1), rows * x.shape[1], pairs

    def sized(rows: int, columns: int) -> Make:
        return lambda new: (new(rows, columns, grad=True), new(columns, 6, grad=True))

    sizes = ((3, 4), (9, 5), (65, 17), (2, 2))
    compare(context, program, *(sized(*each) for each in sizes), dynamic=True, atol=1e-4, graphs=2)


@cases("compile.programs", more=True)
def sizes_that_become_dynamic(context: CaseContext) -> None:
    """Sizes that were not declared dynamic change. After the second graph, no further size needs another graph."""

    def program(x: torch.Tensor) -> Any:
        return x.cumsum(0) + x.shape[0], x.flip(0)[: x.shape[0] // 2]

    compare(context, program, *(_one(rows, 3) for rows in (4, 6, 11, 32, 7)), graphs=2)


@cases("compile.programs", requires={"autocast"}, more=True)
def autocast_inside(context: CaseContext) -> None:
    """The program contains autocast regions, one of them disabled inside of another, and computes gradients. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""
    kind = context.kind

    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        with torch.autocast(kind, torch.bfloat16):
            y = x @ weight
            with torch.autocast(kind, enabled=False):
                z = x @ weight
            s = y.softmax(1)
        return y, z, s

    compare(
        context,
        program,
        lambda new: (new(5, 6, grad=True), new(6, 7, grad=True)),
        rtol=3e-2,
        atol=3e-2,
    )


@cases("compile.programs", requires={"autocast"}, more=True)
def called_under_autocast(context: CaseContext) -> None:
    """A program is called alternately with and without an autocast region around the call. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""
    kind = context.kind

    def program(x: torch.Tensor, weight: torch.Tensor, lower: bool) -> torch.Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=lower):
            return functional.linear(x, weight).relu()

    def in_a_region(lower: bool) -> Make:
        return lambda new: (new(5, 6, grad=True), new(7, 6, grad=True), lower)

    compare(context, program, *map(in_a_region, (False, True, False)))


@cases("compile.programs", more=True)
def without_gradients_inside(context: CaseContext) -> None:
    """no_grad, enable_grad and inference_mode inside of the program decide which outputs require gradients."""

    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
            with torch.enable_grad():
                z = x.exp() * y
        return y, z, (x * 3).detach(), z.sum()

    compare(context, program, _one(4, 5, grad=True), _one(4, 5))


class _Doubled(torch.autograd.Function):
    """An autograd function that doubles its input. Its backward triples the gradient, which shows that this backward
    ran."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 + x


@cases("compile.programs", more=True)
def function_with_its_own_backward(context: CaseContext) -> None:
    """A torch.autograd.Function inside of a compiled program uses its own backward and the tensors that it saved.
    Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        made: Any = _Doubled.apply
        return made(x.sin()).cos()

    compare(context, program, _one(5, 6, layout="transposed", grad=True))


@cases("compile.programs", more=True)
def index_out_of_range(context: CaseContext) -> None:
    """Indices that are out of range raise an exception in compiled code as in eager execution, also if a pointwise op
    computes them, and negative ones where they do not count from the end: in scatter_reduce."""
    if context.has("device_assert") and context.descriptor.assertions_are_fatal:
        raise NotDeclared("a failed assertion on the device ends the process")

    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index + 1] * 2

    def indices(*values: int) -> Make:
        return lambda new: (new(6, 3), new.of(torch.tensor(values)))

    compare(
        context,
        program,
        indices(0, 4),
        indices(0, 5),
        indices(-8, 1),
        indices(-7, -2),
        may_raise=True,
    )

    def reduced(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, index, x * 2, "sum")

    def targets(*values: int) -> Make:
        return lambda new: (new(4), new.of(torch.tensor(values)))

    compare(context, reduced, targets(0, 3, 3), targets(0, -1, 2), targets(4, 1, 0), may_raise=True)


@dataclass(frozen=True)
class _Pair:
    left: torch.Tensor
    right: list[torch.Tensor]


@cases("compile.programs", more=True)
def nested_results(context: CaseContext) -> None:
    """The program's result nests dicts, lists, tuples, numbers and None. Each compiled call must leave the same
    outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, state: dict[str, Any]) -> Any:
        state["calls"] = state["calls"] + 1
        pair = _Pair(x + 1, [x * 2])
        return {"a": [pair.left, pair.right], "b": (None, 3, state["calls"]), "c": x.shape[0]}

    compare(context, program, lambda new: (new(4, 5), {"calls": 0, "w": new(3)}))


@cases("compile.programs", more=True)
def loops_and_closures(context: CaseContext) -> None:
    """The program uses loops, comprehensions, closures over tensors, default arguments and keyword arguments. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""
    shift = context.to_device(torch.arange(5.0))

    def program(x: torch.Tensor, *, times: int = 3) -> Any:
        found = []
        for number in range(times):
            x = x + shift * number
            found.append(x.clamp(max=3))
        return sum(found), dict(zip("abc", found))

    compare(context, program, _one(2, 5))


@cases("compile.programs", more=True)
def write_to_a_given_tensor(context: CaseContext) -> None:
    """Several ops write with out= into inputs that are views with a storage offset. Each compiled call must leave
    the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, sums: torch.Tensor) -> Any:
        torch.add(x, y, alpha=2, out=out)
        torch.sum(x * y, 1, out=sums)
        return out

    compare(
        context,
        program,
        lambda new: (
            new(5, 6),
            new(5, 6),
            new(5, 6, layout="contiguous+offset"),
            new(5, layout="contiguous+offset"),
        ),
    )


@cases("compile.programs", requires={"multi_device"}, indices=2, more=True)
def copies_between_indices(context: CaseContext) -> None:
    """A program reads tensors of two device indices, and copies from one index to the other and to the CPU. Outputs
    and their devices must be those of eager execution."""
    other = context.at(1)

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x.to(other) * 2 + y
        return z, z.to(x.device) + x, (x * 3).cpu()

    compare(context, program, lambda new: (new(4, 5), new(4, 5).to(other)))


@cases("compile.programs", more=True)
def graph_break(context: CaseContext) -> None:
    """A program with a graph break in the middle is compiled to two graphs. Values that are used on both sides of the
    break are right."""

    def program(x: torch.Tensor) -> Any:
        y = x.sin().t()
        torch._dynamo.graph_break()
        y.mul_(2)
        return y, x + y.t()

    compare(context, program, _one(5, 6, grad=True), fullgraph=False)
