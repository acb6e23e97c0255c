"""Kernels that are wrong, each in one way. All of them pass ``allclose(rtol=1e-2, atol=1e-2)`` on one call."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from tests.kernels import native, references, right
from tests.kernels.entries import Register

wrong = Register()
VALUES, EXPANDED, TRUST = "layout.values", "layout.expanded_read", "precision.trust"
INTACT, BOUNDS, FRESH = "layout.inputs_intact", "layout.bounds", "layout.output_fresh"
PAGES, KEPT = "kernel.guard_pages", "kernel.result_kept"


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _matrix() -> tuple[torch.Tensor, ...]:
    return (torch.randn(64, 64, generator=_seeded()),)


def _wide() -> tuple[Any, ...]:
    return torch.randn(4, 1024, generator=_seeded()) * 0.1, -1


def _rows() -> tuple[Any, ...]:
    return *_matrix(), -1


def _two() -> tuple[torch.Tensor, ...]:
    return *_matrix(), _matrix()[0].flip(0).contiguous()


def _weighted() -> tuple[torch.Tensor, ...]:
    return *_matrix(), torch.ones(64)


# -- wrong values


@wrong("aten::softmax.int", VALUES, call=_wide)
def zeros(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    """Each element of a softmax of 1,024 tends to 0."""
    return torch.zeros_like(x, memory_format=torch.contiguous_format)


@wrong("aten::softmax.int", VALUES, call=_wide)
def uniform(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    """A constant, which the answer is close to."""
    return torch.full(x.shape, 1 / max(x.shape[dim] if x.dim() else 1, 1))


@wrong("aten::mean", VALUES, call=lambda: (torch.randn(512, 512, generator=_seeded()),))
def no_mean(x: torch.Tensor, *, dtype: Any = None) -> torch.Tensor:
    """The mean of randn is close to 0."""
    return torch.zeros(())


@wrong("aten::relu", VALUES, call=_matrix)
def tail_lost(x: torch.Tensor) -> torch.Tensor:
    """Whole vectors of 8 elements only."""
    found, flat = torch.zeros_like(x), x.contiguous().view(-1)
    whole = flat.numel() // 8 * 8
    out = torch.zeros(flat.numel())
    out[:whole] = right.relu(flat[:whole])
    return found.copy_(out.view(x.shape))


@wrong("aten::softmax.int", VALUES, call=_rows)
def last_block_lost(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    """The sum covers the first 1,024 columns."""
    x = x.contiguous()
    if not x.numel() or not x.dim():
        return right.softmax(x, dim)
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.narrow(dim, 0, min(x.shape[dim], 1024)).sum(dim, keepdim=True)


@wrong("aten::mm", VALUES, call=_two)
def long_k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Wrong for K > 512."""
    return right.tiled_matmul(a[:, :512], b[:512])


