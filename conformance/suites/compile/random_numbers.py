"""A compiled program that draws random numbers.

A compiler may draw other numbers than eager execution does, so the numbers themselves are not compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from conformance.checks.behaviour.compiler import compiling
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import backend_of
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_COUNT = 4000
_P = 0.25
#: Of 4,000 elements 1,000 are dropped, with a standard deviation of 27.
_FAR = 200


def _program(x: torch.Tensor) -> Any:
    first, second = functional.dropout(x, _P), functional.dropout(x, _P)
    return first, second, torch.rand_like(x), torch.randint(0, 5, x.shape, device=x.device)


@cases("compile.programs")
def dropout_and_noise(context: CaseContext) -> None:
    """Compiled dropout uses the same mask in forward and in backward. Two masks of one program differ, and the same
    seed gives the same numbers again."""
    with compiling(backend_of(context)) as compiler:
        compiled = compiler(_program)
        found = [_drawn(context, compiled, seed) for seed in (5, 5, 6)]
        context.check(compiler.graphs, "no graph was compiled", kind=Kind.COUNT)
    (kept, other, noise, numbers), again, elsewhere = found
    for mask, gradient in (kept, other):
        scaled = torch.where(mask != 0, 1 / (1 - _P), 0.0)
        context.assert_close(
            mask,
            scaled,
            ("dropout gave a value that is neither 0 nor the scaled element"),
            rtol=1e-6,
        )
        text = "the gradient of dropout uses another mask than its forward pass"
        context.equal((gradient != 0), (mask != 0), text)
        count = int((mask == 0).sum())
        text = "dropout did not drop about a quarter of the elements"
        near = abs(count - _P * _COUNT) < _FAR
        context.check(near, text, expected=f"{_P * _COUNT:g} ± {_FAR}", found=count)
    text = "two dropouts in one program used the same mask"
    context.check(not torch.equal(kept[0], other[0]), text)
    inside = bool(((noise >= 0) & (noise < 1)).all()) and len(noise.unique()) > _COUNT // 2
    context.check(inside, "rand_like did not give different numbers from 0 to 1")
    text = "randint did not give exactly the integers from 0 to 4"
    context.same(numbers.unique().tolist(), [0, 1, 2, 3, 4], text)
    text = "running again with the same seed gave other random numbers"
    context.equal(again[2], noise, text)
    context.equal(again[0][0], kept[0], text)
    text = "running with another seed gave the same random numbers"
    context.check(not torch.equal(elsewhere[2], noise), text)
    context.check(not torch.equal(elsewhere[0][0], kept[0]), text)


def _drawn(context: CaseContext, program: Any, seed: int) -> Any:
    """Runs the program with a seed and returns its random results on the CPU: two pairs of a dropout mask and its
    gradient, and two random tensors."""
    x = context.to_device(torch.ones(_COUNT)).requires_grad_()
    torch.manual_seed(seed)
    first, second, noise, numbers = program(x)
    pairs = []
    for each in (first, second):
        (gradient,) = torch.autograd.grad(each.sum(), x, retain_graph=True)
        pairs.append((context.from_device(each.detach()), context.from_device(gradient)))
    return (*pairs, context.from_device(noise), context.from_device(numbers))
