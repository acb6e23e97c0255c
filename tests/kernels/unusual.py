"""Kernels that are right in an unusual way: in blocks, in another order of the terms, transposed inside, with buffers of
their own."""

from __future__ import annotations

from typing import Any

import torch

from tests.kernels import plausible, references
from tests.kernels.entries import Register

unusual = Register()

#: The lengths of blocks of keys and of columns, which divide few sizes.
_BLOCK, _COLUMNS = 7, 1009


@unusual("aten::_softmax")
def softmax_in_blocks(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """One pass with a running maximum, as flash attention makes it."""
    if not x.dim():
        return torch.where(x.isfinite(), torch.ones_like(x), torch.nan)
    if not x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    moved = x.movedim(dim, -1)
    largest = torch.full((*moved.shape[:-1], 1), float("-inf"))
    total = torch.zeros_like(largest)
    for block in moved.split(_COLUMNS, -1):
        now = torch.maximum(largest, block.amax(-1, keepdim=True))
        kept = torch.where(largest == float("-inf"), 0.0, (largest - now).exp())
        total = total * kept + torch.where(now == float("-inf"), 0.0, (block - now).exp()).sum(
            -1, keepdim=True
        )
        largest = now
    found = (moved - largest).exp() / total
    return found.movedim(-1, dim).contiguous()


@unusual("nn.functional.layer_norm")
def merged_moments(
    x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    """Mean and variance of blocks of columns, merged as Chan, Golub and LeVeque merge them."""
    flat = x.flatten(x.dim() - len(shape))
    count, mean = 0, torch.zeros(*flat.shape[:-1], 1)
    squares = torch.zeros_like(mean)
    for block in flat.split(_COLUMNS, -1):
        size = block.shape[-1]
        own = block.mean(-1, keepdim=True)
        apart, together = own - mean, count + size
        squares = squares + ((block - own) ** 2).sum(-1, keepdim=True)
        squares = squares + apart * apart * (count * size / max(together, 1))
        mean, count = mean + apart * (size / max(together, 1)), together
    found = ((flat - mean) * torch.rsqrt(squares / max(count, 1) + eps)).reshape(x.shape)
    found = found if weight is None else found * weight
    return (found if bias is None else found + bias).contiguous()


@unusual("aten::mm")
def transposed_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The transposed product, in blocks of terms from the last to the first."""
    total = torch.zeros(b.shape[1], a.shape[0])
    for first, second in zip(reversed(a.split(16, 1)), reversed(b.split(16, 0))):
        total += (second.mT[:, None] * first).sum(-1)
    return total.mT.contiguous()


@unusual("aten::cumsum")
def scan_by_doubling(x: torch.Tensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """Adds elements at a distance of 1, 2, 4, and so on, as Hillis and Steele do."""
    x = (x if dtype is None else x.to(dtype)).contiguous()
    if not x.dim():
        return x.clone()
    found, step, size = x.clone(), 1, x.shape[dim]
    while step < size:
        moved = found.clone()
        moved.narrow(dim, step, size - step).add_(found.narrow(dim, 0, size - step))
        found, step = moved, 2 * step
    return found


@unusual("nn.functional.scaled_dot_product_attention")
def attention_from_the_last_key(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """In blocks of keys, from the last to the first."""
    if dropout_p or enable_gqa:
        raise NotImplementedError("no dropout, no grouped queries")
    scores = torch.matmul(q, k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    masks = [torch.ones(scores.shape[-2:], dtype=torch.bool).tril()] if is_causal else []
    for mask in (*masks, attn_mask):
        if mask is not None and mask.dtype == torch.bool:
            # Added as torch adds it: NaN in a key that is not seen reaches the result.
            mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        scores = scores if mask is None else scores + mask
    largest = scores.new_full((*scores.shape[:-1], 1), float("-inf"))
    total = torch.zeros_like(largest)
    weighted = torch.zeros(
        *torch.broadcast_shapes(scores.shape[:-1], (*v.shape[:-2], 1)), v.shape[-1]
    )
    blocks = [*zip(scores.split(_BLOCK, -1), v.split(_BLOCK, -2))]
    for block, values in reversed(blocks):
        if not block.shape[-1]:
            continue
        now = torch.maximum(largest, block.amax(-1, keepdim=True))
        kept = torch.where(largest == float("-inf"), 0.0, (largest - now).exp())
        weights = torch.where(now == float("-inf"), 0.0, (block - now).exp())
        total = total * kept + weights.sum(-1, keepdim=True)
        weighted = weighted * kept + torch.matmul(weights, values)
        largest = now
    return torch.where(total == 0, 0.0, weighted / total)


@unusual("nn.functional.scaled_dot_product_attention")
def attention_that_overwrites_removed_scores(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """NaN in a key that is not seen does not reach the result, as it does where minus infinity is added."""
    if dropout_p or enable_gqa:
        raise NotImplementedError("no dropout, no grouped queries")
    return plausible.masked_attention(q, k, v, attn_mask, scale, is_causal=is_causal)


@unusual("aten::conv2d", strides=False)
def sum_of_shifts(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """A product of matrices for each position in the window; channels are last inside."""
    (sy, sx), (py, px), (dy, dx) = (_pair(each) for each in (stride, padding, dilation))
    single = x.dim() == 3
    x = x.unsqueeze(0) if single else x
    padded = torch.nn.functional.pad(x, (px, px, py, py)).double()
    height = (padded.shape[2] - dy * (weight.shape[2] - 1) - 1) // sy + 1
    width = (padded.shape[3] - dx * (weight.shape[3] - 1) - 1) // sx + 1
    images = padded.unflatten(1, (groups, -1))
    filters = weight.double().unflatten(0, (groups, -1))
    total = torch.zeros(x.shape[0], height, width, groups, filters.shape[1], dtype=torch.float64)
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            seen = images[..., row * dy :: sy, column * dx :: sx][..., :height, :width]
            total += torch.einsum("bgcyx,goc->byxgo", seen, filters[..., row, column])
    found = total.flatten(3).permute(0, 3, 1, 2)
    found = found if bias is None else found + bias.double()[:, None, None]
    found = found.to(x.dtype).contiguous()
    return found.squeeze(0) if single else found


def _pair(value: Any) -> tuple[int, int]:
    first, *rest = (value,) if isinstance(value, int) else value
    return first, (rest or [first])[0]


@unusual("", reference=references.row_sum, samples=references.single)
def tree_sum(x: torch.Tensor) -> torch.Tensor:
    """Halves are added until one element is left."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        odd, x = x[..., 2 * half :], x[..., :half] + x[..., half : 2 * half]
        x = torch.cat([x, odd], -1)
    return x.sum(-1)


_SCRATCH: dict[int, torch.Tensor] = {}


@unusual("aten::silu")
def own_buffer(x: torch.Tensor) -> torch.Tensor:
    """Works in place in a buffer that it keeps, and returns a copy of it."""
    buffer = _SCRATCH.setdefault(x.numel(), torch.empty(x.numel()))
    found = torch.empty_like(x)
    work = buffer.view(x.shape).copy_(x)
    work.neg_().exp_().add_(1).reciprocal_()
    return torch.where(x == float("-inf"), torch.nan, found.copy_(x * work))


@unusual("", reference=references.rms_norm, samples=references.weighted, shapes=False)
def scaled_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Divides by the largest element first, so that no square overflows."""
    wide = x.double()
    largest = wide.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    ratio = wide / largest
    root = ((ratio * ratio).mean(-1, keepdim=True) + 1e-6 / (largest * largest)).rsqrt()
    return (ratio * root * weight).to(x.dtype)


@unusual("nn.functional.normalize")
def normalised_in_two_steps(
    x: torch.Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> torch.Tensor:
    return plausible.divided_by_norm(x, p, dim, eps)


@unusual("aten::topk")
def one_largest_at_a_time(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """Takes the largest element k times."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    rest, values, indices = x.movedim(dim, -1).clone(), [], []
    left = torch.ones(rest.shape, dtype=torch.bool)
    for _ in range(k):
        order = torch.where(rest.isnan(), float("inf"), rest)
        rank = torch.where(left, order if largest else -order, float("-inf"))
        rank = torch.where(left & rest.isnan(), float("inf") if largest else float("-inf"), rank)
        first = rest.isnan() & left if largest else left & ~rest.isnan()
        first = torch.where(first.any(-1, keepdim=True), first, left)
        rank = torch.where(first, rank, float("-inf"))
        place = (
            (first & (rank == rank.amax(-1, keepdim=True))).to(torch.int8).argmax(-1, keepdim=True)
        )
        values.append(rest.gather(-1, place))
        indices.append(place)
        left.scatter_(-1, place, False)
    shape = (*rest.shape[:-1], 0)
    joined = torch.cat([rest.new_empty(shape), *values], -1)
    places = torch.cat([torch.empty(shape, dtype=torch.int64), *indices], -1)
    return joined.movedim(-1, dim).contiguous(), places.movedim(-1, dim).contiguous()


@unusual("aten::_log_softmax")
def logarithm_of_the_sum(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """The sum of exponentials in double precision, added in reverse order."""
    if not x.dim():
        return torch.where(x.isfinite(), torch.zeros_like(x), torch.nan)
    if not x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    shifted = x.double() - x.amax(dim, keepdim=True)
    return (shifted - shifted.exp().flip(dim).sum(dim, keepdim=True).log()).float().contiguous()


@unusual("", reference=references.row_sum, samples=references.single, dtypes=("bfloat16",))
def columns_in_single_precision(x: torch.Tensor) -> torch.Tensor:
    """A column at a time, in a float32 accumulator."""
    total = torch.zeros(x.shape[:-1])
    for column in x.unbind(-1):
        total += column
    return total.to(x.dtype)
