"""Checks that deeply nested modules compile on the device as they do on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from conformance.checks.behaviour.compiler import AOT_EAGER, compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import backend_of
from devices.failure import Kind

cases = Cases(Kind.COUNT)

CLAUSE = "compile.nested"
#: The depth of the module that is called once. What modules are guarded by and how they are retraced does not depend on
#: the depth, but each call costs as much again, so the modules that are called in several ways are less deep.
DEPTH, _LESS_DEEP = 40, 12


class _Level(nn.Module):
    """A module that scales its input, passes it to the next level, and changes the result of that level."""

    shift: torch.Tensor

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 1 + 1 / (depth + 2)))
        self.register_buffer("shift", torch.tensor(depth / 100))
        self.below = _Level(depth - 1) if depth else nn.Identity()

    def forward(self, x: torch.Tensor, grow: bool = False) -> torch.Tensor:
        y = torch.tanh(x * self.scale + self.shift)
        if isinstance(self.below, _Level):
            y = self.below(y, grow)
        return y + 0.1 if grow else y * 0.9


class _Attributes(nn.Module):
    """A ``_Level`` whose attributes are nested plain objects, lists and dicts, which contain modules."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"list": nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])})
        self.options: Any = {"scale": [0.5, 2.0], "depth": depth}
        self.below = _Attributes(depth - 1) if depth else None

    def forward(self, x: torch.Tensor, grow: bool = False) -> torch.Tensor:
        layers: Any = self.parts["list"]
        for layer, scale in zip(layers, self.options["scale"]):
            x = torch.tanh(layer(x) * scale)
        return x if self.below is None else self.below(x, grow) + x


_MODULES = {"scaled": _Level, "with_lists": _Attributes}
#: The calls of a module: the number of rows, the flag, the training mode.
_ONE_CALL = ((4, False, False), (4, False, False))
_CALLS = (*_ONE_CALL, (4, False, True), (7, False, True), (7, True, True), (7, True, False))


@cases(CLAUSE, over={"forward": ("scaled", DEPTH, _ONE_CALL)})
@cases(CLAUSE, over={name: (name, _LESS_DEEP, _CALLS) for name in _MODULES}, more=True)
def levels(
    context: CaseContext, name: str, depth: int, calls: tuple[tuple[int, bool, bool], ...]
) -> None:
    """A deeply nested module needs no more graphs and graph breaks on the device than on the CPU: at the first call,
    with other sizes, with another flag, in training and in evaluation mode. Its results and gradients equal those of
    eager execution."""
    torch.manual_seed(1)
    module = _MODULES[name](depth)
    on_cpu = _counted(module, calls, torch.device("cpu"), AOT_EAGER)
    found = _counted(module, calls, context.device, backend_of(context), context)
    text = "the module needs more graphs, or more graph breaks, than on the CPU"
    for step, (want, mine) in enumerate(zip(on_cpu, found)):
        graphs, breaks = mine
        context.check(
            graphs <= want[0] and breaks <= want[1],
            text,
            expected=f"at most {want[0]} graphs, {want[1]} breaks",
            found=f"{graphs} graphs, {breaks} breaks",
            at=f"call {step}",
        )
    context.check(on_cpu[0][0] > 0 and found[0][0] > 0, "no graph was compiled")


def _counted(
    module: nn.Module,
    calls: tuple[tuple[int, bool, bool], ...],
    device: torch.device,
    backend: str,
    judge: CaseContext | None = None,
) -> list[tuple[int, int]]:
    """Returns the number of graphs and of graph breaks after each call of a compiled copy of a module. ``calls``
    says for each call the batch size, a flag of the module, and whether the module is in training mode. With
    ``judge``, each call is compared with an eager copy. In training mode, gradients are computed, too."""
    eager, moved = _copy(module, device), _copy(module, device)
    counts = []
    with compiling(backend) as compiler:
        compiled: Any = compiler(moved)
        for rows, flag, training in calls:
            given = torch.linspace(-1, 1, rows * 3).view(rows, 3)
            for each in (eager, moved):
                each.train(training).zero_grad()
            with torch.set_grad_enabled(training):
                found = compiled(given.to(device), flag)
                if training:
                    found.sum().backward()
                counts.append((compiler.graphs, compiler.breaks))
                if judge is not None:
                    want = eager(given.to(device), flag)
                    if training:
                        want.sum().backward()
                    _judge(judge, (found, moved), (want, eager))
    return counts


def _copy(module: nn.Module, device: torch.device) -> nn.Module:
    return copy.deepcopy(module).to(device)


def _judge(
    context: CaseContext,
    found: tuple[torch.Tensor, nn.Module],
    want: tuple[torch.Tensor, nn.Module],
) -> None:
    text = "the result of the compiled module differs from eager execution"
    context.assert_close(found[0], want[0], text, rtol=1e-4, atol=1e-5)
    pairs = zip(found[1].named_parameters(), want[1].parameters())
    for (name, mine), theirs in pairs:
        text = "a parameter has a gradient only in one of compiled and eager execution"
        context.same(mine.grad is None, theirs.grad is None, text, at=name)
        if mine.grad is None or theirs.grad is None:
            continue
        text = "a gradient of the compiled module differs from eager execution"
        context.assert_close(mine.grad, theirs.grad, text, name, rtol=1e-3, atol=1e-4)
    for (name, buffer), other in zip(found[1].named_buffers(), want[1].buffers()):
        context.equal(
            buffer,
            other,
            ("a buffer of the compiled module differs from that of the eager module"),
            name,
        )
