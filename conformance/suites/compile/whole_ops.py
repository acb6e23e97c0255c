"""Checks that the device's own compiler calls the ops that its descriptor lists as kept whole, instead of code that
computes the same with other ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from conformance.checks.behaviour.compiler import compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.compile.comparing import Inputs
from devices.failure import Kind
from opinfo.torch_private import every_thread, kineto_events, quiet_kineto

cases = Cases(Kind.STATE)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x + 1, (8,), weight[0], weight[1]) * 2


def _group_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(x + 1, 2, weight[0, :6], weight[1, :6]) * 2


def _softmax(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x + weight[0]).softmax(-1) * 2


def _gelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x + weight[0]) * 2


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addmm(weight[0], x[0] + 1, weight) * 2


def _convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(x + 1, weight[:6, :6, None].contiguous()) * 2


#: By aten op: a program that calls it in forward or in backward. Ops around it could be fused with it.
PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm,
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax,
    "gelu": _gelu,
    "gelu_backward": _gelu,
    "addmm": _linear,
    "convolution": _convolution,
    "convolution_backward": _convolution,
}


@cases("compile.stride_tags", over={f"whole{name if name[0] == '_' else '_' + name}": (name,) for name in PROGRAMS}, more=True)  # fmt: skip
def kept_whole(context: CaseContext, op: str) -> None:
    """The descriptor says that the compiler keeps an op whole. The compiled program must call this op, and give the
    result and the gradients of eager execution."""
    backend = context.descriptor.compiler
    if backend is None:
        raise NotDeclared("by declaration: the descriptor does not declare a compiler")
    if op not in context.descriptor.kept_whole:
        raise NotDeclared(f"by declaration: the descriptor does not list {op} in `kept_whole`")
    if every_thread() is None:
        raise NotDeclared(f"torch {torch.__version__} cannot profile all threads")
    program = PROGRAMS[op]
    eager, in_eager = _called(context, program)
    context.must(op in in_eager, "the program does not call the op in eager execution")
    with compiling(backend) as compiler:
        compiled = compiler(program)
        _called(context, compiled)
        made, in_compiled = _called(context, compiled)
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)
    text = "the compiler decomposes an op that the descriptor lists as kept whole"
    listed = ", ".join(sorted(in_compiled)) or "no aten op"
    context.check(op in in_compiled, text, expected=f"a call of {op}", found=listed)
    names = ("the result", "the gradient of the input", "the gradient of the weight")
    for name, found, want in zip(names, made, eager, strict=True):
        text = "the compiled program with the op differs from eager execution"
        context.assert_close(found, want, text, name, rtol=1e-4, atol=1e-4)


def _called(
    context: CaseContext, program: Callable[..., torch.Tensor]
) -> tuple[list[torch.Tensor], set[str]]:
    """Calls a program and its backward. Returns the result and the gradients, and the names of the aten ops that were
    called in any thread."""
    quiet_kineto()
    new = Inputs(context)
    x, weight = new(4, 6, 8, grad=True), new(8, 8, grad=True)
    about: Any = {"activities": [ProfilerActivity.CPU], "experimental_config": every_thread()}
    with profile(**about) as seen:
        result = program(x, weight)
        gradients = torch.autograd.grad(result.square().sum(), [x, weight])
        context.settle()
    prefix = "aten::"
    listed = {each.name() for each in kineto_events(seen)}
    return [result.detach(), *gradients], {
        name.removeprefix(prefix) for name in listed if name.startswith(prefix)
    }