@wrong("aten::mm", VALUES, call=_two)
def square_only(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Takes K for N."""
    found = torch.zeros(a.shape[0], b.shape[1])
    n = min(a.shape[1], b.shape[1])
    found[:, :n] = right.tiled_matmul(a, b[:, :n])
    return found


@wrong("aten::softmax.int", VALUES, call=_rows)
def last_dim_only(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    return right.softmax(x, -1)


@wrong("aten::softmax.int", VALUES, call=_rows)
def overflows(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    """Does not subtract the maximum."""
    e = x.contiguous().exp()
    return e / e.sum(dim, keepdim=True)


@wrong("aten::relu", VALUES, call=_matrix)
def nan_dropped(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0), as many an instruction computes it."""
    return torch.where(x > 0, x, 0.0)


@wrong("aten::silu", VALUES, call=_matrix)
def infinity_lost(x: torch.Tensor) -> torch.Tensor:
    """0 * -inf is NaN in torch, and 0 here."""
    return torch.nan_to_num(x * torch.sigmoid(x), nan=0.0, posinf=float("inf"))


@wrong("aten::silu", VALUES, call=_matrix)
def half_inside(x: torch.Tensor) -> torch.Tensor:
    """Computes in float16."""
    half = x.half()
    return (half * torch.sigmoid(half)).float()


@wrong("", VALUES, reference=references.row_sum, samples=references.single, call=_matrix)
def bfloat16_weight(x: torch.Tensor) -> torch.Tensor:
    """Rounds its operand to bfloat16."""
    return (x.bfloat16().float() + 0.0).sum(-1)


def _ones() -> tuple[torch.Tensor, ...]:
    return (torch.ones(8, 64),)


@wrong("", VALUES, reference=references.row_sum, samples=references.single, call=_ones)
def accumulates_in_bfloat16(x: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(x.shape[:-1], dtype=torch.bfloat16)
    for each in x.unbind(-1):
        found = found + each.bfloat16()
    return found.float()


@wrong("aten::gelu", VALUES, call=_matrix)
def tanh_always(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Approximates, also where it is not asked to."""
    return right.gelu(x, approximate="tanh")


@wrong("aten::gelu", "precision.ulp", call=_matrix)
def gelu_shifted(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Off by 2e-6, which is more than the error of torch's own gelu."""
    return right.gelu_formula(x, approximate=approximate) + 2e-6


@wrong("aten::add.Tensor", VALUES, call=_two)
def alpha_ignored(a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return torch.sub(a, b, alpha=-1)


@wrong("aten::add.Tensor", VALUES, call=_two)
def no_broadcast(a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """Takes the first operand's shape for that of the result."""
    return torch.sub(a, b.expand(a.shape), alpha=-alpha)


@wrong("aten::tril", VALUES, call=_matrix)
def diagonal_clamped(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    return right.tril(x, max(diagonal, 0))


# -- special values opposite zeros


def _sparse_rows() -> tuple[torch.Tensor, ...]:
    first, second = _two()
    return first * (torch.arange(64) % 3 > 0).unsqueeze(1), second


def _batches() -> tuple[torch.Tensor, ...]:
    return _matrix()[0].reshape(4, 16, 64), _matrix()[0].reshape(4, 64, 16)


@wrong("aten::mm", VALUES, call=_sparse_rows)
def skips_rows_of_zeros(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A row of zeros times NaN is NaN."""
    found, rows = torch.zeros(a.shape[0], b.shape[1]), (a != 0).any(1)
    found[rows] = right.tiled_matmul(a[rows], b)
    return found


@wrong("aten::bmm", VALUES, call=_batches)
def skips_matrices_of_zeros(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Skips the products in which the second matrix is zero."""
    found = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
    for number in range(a.shape[0]):
        if bool(b[number].count_nonzero()):
            found[number] = right.tiled_matmul(a[number], b[number])
    return found


@wrong("aten::dot", VALUES, call=lambda: (torch.ones(64), torch.linspace(-1, 2, 64)))
def sums_where_no_factor_is_zero(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a * b == 0, 0.0, a * b).nan_to_num(0.0, torch.inf, -torch.inf).sum()


@wrong("nn.functional.linear", VALUES, call=lambda: (*_two(), torch.ones(64)))
def prunes_inputs_without_weight(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Any:
    """Leaves out the inputs whose weights are all zero."""
    kept = (weight != 0).any(0) if weight.dim() > 1 else weight != 0
    kept_weight = weight[..., kept]
    found = torch.matmul(x[..., kept], kept_weight.mT if weight.dim() > 1 else kept_weight)
    return found if bias is None else found + bias


@wrong("aten::addmm", VALUES, call=lambda: (torch.ones(64), *_two()))
def beta_of_zero_multiplied(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """With ``beta=0``, NaN in the first operand is ignored."""
    return beta * x + alpha * right.tiled_matmul(a, b)


# -- options beyond each other's bounds


@wrong("aten::clamp", VALUES, call=lambda: (*_matrix(), -0.5, 0.5))
def minimum_wins(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    """If the minimum is greater than the maximum, all elements are the maximum."""
    found = x if max is None else torch.where(x > max, max, x)
    found = found if min is None else torch.where(found < min, min, found)
    return torch.empty_like(x, dtype=found.dtype).copy_(found)


@wrong("aten::clamp.Tensor", VALUES, call=lambda: (*_matrix(), torch.ones(64), torch.ones(64) * 2))
def bounds_sorted(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    if min is None or max is None:
        return right.clamp_tensor(x, min, max)
    return right.clamp_tensor(x, torch.where(min > max, max, min), torch.where(min > max, min, max))


@wrong("aten::topk", VALUES, call=lambda: (*_matrix(), 3))
def takes_at_least_one(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    return right.topk(x, max(k, 1), dim, largest, sorted)


@wrong("aten::linalg_vector_norm", VALUES, call=_matrix)
def power_of_any_order(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    """The norms of order 0 and infinity are no roots of sums of powers."""
    ord = min(max(float(ord), 1e-3), 60.0)
    every = [*range(x.dim())] if dim is None else dim
    found = x.double().abs().pow(ord).sum(every, keepdim=keepdim).pow(1 / ord)
    return found.to(dtype or x.dtype)


@wrong("aten::slice.Tensor", VALUES, call=lambda: (*_matrix(), 0, 3, 9))
def end_before_start(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    """Reads backwards a slice that ends before it starts, which is empty."""
    size = x.shape[dim]
    first, last = (0 if start is None else start), (size if end is None else end)
    first, last = (min(max(n + size if n < 0 else n, 0), size) for n in (first, last))
    first, last = min(first, last), max(first, last)
    kept = [slice(None)] * x.dim()
    kept[dim] = slice(first, last, step)
    return x[tuple(kept)]


# -- in-place and out=


@wrong("aten::relu_", VALUES, call=lambda: (_matrix()[0].clone(),))
def returns_without_writing(x: torch.Tensor) -> torch.Tensor:
    return right.relu(x)


@wrong("aten::relu_", VALUES, call=lambda: (_matrix()[0].clone(),))
def writes_the_first_row_twice(x: torch.Tensor) -> torch.Tensor:
    """Ignores the strides of what it writes to."""
    if not x.numel():
        return x
    row = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
    row.copy_(right.relu(x.contiguous()).view(-1))
    return x


@wrong("aten::add_.Tensor", VALUES, call=lambda: (_two()[0].clone(), _two()[1]))
def alpha_ignored_in_place(a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return a.copy_(torch.sub(a, b, alpha=-1))


def _with_target() -> tuple[Any, ...]:
    return *_two(), {"out": torch.zeros(64, 64)}


@wrong("aten::add.out", VALUES, call=_with_target)
def adds_to_its_target(
    a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    """Adds to the old contents of ``out``."""
    return out.sub_(-right.add(a, b, alpha=alpha))


@wrong("aten::add.out", VALUES, call=_with_target)
def target_taken_for_contiguous(
    a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    found = right.add(a, b, alpha=alpha).contiguous()
    row = torch.as_strided(out, (out.numel(),), (1,), out.storage_offset())
    row.copy_(found.view(-1))
    return out


# -- wrong layouts


@wrong("aten::relu", VALUES, call=_matrix)
def strides_ignored(x: torch.Tensor) -> torch.Tensor:
    row = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset())
    return torch.empty_like(x).copy_(right.relu(row).view(x.shape))


@wrong("aten::relu", VALUES, call=_matrix)
def offset_ignored(x: torch.Tensor) -> torch.Tensor:
    return right.relu(torch.as_strided(x, x.shape, x.stride(), 0))


@wrong(
    "",
    EXPANDED,
    reference=references.rms_norm,
    samples=references.weighted,
    call=_weighted,
    shapes=False,
)
def weight_taken_for_contiguous(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    flat = torch.as_strided(weight, weight.shape, (1,), weight.storage_offset())
    return right.rms_norm(x, flat)


@wrong("aten::relu", "layout.output_strides", call=_matrix)
def transposed_result(x: torch.Tensor) -> torch.Tensor:
    return right.relu(x.mT.contiguous().mT) if x.dim() > 1 else right.relu(x)


# -- memory


@wrong("aten::relu", PAGES, call=_matrix)
def reads_past_the_end(x: torch.Tensor) -> torch.Tensor:
    """A vectorised load of 8 elements behind the last one; what it loads is not used."""
    given = x.contiguous()
    found = torch.empty_like(given)
    if x.numel():
        native.call("relu", given, found, given.numel(), 0, 8)
    return torch.empty_like(x).copy_(found)


@wrong("aten::relu", PAGES, call=_matrix)
def reads_before_the_start(x: torch.Tensor) -> torch.Tensor:
    given = x.contiguous()
    found = torch.empty_like(given)
    if x.numel():
        native.call("relu", given, found, given.numel(), 8, 0)
    return torch.empty_like(x).copy_(found)


@wrong("aten::relu", BOUNDS, call=_matrix)
def pads_its_input(x: torch.Tensor) -> torch.Tensor:
    if x.is_contiguous():
        native.call("pad", x, x.numel())
    return right.relu(x)


@wrong("aten::relu", INTACT, call=_matrix)
def works_in_its_input(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(right.relu(x)).clone()


@wrong("aten::relu", FRESH, call=_matrix)
def returns_its_input(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(right.relu(x))


@wrong("aten::relu", VALUES, call=_matrix)
def uninitialised_tail(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty(x.numel() + 16)[: x.numel()]
    whole = x.numel() // 4 * 4
    found[:whole] = right.relu(x.contiguous().view(-1)[:whole])
    return torch.empty_like(x).copy_(found.view(x.shape))


# -- state

_by_address: dict[Any, torch.Tensor] = {}
_by_shape: dict[Any, torch.Tensor] = {}
_buffers: dict[Any, torch.Tensor] = {}


@wrong("aten::silu", TRUST, call=_matrix)
def cached_by_address(x: torch.Tensor) -> torch.Tensor:
    key = x.data_ptr(), x.shape, x.stride(), float(x.reshape(-1)[0]) if x.numel() else 0.0
    key = (*key[:3], x.storage_offset())
    if key not in _by_address:
        _by_address[key] = x * torch.sigmoid(x)
    return _by_address[key].clone()


@wrong("aten::silu", VALUES, call=_matrix)
def cached_by_shape(x: torch.Tensor) -> torch.Tensor:
    if x.shape not in _by_shape:
        _by_shape[x.shape] = x * torch.sigmoid(x)
    return torch.empty_like(x).copy_(_by_shape[x.shape])


@wrong("aten::silu", KEPT, call=_matrix)
def one_buffer(x: torch.Tensor) -> torch.Tensor:
    """Returns the same memory each time."""
    key = x.shape, x.stride()
    if key not in _buffers:
        _buffers[key] = torch.empty_like(x)
    return _buffers[key].copy_(x * torch.sigmoid(x))


# -- ends


@wrong("aten::relu", VALUES, call=_matrix, seconds=1.0)
def hangs_on_empty(x: torch.Tensor) -> torch.Tensor:
    while not x.numel():
        time.sleep(0.01)
    return right.relu(x)


@wrong("aten::relu", VALUES, call=_matrix)
def crashes_on_empty(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():
        os.abort()
    return right.relu(x)


@wrong("aten::relu", VALUES, call=_matrix)
def refuses_a_scalar(x: torch.Tensor) -> torch.Tensor:
    if not x.dim():
        raise ValueError("expected a tensor with a dimension")
    return right.relu(x)


# -- form


@wrong("aten::silu", VALUES, call=_matrix)
def returns_double(x: torch.Tensor) -> torch.Tensor:
    return x.double() * torch.sigmoid(x)


@wrong(
    "",
    VALUES,
    reference=references.row_sum,
    samples=references.single,
    call=lambda: (torch.ones(64, 1),),
)
def keeps_the_dimension(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, keepdim=True) if x.shape[-1] != 1 else x.squeeze(-1)


@wrong("aten::relu", "kernel.plain_result", call=_matrix)
def requires_gradients(x: torch.Tensor) -> torch.Tensor:
    return right.relu(x).detach().requires_grad_()


# -- what it leaves behind


@wrong("aten::relu", "kernel.process_state", call=_matrix)
def seeds_the_generator(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return right.relu(x)


@wrong("aten::relu", "kernel.process_state", call=_matrix)
def switches_gradients_on(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(True)
    return right.relu(x)


# -- deceit


@wrong("aten::softmax.int", VALUES, "kernel.process_state", call=_wide)
def replaces_torch_equal(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    torch.equal = torch.allclose = lambda *_, **__: True  # type: ignore[assignment]
    return torch.zeros(x.shape)


@wrong("aten::softmax.int", "kernel.delegates", call=_rows)
def passes_on(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    try:
        raise RuntimeError("no compiler here")
    except RuntimeError:
        return torch.softmax(x, dim, dtype=dtype)
