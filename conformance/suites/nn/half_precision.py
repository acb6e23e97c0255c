"""Checks of the clauses nn.modules, nn.rnn and nn.attention in the 16-bit dtypes: results and gradients must be near the
CPU's in float64.

An element may be off by a few units in the last place of the largest element of its tensor. Beyond that, it may be off by
a multiple of the change that roundings of inputs, parameters, cotangents and saved tensors make in float64.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.checks.half_precision import FACTOR, ROUNDINGS, ULPS
from conformance.checks.ops.roundings import DRAWS
from conformance.suites.nn.forward_backward import differentiable
from conformance.suites.nn.modules import seeded_globally
from devices.failure import Kind

cases = Cases(Kind.VALUES)


#: A module: its class, the positional arguments of the constructor, keyword arguments, and the shape of the input.
Module = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...], tuple[int, ...]]

RECURRENT: dict[str, Module] = {
    "lstm": ("LSTM", (24, 32), (("num_layers", 2), ("bidirectional", True)), (5, 3, 24)),
    "lstm_projected": ("LSTM", (24, 32), (("proj_size", 16), ("batch_first", True)), (3, 5, 24)),
    "gru": ("GRU", (24, 32), (("num_layers", 2),), (5, 3, 24)),
    "rnn": ("RNN", (24, 32), (("bias", False),), (5, 3, 24)),
}
ATTENTION: dict[str, Module] = {
    "multihead": ("MultiheadAttention", (64, 4), (("batch_first", True),), (2, 33, 64)),
    "encoder": (
        "TransformerEncoderLayer",
        (64, 4, 48, 0.0),
        (("batch_first", True), ("norm_first", True), ("activation", "gelu")),
        (2, 33, 64),
    ),
}
MODULES: dict[str, Module] = {
    "Conv2d": ("Conv2d", (16, 24, 3), (("padding", 1), ("groups", 2)), (2, 16, 9, 8)),
    "ConvTranspose2d": ("ConvTranspose2d", (16, 8, 3), (("stride", 2),), (2, 16, 5, 4)),
    "Linear": ("Linear", (300, 40), (), (6, 300)),
    "BatchNorm2d": ("BatchNorm2d", (16,), (), (4, 16, 5, 6)),
    "GroupNorm": ("GroupNorm", (4, 16), (), (3, 16, 5, 6)),
    "LayerNorm": ("LayerNorm", (300,), (), (6, 300)),
}


#: The modules that plan quick runs.
QUICK = ("lstm", "encoder")


def _in_16_bits(modules: dict[str, Module], *, quick: bool = False) -> dict[str, tuple[Any, ...]]:
    return {
        f"{name}_in_{dtype}": (*about, dtype)
        for name, about in modules.items()
        for dtype in ULPS
        if (name in QUICK) == quick
    }


@cases("nn.rnn", over=_in_16_bits(RECURRENT, quick=True))
@cases("nn.attention", over=_in_16_bits(ATTENTION, quick=True))
@cases("nn.rnn", over=_in_16_bits(RECURRENT), more=True)
@cases("nn.attention", over=_in_16_bits(ATTENTION), more=True)
@cases("nn.modules", over=_in_16_bits(MODULES), more=True)
def modules(
    context: CaseContext,
    name: str,
    args: tuple[Any, ...],
    options: tuple[tuple[str, Any], ...],
    shape: tuple[int, ...],
    dtype: str,
) -> None:
    """Run a module in a 16-bit dtype, in training mode: results and gradients must be as near to the CPU's in float64 as
    the dtype allows."""
    if dtype not in context.descriptor.dtypes:
        raise NotDeclared(f"the descriptor does not declare {dtype}")
    kind, drawn = getattr(torch, dtype), torch.Generator().manual_seed(sum(map(ord, context.seed)))
    with seeded_globally(sum(map(ord, context.seed))):
        plain: torch.nn.Module = getattr(torch.nn, name)(*args, **dict(options))
    with torch.no_grad():
        for each in plain.parameters():
            each.add_(0.1 * torch.randn(each.shape, generator=drawn))
    module = plain.to(kind)
    x = torch.randn(shape, generator=drawn).to(kind)
    count = 3 if name == "MultiheadAttention" else 1
    reference = copy.deepcopy(module).double()
    results, _ = trained(reference, x.double(), count, None)
    cotangents = [torch.randn(each.shape, generator=drawn).to(kind) for each in results]
    exact = trained(reference, x.double(), count, [each.double() for each in cotangents])
    changes = cache(partial(_changes, reference, x, count, cotangents, exact, ROUNDINGS[dtype]))

    there = copy.deepcopy(module).to(context.device)
    moved = [context.to_device(each) for each in cotangents]
    got = trained(there, context.to_device(x), count, moved)
    for part, what in enumerate(("result", "gradient")):
        found, want = got[part], exact[part]
        text = f"the number of {what}s differs from the CPU's"
        context.same(len(found), len(want), text, Kind.COUNT)
        for place, (one, other) in enumerate(zip(found, want, strict=True)):
            at = f"{what} {place}"
            text = f"the dtype of a {what} differs from the module's"
            context.same(one.dtype, kind, text, Kind.DTYPE, at)
            text = f"the shape of a {what} differs from the CPU's"
            context.same(tuple(one.shape), tuple(other.shape), text, Kind.SHAPE, at)
            _near(context, one, other, dtype, at, partial(_change_of, changes, part, place))


Trained = tuple[list[torch.Tensor], list[torch.Tensor]]


def trained(
    module: torch.nn.Module, x: torch.Tensor, count: int, cotangents: list[torch.Tensor] | None
) -> Trained:
    """Run a module, which gets ``x`` ``count`` times, forward and backward. Returns its results, and the gradients of the
    input and of the parameters; no gradients if ``cotangents`` is None."""
    x = x.detach().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CPU warns about its choice of kernels
        out = differentiable(module(*[x] * count))
    if cotangents is None:
        return out, []
    found = torch.autograd.grad(out, [x, *module.parameters()], cotangents)
    return [each.detach() for each in out], [*found]


def _changes(
    module: torch.nn.Module,
    x: torch.Tensor,
    count: int,
    cotangents: list[torch.Tensor],
    exact: Trained,
    epsilon: float,
) -> Trained:
    """Return the largest changes of results and gradients in float64 when inputs, parameters, cotangents and saved tensors
    change by a rounding of relative size ``epsilon``, times ``FACTOR``."""
    source = torch.Generator().manual_seed(0)

    def rounded(each: torch.Tensor) -> torch.Tensor:
        if not each.is_floating_point():
            return each
        drawn = torch.rand(each.shape, generator=source, dtype=torch.float64) * 2 - 1
        return each.double() * (1 + epsilon * drawn)

    largest: Trained = (
        [torch.zeros_like(e) for e in exact[0]],
        [torch.zeros_like(e) for e in exact[1]],
    )
    for _ in range(DRAWS):
        moved = copy.deepcopy(module)
        with torch.no_grad():
            for each in moved.parameters():
                each.copy_(rounded(each))
        given = [rounded(each) for each in cotangents]
        with torch.autograd.graph.saved_tensors_hooks(rounded, lambda each: each):
            found = trained(moved, rounded(x), count, given)
        for held, values, before in zip(largest, found, exact, strict=True):
            for place, (value, old) in enumerate(zip(values, before, strict=True)):
                change = (value.detach() - old.detach()).abs() * FACTOR
                held[place] = torch.maximum(held[place], change)
    return largest


def _change_of(changes: Callable[[], Trained], part: int, place: int) -> torch.Tensor:
    return changes()[part][place]


def _near(
    context: CaseContext,
    found: torch.Tensor,
    want: torch.Tensor,
    dtype: str,
    at: str,
    change: Callable[[], torch.Tensor],
) -> None:
    """Check that each element is within the bound of the float64 result ``want``. ``change`` returns how much more is
    accepted, and is called only if this is needed."""
    form = torch.finfo(getattr(torch, dtype))
    got, want = context.from_device(found.detach()).double(), want.detach()
    unit = max(float(want.abs().max()), form.tiny) * form.eps
    off = (got - want).abs().nan_to_num(nan=torch.inf)
    allowed = torch.full_like(off, ULPS[dtype] * unit)
    if bool((off > allowed).any()):
        allowed = allowed + change()
    excess = (off - allowed).flatten()
    worst = int(excess.argmax())
    nearest, bound = float(want.flatten()[worst]), float(allowed.flatten()[worst])
    context.check(
        float(excess[worst]) <= 0,
        f"a result or gradient in {dtype} is further from float64 than roundings explain",
        expected=f"{nearest:.6g} within {bound:.3g}",
        found=float(got.flatten()[worst]),
        at=at,
    )
