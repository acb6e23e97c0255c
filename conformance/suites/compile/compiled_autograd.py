"""Checks of compiled autograd: a backward pass that is traced and compiled must give the gradients of the eager
backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conformance.checks.behaviour.compiler import compiled_backward, compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import Inputs, backend_of
from devices.failure import Kind

cases = Cases(Kind.VALUES)

CLAUSE = "compile.autograd"
#: The compiler may fuse and reorder sums of some dozen products.
RTOL, ATOL = 1e-4, 1e-5

#: A step takes leaves, runs a forward pass and calls ``backward`` on a loss. It returns what else is to be compared.
Step = Callable[[list[torch.Tensor]], Any]


def _leaves(context: CaseContext) -> list[torch.Tensor]:
    new = Inputs(context)
    return [
        new(6, 5, grad=True),
        new(5, 4, layout="transposed", grad=True),
        new(4, grad=True),
        new(4, 4, layout="contiguous+step_inner", grad=True),
    ]


def _network(leaves: list[torch.Tensor]) -> torch.Tensor:
    x, weight, bias, second = leaves
    y = torch.tanh(x @ weight + bias)
    made: torch.Tensor = functional.layer_norm(y @ second, (4,)) * y
    return made


def _beside_eager(context: CaseContext, step: Step, *, compiles: int = 1) -> None:
    """Runs ``step`` with an eager and with a compiled backward pass on equal leaves. Checks that the gradients,
    their strides, and the value that ``step`` returns are equal. ``compiles`` is the number of compiled backward
    passes that there must be at least."""
    eager, made = _leaves(context), _leaves(context)
    want = step(eager)
    with compiling(backend_of(context)) as compiler, compiled_backward(compiler):
        found = step(made)
        context.settle()
        count = compiler.backward_passes
    text = "the backward pass was not compiled"
    context.check(count >= compiles, text, expected=compiles, found=count, kind=Kind.COUNT)
    _same_gradients(context, made, eager)
    context.same(
        found,
        want,
        ("the value that the step returns differs between a compiled and an eager backward pass"),
    )


def _same_gradients(
    context: CaseContext, found: list[torch.Tensor], want: list[torch.Tensor]
) -> None:
    for number, (mine, theirs) in enumerate(zip(found, want)):
        at = f"leaf {number}"
        text = "a leaf has a gradient only after one of the compiled and the eager backward pass"
        context.same(mine.grad is None, theirs.grad is None, text, Kind.COUNT, at)
        if mine.grad is None or theirs.grad is None:
            continue
        text = "a gradient differs from that of the eager backward pass"
        context.assert_close(mine.grad, theirs.grad, text, at, rtol=RTOL, atol=ATOL)
        text = "the strides of a gradient differ from those after the eager backward pass"
        context.same(mine.grad.stride(), theirs.grad.stride(), text, Kind.STRIDES, at)


def _once(leaves: list[torch.Tensor]) -> None:
    _network(leaves).square().sum().backward()


def _twice(leaves: list[torch.Tensor]) -> None:
    _once(leaves)
    _network([each * 2 for each in leaves]).sum().backward()


def _into_strided_gradients(leaves: list[torch.Tensor]) -> list[bool]:
    """Runs compiled backward on leaves that already have gradients with special strides. Returns, for each leaf,
    whether ``grad`` is still the same tensor object as before."""
    for each in leaves:
        each.grad = torch.ones_like(each)
    held = [each.grad for each in leaves]
    _once(leaves)
    return [each.grad is before for each, before in zip(leaves, held)]


def _retained(leaves: list[torch.Tensor]) -> None:
    loss = _network(leaves).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def _of_some(leaves: list[torch.Tensor]) -> list[bool]:
    loss = _network(leaves).square().sum()
    found = torch.autograd.grad(loss, [leaves[1], leaves[2]])
    for leaf, gradient in zip(leaves[1:3], found):
        leaf.grad = gradient
    return [each.requires_grad for each in found]


class _Saved(torch.autograd.Function):
    """An autograd function that multiplies by a saved tensor. Its backward returns the right gradient plus 1, so
    that the gradient shows that this backward ran."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.sin())
        return x.cos()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (saved,) = ctx.saved_tensors
        return -grad * saved + 1


