"""Checks of the strides that custom ops receive in code of the compiler that the device brings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from conformance.checks.behaviour.compiler import compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.compile.comparing import Inputs
from devices.failure import Kind

cases = Cases(Kind.STRIDES)

#: The strides of the operands that the custom ops have received, in order.
RECEIVED: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

#: What a program does with an operand before it gives it to the custom op. Eager execution keeps most of these layouts, and a
#: compiler that is free to choose would rather write dense results.
OPERANDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "an input": lambda x: x,
    "a sum": lambda x: x + 1,
    "a transposed sum": lambda x: (x + 1).transpose(1, 2),
    "a stepped sum": lambda x: (x + 1)[..., ::2],
    "a slice of a product": lambda x: (x * 2)[:, 1:],
    "a sum in channels_last": lambda x: (x + 1).contiguous(memory_format=torch.channels_last) * 2,
    "a sum of a permuted input": lambda x: x.permute(3, 0, 2, 1) + 1,
    "a reduction": lambda x: x.sum(1, keepdim=True) + x,
}


def _dims(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [stride for size, stride in zip(shape, strides) if size > 1]


def _exact(shape: tuple[int, ...], eager: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return _dims(shape, eager) == _dims(shape, found)


def _contiguous(shape: tuple[int, ...], eager: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return _dims(shape, found) == _dims(shape, torch.empty(shape, device="meta").stride())


def _same_order(shape: tuple[int, ...], eager: tuple[int, ...], found: tuple[int, ...]) -> bool:
    pairs = list(zip(_dims(shape, eager), _dims(shape, found)))
    return all(
        (one[0] > other[0]) == (one[1] > other[1])
        for one in pairs
        for other in pairs
        if one[0] != other[0]
    )


def _any(shape: tuple[int, ...], eager: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return True


#: By tag: whether a shape and the strides in eager execution allow the strides that were received.
ALLOWS = {
    "needs_exact_strides": _exact,
    "needs_contiguous_strides": _contiguous,
    "needs_fixed_stride_order": _same_order,
    "flexible_layout": _any,
    "": _exact,  # custom_op_default_layout_constraint
}


@cache
def custom_op(tag: str) -> Any:
    """Returns a custom op with the given tag. The op doubles its operand, and appends the operand's shape and
    strides to the list RECEIVED."""
    tags = (getattr(torch.Tag, tag),) if tag else ()

    def double(x: torch.Tensor) -> torch.Tensor:
        RECEIVED.append((tuple(x.shape), x.stride()))
        return torch.mul(x, 2).contiguous()

    made = torch.library.custom_op(
        f"conform::double_{tag or 'untagged'}",
        double,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
        tags=tags,
    )
    made.register_fake(lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return made


_LAYOUTS = ("contiguous", "transposed", "channels_last")


@cases("compile.stride_tags", over={"transposed": ("needs_exact_strides", ("transposed",))})
@cases(
    "compile.stride_tags",
    over={tag or "untagged": (tag, _LAYOUTS) for tag in ALLOWS},
    more=True,
)
def received_strides(context: CaseContext, tag: str, layouts: tuple[str, ...]) -> None:
    """A custom op with this tag receives inputs and results of pointwise ops, reductions and views. The strides that
    it receives must be those that the tag allows, and the op's result must be right."""
    backend = context.descriptor.compiler
    if backend is None:
        raise NotDeclared("by declaration: the descriptor does not declare a compiler")
    op = custom_op(tag)

    def program(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [op(operand(x)) for x in inputs for operand in OPERANDS.values()]

    new = Inputs(context)
    inputs = [new(2, 3, 4, 6, layout=layout) for layout in layouts]
    want, eager = _received(context, program, inputs)
    with compiling(backend) as compiler:
        made, found = _received(context, compiler(program, dynamic=False), inputs)
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)
    text = "the custom op was not called once for each operand"
    context.same(len(found), len(eager), text, Kind.COUNT)
    names = [f"{name}, {layout}" for layout in layouts for name in OPERANDS]
    for number, name in enumerate(names):
        _judge(context, tag, eager[number], found[number], name)
        text = "the result of the custom op differs from eager execution"
        context.assert_close(made[number], want[number], text, name, rtol=1e-5, atol=1e-5)


def _received(context: CaseContext, program: Any, inputs: Any) -> tuple[Any, Any]:
    """Returns the result of a program, and the shapes and strides that its custom ops received."""
    RECEIVED.clear()
    made = program(*inputs)
    context.settle()
    return made, RECEIVED.copy()


def _judge(context: CaseContext, tag: str, eager: Any, found: Any, at: str) -> None:
    shape, strides = eager
    context.same(
        found[0],
        shape,
        ("the custom op received an operand of another shape than in eager execution"),
        Kind.SHAPE,
        at,
    )
    text = "the custom op received strides that its tag does not allow"
    allowed = ALLOWS[tag](shape, strides, found[1])
    context.check(
        allowed,
        text,
        expected=f"{tag or 'needs_exact_strides'}, eager {strides}",
        found=found[1],
        at=at,
    )
