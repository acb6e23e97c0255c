"""Compiled programs that one comparison with eager execution cannot judge: programs on side streams, and programs that
call functions of the device's module."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.behaviour.compiler import AOT_EAGER, compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import backend_of
from devices.failure import Kind

cases = Cases(Kind.VALUES)


@cases("compile.programs", requires={"streams"})
def on_a_side_stream(context: CaseContext) -> None:
    """A compiled program that is called on a side stream runs after the work that was queued on this stream before."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).sum(0)

    with compiling(backend_of(context)) as compiler:
        compiled = compiler(program)
        x = context.to_device(torch.zeros(64, 5))
        compiled(x)
        for number in (1.0, 2.0):
            stream = context.stream()
            stream.wait_stream(context.current_stream())
            with stream:
                if context.descriptor.busy is not None:
                    context.descriptor.busy(30.0)
                x.fill_(number)
                made = compiled(x)
                made = made + 0
            stream.synchronize()
            text = (
                "a compiled program on a side stream did not read what earlier work of "
                "this stream wrote"
            )
            context.equal(made, torch.full((5,), 64 * (2 * number + 1)), text)
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)


@cases("compile.programs", requires={"streams"}, more=True)
def region_on_a_side_stream(context: CaseContext) -> None:
    """A program does a part of its work on a side stream, which waits for the current stream and is waited for. Compiled by
    ``aot_eager``, the part must read what earlier work wrote, later work must read the part's result, and the current
    stream must be the same after the call.

    (torch 2.13 traces stream calls into graphs. Its Inductor fails to compile them for a PrivateUse1 device, so the case
    does not ask the device's own compiler.)
    """
    side = context.stream()

    def program(x: torch.Tensor) -> torch.Tensor:
        first = x + 1
        current = torch.accelerator.current_stream()
        side.wait_stream(current)
        with side:
            part = first * 2
        current.wait_stream(side)
        return part.sum(0) + first[0]

    with compiling(AOT_EAGER) as compiler:
        compiled = compiler(program)
        x = context.to_device(torch.zeros(64, 5))
        for number in (0.0, 1.0, 2.0):
            if context.descriptor.busy is not None:
                context.descriptor.busy(30.0)
                with side:  # the region starts late, so that its result is late, too
                    context.descriptor.busy(60.0)
            earlier = side.record_event()
            x.fill_(number)
            before = context.current_stream()
            made = compiled(x) + 0
            text = "a compiled program with a region on a side stream changed the current stream"
            context.same(context.current_stream(), before, text, Kind.STATE)
            before.synchronize()
            text = "a compiled program dropped a call of wait_stream"
            context.check(earlier.query(), text, kind=Kind.STATE)
            context.settle()
            text = "a compiled program with a region on a side stream read memory before it was written"
            context.equal(made, torch.full((5,), 129 * (number + 1)), text, f"filled with {number}")
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)


@cases("compile.programs", requires={"multi_device"})
def functions_of_the_module(context: CaseContext) -> None:
    """A program that asks the device's module for the current device, and whether the device is available, compiles to
    one graph, and its result follows the current device."""
    module = context.module

    def program(x: torch.Tensor) -> Any:
        y = x * (1 + module.current_device())
        return y + 1 if module.is_available() else y

    def region(x: torch.Tensor, index: int) -> torch.Tensor:
        with context.on(index):
            made: torch.Tensor = compiled(x)
        return made

    with compiling(backend_of(context)) as compiler:
        compiled = compiler(program)
        x = context.to_device(torch.ones(4))
        for index in (0, context.indices[-1], 0):
            text = "a program that asks for the current device gives a wrong result"
            context.equal(region(x, index), torch.full((4,), 2.0 + index), text, f"index {index}")
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)