def _with_a_function(leaves: list[torch.Tensor]) -> None:
    apply: Any = _Saved.apply
    apply(_network(leaves)).sum().backward()


def _with_checkpoint(leaves: list[torch.Tensor]) -> None:
    made: Any = checkpoint(lambda *given: _network(list(given)), *leaves, use_reentrant=False)
    made.square().sum().backward()


def _into_a_view(leaves: list[torch.Tensor]) -> None:
    y = leaves[0] * 2
    y[::2].mul_(leaves[2].sum())
    y.t()[1] += leaves[1][1].sum()
    _network([y, *leaves[1:]]).sum().backward()


_STEPS: dict[str, Step] = {
    "once": _once,
    "twice": _twice,
    "into_strided_gradients": _into_strided_gradients,
    "retained_graph": _retained,
    "gradients_of_some_leaves": _of_some,
    "saved_by_a_function": _with_a_function,
    "checkpoint": _with_checkpoint,
    "written_views": _into_a_view,
}


@cases(CLAUSE, over={"once": ("once", "_once")})
@cases(
    CLAUSE,
    over={name: (name, each.__name__) for name, each in _STEPS.items() if name != "once"},
    more=True,
)
def step(context: CaseContext, name: str, function: str) -> None:
    """A compiled backward pass must give the gradients and strides of the eager one: after one call, accumulated
    over calls, through retained graphs, custom functions, checkpoints, and views that are written in place."""
    _beside_eager(
        context, globals()[function], compiles=2 if name in ("twice", "retained_graph") else 1
    )


@cases(CLAUSE, more=True)
def hooks(context: CaseContext) -> None:
    """Hooks of tensors, of nodes and of gradient accumulation must run in the same order as in the eager backward
    pass, and change the gradients in the same way."""

    def with_hooks(leaves: list[torch.Tensor]) -> list[str]:
        told: list[str] = []

        def note(name: str, factor: float | None = None) -> Callable[..., Any]:
            def hook(*given: Any) -> Any:
                told.append(name)
                return None if factor is None else given[0] * factor

            return hook

        y = _network(leaves)
        y.register_hook(note("result", 2.0))
        node: Any = y.grad_fn
        node.register_prehook(lambda grads: told.append("before the last node"))
        node.register_hook(lambda *given: told.append("after the last node"))
        for number, each in enumerate(leaves):
            each.register_hook(note(f"leaf {number}", 0.5))
            each.register_post_accumulate_grad_hook(note(f"accumulated {number}"))
        y.sum().backward()
        return told

    _beside_eager(context, with_hooks)


@cases(CLAUSE, more=True)
def hooks_of_all_nodes(context: CaseContext) -> None:
    """Hooks before and after each node of a graph, also after the nodes that accumulate gradients in leaves, must run in
    the same order as in the eager backward pass, and change the gradients in the same way."""

    def with_hooks(leaves: list[torch.Tensor]) -> list[str]:
        told: list[str] = []

        def note(name: str, factor: float | None = None) -> Callable[..., Any]:
            def hook(*given: Any) -> Any:
                told.append(name)
                if factor is None:
                    return None
                return tuple(None if each is None else each * factor for each in given[0])

            return hook

        y = _network(leaves)
        for number, node in enumerate(_nodes(y)):
            node.register_prehook(note(f"before node {number}", 2.0))
            node.register_hook(note(f"after node {number}"))
        for number, each in enumerate(leaves):
            each.register_post_accumulate_grad_hook(note(f"accumulated {number}"))
        y.sum().backward()
        return told

    _beside_eager(context, with_hooks)


def _nodes(tensor: torch.Tensor) -> list[Any]:
    """Returns the nodes of a tensor's graph; those nearer to the tensor come first."""
    found: list[Any] = [tensor.grad_fn]
    for node in found:
        found += [each for each, _ in node.next_functions if each is not None and each not in found]
    return found


