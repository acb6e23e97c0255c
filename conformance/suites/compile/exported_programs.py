"""Checks of exported programs, of the scripts that torch writes to reproduce a graph, and of compiled code that a
second process reads from the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from conformance.checks.behaviour.compiler import compiling, written_graph
from conformance.checks.behaviour.fresh_process import fresh, source
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.scratch import scratch_folder
from conformance.suites.compile.comparing import backend_of
from devices.failure import Kind

cases = Cases(Kind.VALUES)

CLAUSE = "compile.export"
CLOSE: Any = {"rtol": 1e-4, "atol": 1e-5}


class _Network(nn.Module):
    """A network with a convolution, a batch norm with statistics, a buffer that counts calls, tensors that forward
    creates, the size of the batch as a number, and a product with a transposed parameter."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 20).view(4, 5).t())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        y = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
        z = y @ self.weight.t() + torch.arange(5, device=x.device, dtype=x.dtype) * x.shape[0]
        return z, torch.zeros_like(x).add_(x).transpose(1, 3)


def _network(training: bool = False) -> nn.Module:
    torch.manual_seed(2)
    return _Network().train(training)


def _images(rows: int = 3) -> torch.Tensor:
    return torch.linspace(-2, 2, rows * 2 * 5 * 4).sin().view(rows, 2, 5, 4)


def _compare(
    context: CaseContext, program: nn.Module, eager: nn.Module, device: torch.device, rows: int = 3
) -> None:
    """Checks that an exported program and an eager module give the same results on a device, leave the same values in their
    buffers, and have parameters with the same values and strides."""
    x = _images(rows).to(device)
    found, want = program(x), eager(x)
    for number, (mine, theirs) in enumerate(zip(found, want)):
        text = "an output of the exported program is on another device"
        context.same(mine.device, theirs.device, text, Kind.DEVICE, f"output {number}")
        text = "an output of the exported program differs from the eager module"
        context.assert_close(mine, theirs, text, f"output {number}", **CLOSE)
        text = "the strides of an output of the exported program differ from the eager module"
        context.same(mine.stride(), theirs.stride(), text, Kind.STRIDES, f"output {number}")
    _compare_state(context, "buffer", dict(program.named_buffers()), dict(eager.named_buffers()))
    parameters = dict(program.named_parameters()), dict(eager.named_parameters())
    _compare_state(context, "parameter", *parameters)


def _compare_state(
    context: CaseContext,
    what: str,
    found: Mapping[str, torch.Tensor],
    want: Mapping[str, torch.Tensor],
) -> None:
    """Checks that each buffer or parameter of an exported program equals that of the eager module."""
    text = f"a {what} of the exported program differs from that of the eager module"
    mine = {name.removeprefix("_orig_mod."): each.detach() for name, each in found.items()}
    context.same(sorted(mine), sorted(want), f"the {what}s have other names", Kind.COUNT)
    for name, theirs in want.items():
        context.same(mine[name].device, theirs.device, text, Kind.DEVICE, name)
        context.assert_close(mine[name], theirs.detach(), text, name, **CLOSE)
        context.same(mine[name].stride(), theirs.stride(), text, Kind.STRIDES, name)


@cases(CLAUSE, over={"for_evaluation": (False,)})
@cases(CLAUSE, over={"for_training": (True,)}, more=True)
def on_the_device(context: CaseContext, training: bool) -> None:
    """A module that is exported on the device and decomposed must give the results of the module, also with another
    batch size. In training, the module is on the last index."""
    device = context.named(context.indices[-1 if training else 0])
    batch = torch.export.Dim("batch", min=2)
    module = _network(training).to(device)
    program = torch.export.export(
        module, (_images().to(device),), dynamic_shapes={"x": {0: batch}}, strict=False
    )
    decomposed = program.run_decompositions()
    eager, exported = _network(training).to(device), program.module()
    for rows in (3, 6):
        _compare(context, exported, eager, device, rows)
    eager.load_state_dict(program.state_dict)
    found = decomposed.module()
    for rows in (3, 6):
        _compare(context, found, eager, device, rows)


