"""Cases about ops that compute each row, batch, group or channel (here called slice) separately, for about 2^16 or 2^24
of them.

The slices of the inputs repeat, so those of results and gradients repeat, too. The gradient of an operand that all
slices share is the sum over the slices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.size.limits import ALONE, MORE, WHOLE, at_each_size, most, variant_of
from conformance.suites.size.periodic import PERIOD, check_repeats, period, repeated
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: float32 results are compared with the CPU's in float64. The ops sum some ten numbers of magnitude 1; a slice that is
#: missing, or in the wrong place, is off by about 1.
RTOL, ATOL = 1e-4, 1e-4

#: The same for sums over all slices, in relation to the number of slices: kernels may add one float32 number after another.
#: Sums of linear ops are exact, because their operands are small integers.
SUM_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Grows:
    """The description of an operand whose size along dimension ``dim`` is the number of slices that a check tries.
    ``shape`` has the sizes of the other dimensions. Values of an integer operand are from 0 to ``below`` - 1;
    ``below`` is 0 for a floating-point operand."""

    shape: tuple[int, ...]
    dim: int = 0
    below: int = 0

    def period(self, seed: int, whole: bool) -> torch.Tensor:
        if not self.below:
            numbers = period(self.shape, torch.float32, seed)
            return numbers.mul(2).round() if whole else numbers
        return period(self.shape, torch.int64, seed).add(125) % self.below


@dataclass(frozen=True)
class Sliced:
    """An op that computes the slices of its operands (rows, batches, channels or groups) independently of each other.

    ``call`` makes the call. It takes first the operands described by ``grows``, which have as many slices as a check
    tries, and then operands of the shapes ``shared``, which all slices use. It returns one tensor, whose dimension
    ``out`` has one entry for each slice. ``grad`` is True if gradients are checked, too.
    """

    call: Callable[..., torch.Tensor]
    grows: tuple[Grows, ...]
    shared: tuple[tuple[int, ...], ...] = ()
    out: int = 0
    grad: bool = True
    linear: bool = False  # in each operand: with small integers all results are exact


def _of(call: Callable[..., Any], *grows: Any, **more: Any) -> Sliced:
    return Sliced(call, tuple(g if isinstance(g, Grows) else Grows(g) for g in grows), **more)


_ROWS: dict[str, Sliced] = {
    "nn.functional.layer_norm": _of(lambda x, w: functional.layer_norm(x, [5], w), (5,), shared=((5,),)),
    "softmax": _of(lambda x: x.softmax(-1), (5,)),
    "log_softmax": _of(lambda x: x.log_softmax(-1), (5,)),
    "nn.functional.rms_norm": _of(lambda x, w: functional.rms_norm(x, [5], w), (5,), shared=((5,),)),
    "nn.functional.cross_entropy": _of(
        lambda x, target: functional.cross_entropy(x, target, reduction="none"), (5,), Grows((), below=5)
    ),
    "logsumexp": _of(lambda x: x.logsumexp(-1), (5,)),
    "sum": _of(lambda x: x.sum(-1), (5,)),
    "var": _of(lambda x: x.var(-1), (5,)),
    "amax": _of(lambda x: x.amax(-1), (5,)),
    "argmax": _of(lambda x: x.argmax(-1), (5,), grad=False),
    "cumsum": _of(lambda x: x.cumsum(-1), (5,)),
    "cummax": _of(lambda x: x.cummax(-1).values, (5,)),
    "sort": _of(lambda x: x.sort(-1).values, (5,)),
    "argsort": _of(lambda x: x.argsort(-1), (5,), grad=False),
    "topk": _of(lambda x: x.topk(2).values, (5,)),
    "kthvalue": _of(lambda x: x.kthvalue(2).values, (5,)),
    "median": _of(lambda x: x.median(-1).values, (5,)),
    "gather": _of(lambda x, index: x.gather(1, index), (5,), Grows((3,), below=5)),
    "flip": _of(lambda x: x.flip(-1), (5,)),
    "cat": _of(lambda x, y: torch.cat([x, y], 1), (3,), (2,)),
    "where": _of(lambda x, y: torch.where(x > 0, x, y), (5,), (5,)),
    "masked_fill": _of(lambda x: x.masked_fill(x > 0.25, 3.0), (5,)),
    "cdist": _of(lambda x, y: torch.cdist(x, y), (5,), shared=((3, 5),)),
    "nn.functional.linear": _of(functional.linear, (5,), shared=((3, 5), (3,)), linear=True),
    "nn.functional.embedding": _of(functional.embedding, Grows((3,), below=7), shared=((7, 4),), linear=True),
    "nn.functional.embedding_bag": _of(
        lambda index, table: functional.embedding_bag(index, table, mode="sum"), Grows((3,), below=7), shared=((7, 4),), linear=True
    ),
    "nn.functional.one_hot": _of(lambda x: functional.one_hot(x, 7), Grows((), below=7), grad=False),
    "searchsorted": _of(lambda x, y: torch.searchsorted(x.sort(-1).values, y), (5,), (2,), grad=False),
}  # fmt: skip

_BATCHES: dict[str, Sliced] = {
    "bmm": _of(torch.bmm, (2, 3), (3, 4)),
    "baddbmm": _of(torch.baddbmm, (2, 4), (2, 3), (3, 4)),
    "matmul": _of(torch.matmul, (2, 3), shared=((3, 4),), linear=True),
    "einsum": _of(lambda x, y: torch.einsum("bij,bkj->bik", x, y), (2, 3), (4, 3)),
    "nn.functional.conv1d": _of(functional.conv1d, (2, 6), shared=((3, 2, 3), (3,)), linear=True),
    "nn.functional.conv2d": _of(functional.conv2d, (2, 4, 5), shared=((3, 2, 2, 3), (3,)), linear=True),
    "nn.functional.conv_transpose1d": _of(functional.conv_transpose1d, (2, 4), shared=((2, 3, 3), (3,)), linear=True),
    "nn.functional.max_pool1d": _of(lambda x: functional.max_pool1d(x, 2), (2, 6)),
    "nn.functional.max_pool2d": _of(lambda x: functional.max_pool2d(x, 2), (2, 4, 4)),
    "nn.functional.max_pool3d": _of(lambda x: functional.max_pool3d(x, 2), (1, 2, 4, 4)),
    "nn.functional.avg_pool2d": _of(lambda x: functional.avg_pool2d(x, 2), (2, 4, 4)),
    "nn.functional.adaptive_avg_pool2d": _of(lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), (2, 4, 5)),
    "nn.functional.interpolate": _of(
        lambda x: functional.interpolate(x, size=(3, 5), mode="bilinear", align_corners=False), (2, 2, 3)
    ),
    "nn.functional.upsample_nearest": _of(lambda x: functional.interpolate(x, scale_factor=2), (2, 2, 3)),
    "nn.functional.grid_sample": _of(
        lambda x, grid: functional.grid_sample(x, grid, align_corners=False), (2, 3, 4), (2, 2, 2)
    ),
    "nn.functional.scaled_dot_product_attention": _of(
        functional.scaled_dot_product_attention, (2, 3, 8), (2, 4, 8), (2, 4, 8)
    ),
    "nn.functional.pad": _of(lambda x: functional.pad(x, (1, 2), mode="reflect"), (2, 5)),
    "nn.functional.unfold": _of(lambda x: functional.unfold(x, 2), (2, 3, 4)),
    "nn.functional.fold": _of(lambda x: functional.fold(x, (3, 4), 2), (4, 6)),
    "nn.functional.pixel_shuffle": _of(lambda x: functional.pixel_shuffle(x, 2), (4, 2, 3)),
    "nn.functional.group_norm": _of(lambda x, w: functional.group_norm(x, 2, w), (4, 3), shared=((4,),)),
    "nn.functional.instance_norm": _of(functional.instance_norm, (2, 5)),
    "linalg.inv": _of(lambda x: torch.linalg.inv(x + 3 * torch.eye(3, dtype=x.dtype, device=x.device)), (3, 3)),
    "linalg.solve": _of(
        lambda x, y: torch.linalg.solve(x + 3 * torch.eye(3, dtype=x.dtype, device=x.device), y), (3, 3), (3, 2)
    ),
    "linalg.cholesky": _of(
        lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3, dtype=x.dtype, device=x.device)), (3, 3)
    ),
    "fft.fft": _of(lambda x: torch.view_as_real(torch.fft.fft(x)), (6,)),
    "tril": _of(torch.tril, (3, 4)),
    "diagonal_copy": _of(lambda x: torch.diagonal_copy(x, 0, 1, 2), (3, 4)),
}  # fmt: skip

_CHANNELS: dict[str, Sliced] = {
    "nn.functional.batch_norm": _of(
        lambda x, w: functional.batch_norm(x, None, None, w, None, True), Grows((4, 3), 1), (), out=1
    ),
    # All channels read one input.
    "nn.functional.conv1d": _of(lambda w, x: functional.conv1d(x, w), (2, 3), shared=((2, 2, 6),), out=1),
    "nn.functional.max_pool1d": _of(lambda x: functional.max_pool1d(x, 2), Grows((2, 6), 1), out=1),
    "nn.functional.avg_pool1d": _of(lambda x: functional.avg_pool1d(x, 2), Grows((2, 6), 1), out=1),
    "nn.functional.max_pool2d": _of(lambda x: functional.max_pool2d(x, 2), Grows((1, 4, 4), 1), out=1),
    "nn.functional.adaptive_avg_pool2d": _of(
        lambda x: functional.adaptive_avg_pool2d(x, 2), Grows((1, 4, 5), 1), out=1
    ),
    "nn.functional.interpolate": _of(
        lambda x: functional.interpolate(x, size=5, mode="linear", align_corners=False), Grows((2, 3), 1), out=1
    ),
    "nn.functional.instance_norm": _of(functional.instance_norm, Grows((2, 5), 1), out=1),
    "nn.functional.prelu": _of(functional.prelu, Grows((2, 3), 1), (), out=1),
    "nn.functional.pad": _of(lambda x: functional.pad(x, (1, 2), mode="replicate"), Grows((2, 5), 1), out=1),
    "sum": _of(lambda x: x.sum(0), Grows((5,), 1)),
    "cumsum": _of(lambda x: x.cumsum(0), Grows((5,), 1), out=1),
    "softmax": _of(lambda x: x.softmax(0), Grows((5,), 1), out=1),
    "argmax": _of(lambda x: x.argmax(0), Grows((5,), 1), grad=False),
    "sort": _of(lambda x: x.sort(0).values, Grows((5,), 1), out=1),
    "index_select": _of(lambda x, index: x.index_select(0, (index * 2 + 2).long()), Grows((5,), 1), shared=((3,),), out=1, grad=False),
}  # fmt: skip

_GROUPS: dict[str, Sliced] = {
    "nn.functional.conv1d": _of(
        lambda x, w: functional.conv1d(x, w, groups=x.shape[1]), Grows((2, 6), 1), (1, 3), out=1
    ),
    "nn.functional.conv2d": _of(
        lambda x, w: functional.conv2d(x, w, groups=x.shape[1]), Grows((1, 3, 4), 1), (1, 2, 3), out=1
    ),
    "nn.functional.group_norm": _of(
        lambda x: functional.group_norm(x.flatten(1, 2), x.shape[1]).unflatten(1, (x.shape[1], 2)),
        Grows((2, 2, 3), 1),
        out=1,
    ),
}  # fmt: skip

_TABLES = {"rows": _ROWS, "batches": _BATCHES, "channels": _CHANNELS, "groups": _GROUPS}

#: The ops that are tried with 2^24 rows of two elements.
_OF_MANY_ROWS = (
    *("softmax", "log_softmax", "logsumexp", "sum", "var", "amax", "argmax", "cumsum", "sort"),
    *("nn.functional.layer_norm", "where", "flip", "nn.functional.linear"),
)


def _memory(what: str, op: str, limit: int) -> int:
    """Returns an estimate of the bytes that a case needs: for operands, results and gradients, each with a copy."""
    sliced = _TABLES[what][op]
    numbers = sum(torch.Size(each.shape).numel() for each in sliced.grows)
    return most(limit) * 4 * numbers * (8 if sliced.grad else 5) + 2**24


_ROWS_OF, _BATCHES_OF = variant_of(2**16, "rows"), variant_of(2**16, "batches")
_CHANNELS_OF, _GROUPS_OF = variant_of(2**16, "channels"), variant_of(2**16, "groups")

#: The op that plan quick tries.
_QUICK = "nn.functional.layer_norm"


def _cases_of(what: str) -> dict[str, tuple[str, str]]:
    """Returns the arguments of the cases of a table of ops (``what``: rows, batches, channels or groups), by case
    name. The case that is part of the plan quick is left out."""
    return {op: (what, op) for op in _TABLES[what] if op != _QUICK}


@cases("layout.large", over={_QUICK: ("rows", _QUICK)}, variants=_ROWS_OF, memory=_memory, **ALONE)
@cases("layout.large", over=_cases_of("rows"), variants=_ROWS_OF, memory=_memory, **MORE)
@cases("layout.large", over=_cases_of("batches"), variants=_BATCHES_OF, memory=_memory, **MORE)
@cases("layout.large", over=_cases_of("channels"), variants=_CHANNELS_OF, memory=_memory, **MORE)
@cases("layout.large", over=_cases_of("groups"), variants=_GROUPS_OF, memory=_memory, **MORE)
def each_by_itself(context: CaseContext, what: str, op: str, limit: int) -> None:
    """The op is called with slightly fewer than, exactly, and more than 65,536 rows, batches, channels or groups, which
    repeat those of a small call; in the last call, operands are transposed in memory. Each slice of the result and of
    every gradient equals that of the small call, and gradients of shared operands are the sums over the slices."""
    sliced = _TABLES[what][op]
    last = most(limit)
    at_each_size(
        context,
        lambda count: _check(context, sliced, count, f"{count:,} {what}", count == last),
        limit,
        what,
    )


#: Calls that name the number of features, with two features.
_CALLS_OF_TWO_FEATURES: dict[str, Callable[..., torch.Tensor]] = {
    "nn.functional.layer_norm": lambda x, w: functional.layer_norm(x, [2], w, eps=0.1),
}


@cases(
    "layout.large",
    over={op: (op,) for op in _OF_MANY_ROWS},
    variants=variant_of(2**24, "rows"),
    memory=lambda op, limit: most(limit) * 2 * 4 * 4,
    **WHOLE,
)
def of_many_rows(context: CaseContext, op: str, limit: int) -> None:
    """The op is called with slightly fewer than, exactly, and more than 2^24 rows, which repeat those of a small call.
    Each row of the result equals that of the small call."""
    sliced = replace(_ROWS[op], grows=tuple(Grows((2,)) for _ in _ROWS[op].grows), grad=False)
    if sliced.shared:
        sliced = replace(sliced, shared=((2,),) if len(sliced.shared) == 1 else ((3, 2), (3,)))
    if op in _CALLS_OF_TWO_FEATURES:
        sliced = replace(sliced, call=_CALLS_OF_TWO_FEATURES[op])
    at_each_size(
        context,
        lambda count: _check(context, sliced, count, f"{count:,} rows", False),
        limit,
        "rows",
    )


def _check(context: CaseContext, sliced: Sliced, count: int, at: str, transposed: bool) -> None:
    """Checks the result and the gradients of one call with ``count`` slices."""
    whole = sliced.linear
    periods = [each.period(seed, whole) for seed, each in enumerate(sliced.grows)]
    shared = [_small(shape, seed, whole) for seed, shape in enumerate(sliced.shared, len(periods))]
    known = _known(sliced, periods, shared)
    grows = [
        repeated(context, slices, count, each.dim, innermost=transposed)
        for slices, each in zip(periods, sliced.grows)
    ]
    given = [*grows, *(context.to_device(each) for each in shared)]
    for each in given:
        each.requires_grad_(sliced.grad and each.is_floating_point())
    found = sliced.call(*given)
    text = "a slice in the result of a large call differs from that of a small call"
    close = {"rtol": RTOL, "atol": ATOL}
    check_repeats(context, found.detach(), known[0], text, dim=sliced.out, at=at, **close)
    if not sliced.grad:
        return
    cotangent = _small(known[0].shape, 99, whole)
    found.backward(repeated(context, cotangent, count, sliced.out))
    text = "a slice in a gradient of a large call differs from that of a small call"
    for operand, grow, want in zip(given, sliced.grows, known[1]):
        if want is not None:
            grad = _grad(context, operand)
            check_repeats(context, grad, want, text, dim=grow.dim, at=at, **close)
    rest = _known(sliced, [each[: count % PERIOD] for each in periods], shared)
    text = "the gradient of an operand that all slices share is not the sum over the slices"
    for place, each in enumerate(given[len(grows) :], len(grows)):
        want = count // PERIOD * known[1][place] + rest[1][place]
        grad = _grad(context, each)
        rtol, atol = (0.0, 0.25) if whole else (RTOL, SUM_TOLERANCE * count)
        context.assert_close(grad, want, text, at, rtol=rtol, atol=atol, check_dtype=False)


def _small(shape: tuple[int, ...], seed: int, whole: bool) -> torch.Tensor:
    """Returns a CPU tensor of this shape, filled with numbers between -1 and 1 or, if ``whole``, with integers from -2
    to 2."""
    generator = torch.Generator().manual_seed(1000 + seed)
    numbers = torch.rand(shape, generator=generator) * 2 - 1
    return numbers.mul(2).round() if whole else numbers


def _grad(context: CaseContext, tensor: torch.Tensor) -> torch.Tensor:
    context.check(
        tensor.grad is not None, ("an operand that requires a gradient has none after backward")
    )
    assert tensor.grad is not None
    return tensor.grad


def _known(
    sliced: Sliced, periods: list[torch.Tensor], shared: list[torch.Tensor]
) -> tuple[torch.Tensor, list[Any]]:
    """Computes the op on the CPU in float64, on the ``periods`` (the slices that the large operands repeat) and the
    operands that all slices share. Returns the slices of the result along dimension 0, and the slices of the
    gradients. If there are no slices, gradients of shared operands are 0."""
    moved = [each.movedim(0, grow.dim) for each, grow in zip(periods, sliced.grows)]
    operands = (each.detach() for each in (*moved, *shared))
    given = [each.double() if each.is_floating_point() else each for each in operands]
    if not len(periods[0]):
        return torch.empty(0), [torch.zeros_like(each) for each in given]
    for each in given:
        each.requires_grad_(sliced.grad and each.is_floating_point())
    result = sliced.call(*given)
    slices = result.detach().movedim(sliced.out, 0)
    if slices.is_floating_point():
        slices = slices.float()
    if not sliced.grad:
        return slices, []
    count = len(periods[0])
    cotangent = _small((PERIOD, *slices.shape[1:]), 99, sliced.linear)[:count]
    result.backward(cotangent.double().movedim(0, sliced.out))
    grads: list[Any] = []
    for place, each in enumerate(given):
        grad = each.grad
        if grad is not None and place < len(periods):
            grad = grad.movedim(sliced.grows[place].dim, 0).float()
        grads.append(grad)
    return slices, grads