@cases(CLAUSE, more=True)
def scaled_when_accumulated(context: CaseContext) -> None:
    """A hook that runs after a gradient was accumulated changes the gradient and the parameter, as optimisers that
    step during backward do. The results must equal those of an eager backward pass."""

    def stepping(leaves: list[torch.Tensor]) -> None:
        def update(leaf: torch.Tensor) -> None:
            assert leaf.grad is not None
            with torch.no_grad():
                leaf.sub_(leaf.grad, alpha=0.1)
                leaf.grad.mul_(3)

        for each in leaves:
            each.register_post_accumulate_grad_hook(update)
        _once(leaves)

    _beside_eager(context, stepping)


@cases(CLAUSE, more=True)
def compiled_forward(context: CaseContext) -> None:
    """Both the forward and the backward pass are compiled; the gradients equal those of eager execution."""
    eager, made = _leaves(context), _leaves(context)
    _once(eager)
    with compiling(backend_of(context)) as compiler, compiled_backward(compiler):
        network = compiler(lambda *leaves: _network(list(leaves)))
        network(*made).square().sum().backward()
        context.settle()
        text = "the backward pass was not compiled"
        context.check(compiler.backward_passes, text, kind=Kind.COUNT)
    _same_gradients(context, made, eager)


@cases(CLAUSE, more=True)
def other_sizes(context: CaseContext) -> None:
    """Backward passes for several batch sizes give the right gradients, even if one compiled graph serves all sizes."""
    new_eager, new_made = Inputs(context), Inputs(context)
    with compiling(backend_of(context)) as compiler, compiled_backward(compiler):
        for rows in (6, 3, 1, 9):
            made = _sized(new_made, rows)
            _once(made)
            with compiler.switched_off():
                eager = _sized(new_eager, rows)
                _once(eager)
            _same_gradients(context, made, eager)
        context.check(
            compiler.backward_passes, "the backward pass was not compiled", kind=Kind.COUNT
        )


def _sized(new: Inputs, rows: int) -> list[torch.Tensor]:
    return [new(rows, 5, grad=True), new(5, 4, grad=True), new(4, grad=True), new(4, 4, grad=True)]


@cases(CLAUSE, more=True)
def higher_order(context: CaseContext) -> None:
    """Gradients that are computed with create_graph=True can be differentiated again, or the call raises an error that
    mentions create_graph."""
    eager, made = _leaves(context), _leaves(context)

    def penalised(leaves: list[torch.Tensor]) -> None:
        (grad,) = torch.autograd.grad(
            _network(leaves).square().sum(), leaves[:1], create_graph=True
        )
        grad.square().sum().backward()

    penalised(eager)
    with compiling(backend_of(context)) as compiler, compiled_backward(compiler):
        try:
            penalised(made)
        except RuntimeError as error:
            text = "the error raised for create_graph=True does not mention create_graph"
            context.check("create_graph" in str(error), text, found=error, kind=Kind.RAISED)
            return
    _same_gradients(context, made, eager)


class _NotZero(torch.autograd.Function):
    """An autograd function that copies its input. Its backward passes on only the gradients of positive inputs, so
    that backward has intermediate sizes that depend on values."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        places = (x > 0).nonzero(as_tuple=True)
        return torch.zeros_like(grad).index_put(places, grad[places])


@cases(CLAUSE, more=True)
def data_dependent_backward(context: CaseContext) -> None:
    """A backward function with intermediate sizes that depend on values gives the right gradient, or raises an error
    that names the op."""
    eager, made = _leaves(context), _leaves(context)

    def masked(leaves: list[torch.Tensor]) -> None:
        apply: Any = _NotZero.apply
        apply(_network(leaves)).sum().backward()

    masked(eager)
    with compiling(backend_of(context)) as compiler, compiled_backward(compiler):
        try:
            masked(made)
        except Exception as error:
            text = "the error raised for a size that depends on values does not name the op"
            context.check("nonzero" in str(error), text, found=error, kind=Kind.RAISED)
            return
    _same_gradients(context, made, eager)