@cases(CLAUSE)
def moved_to_the_device(context: CaseContext) -> None:
    """A program that is exported on the CPU and moved to the device must run on the device, with all its tensors."""
    program = torch.export.export(_network(), (_images(),), strict=False)
    for index in sorted({context.indices[0], context.indices[-1]}):
        device = context.named(index)
        moved = move_to_device_pass(_fresh_copy(program), str(device))
        _compare(context, moved.module(), _network().to(device), device)


def _fresh_copy(program: Any) -> Any:
    import io

    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def _load_and_compare(context: CaseContext, path: str, index: int) -> None:
    device = context.named(index)
    program = torch.export.load(path)
    _compare(context, program.module(), _network().to(device), device)


@cases(CLAUSE, requires={"serialization"})
def in_another_process(context: CaseContext) -> None:
    """A program that is exported and saved on the device runs in another process, on the index that its tensors were
    on."""
    for index in sorted({context.indices[0], context.indices[-1]}):
        device = context.named(index)
        program = torch.export.export(_network().to(device), (_images().to(device),), strict=False)
        with scratch_folder() as folder:
            path = os.path.join(folder, "program.pt2")
            torch.export.save(program, path)
            result = context.child(_load_and_compare, path, index)
        text = "the process that runs the exported program did not exit with status 0"
        context.ended_well(result, text)


@cases(CLAUSE, more=True)
def compiled_program(context: CaseContext) -> None:
    """An exported program can be compiled for the device, and then gives the results of the module."""
    device = context.device
    program = torch.export.export(_network().to(device), (_images().to(device),), strict=False)
    with compiling(backend_of(context)) as compiler:
        compiled: Any = compiler(program.module())
        _compare(context, compiled, _network().to(device), device)
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)


_REPRODUCER = """
import os, runpy, sys
{preparation}
os.chdir({folder!r})
sys.argv = [{path!r}, "run"]
runpy.run_path({path!r}, run_name="__main__")
told = {{"ran": True}}
"""


def _product(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.softmax(x @ y.t() + 1, 1), x.sum(0)


@cases(CLAUSE, more=True)
def reproducer(context: CaseContext) -> None:
    """The script that torch writes to reproduce a graph runs in a new process, with the compiler of the device."""
    x, y = (context.to_device(torch.ones(4, 5) * number) for number in (1, 2))
    with scratch_folder() as folder:
        path = written_graph(_product, (x, y), backend_of(context), folder)
        told = fresh(source(context, _REPRODUCER, folder=folder, path=path), TMPDIR=folder)
    context.check(told["ran"], "the reproducer did not run")


def _compiled_in(context: CaseContext, folder: str) -> list[float]:
    """Compiles a program, with ``folder`` as the folder of the compiler's cache. Returns the number of graphs that came
    from the cache, followed by the elements of the result."""
    x = context.to_device(torch.linspace(-1, 1, 60).view(12, 5))
    with compiling(backend_of(context), folder) as compiler:
        found = compiler(_product)(x, x * 2)
        return [float(compiler.cached), *context.from_device(found[0]).flatten().tolist()]


@cases(CLAUSE, requires={"inductor"}, more=True)
def cache_of_another_process(context: CaseContext) -> None:
    """A second process reads the compiled code that a first process wrote to the cache, and this code gives the same
    results."""
    with scratch_folder() as folder:
        results = [context.child(_compiled_in, folder) for _ in range(2)]
    for result in results:
        context.ended_well(result, "a process that compiles did not exit with status 0")
    first, second = (result.value for result in results)
    text = (
        "the first process found graphs in an empty cache, or the second one did not find "
        "the graphs of the first"
    )
    context.same([first[0] > 0, second[0] > 0], [False, True], text, Kind.STATE)
    text = "code from the cache gives different results from the freshly compiled code"
    context.same(second[1:], first[1:], text)
