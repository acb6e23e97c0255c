"""Kernels with mistakes that a careful author or a language model makes in the ops of a network: they pass on ordinary
inputs, and each is wrong in one way."""

from __future__ import annotations

from typing import Any

import torch

from tests.kernels import references, right
from tests.kernels.entries import Register

plausible = Register()
VALUES = "layout.values"


# -- norms


@plausible("nn.functional.layer_norm", VALUES)
def variance_in_one_pass(
    x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    """The mean of squares less the square of the mean cancels where the mean is large."""
    dims = [*range(-len(shape), 0)]
    mean = x.mean(dims, keepdim=True)
    variance = ((x * x).mean(dims, keepdim=True) - mean * mean).clamp(min=0)
    return _affine((x - mean) * torch.rsqrt(variance + eps), weight, bias)


@plausible("nn.functional.layer_norm", VALUES)
def epsilon_beside_the_root(
    x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    """Adds eps to the standard deviation, and not to the variance."""
    dims = [*range(-len(shape), 0)]
    centred = x - x.mean(dims, keepdim=True)
    deviation = (centred * centred).mean(dims, keepdim=True).sqrt()
    return _affine(centred / (deviation + eps), weight, bias)


@plausible("nn.functional.rms_norm", VALUES)
def another_default_epsilon(
    x: torch.Tensor, shape: Any, weight: Any = None, eps: Any = None
) -> torch.Tensor:
    """Adds 1e-5 to the mean of squares by default, in place of the machine epsilon."""
    return rms_norm(x, shape, weight, 1e-5 if eps is None else eps)


def rms_norm(x: torch.Tensor, shape: Any, weight: Any, eps: float) -> torch.Tensor:
    dims = [*range(-len(shape), 0)]
    found = x * torch.rsqrt((x * x).mean(dims, keepdim=True) + eps)
    return (found if weight is None else found * weight).contiguous()


@plausible("nn.functional.normalize", VALUES)
def epsilon_of_other_norms(
    x: torch.Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-8, out: Any = None
) -> torch.Tensor:
    """Divides by at least 1e-8 by default, in place of 1e-12."""
    return divided_by_norm(x, p, dim, eps)


def divided_by_norm(x: torch.Tensor, p: float, dim: int, eps: float) -> torch.Tensor:
    return x / torch.linalg.vector_norm(x, p, dim, keepdim=True).clamp(min=eps).expand_as(x)


@plausible("nn.functional.cosine_similarity", VALUES)
def epsilon_of_the_product(
    a: torch.Tensor, b: torch.Tensor, dim: int = 1, eps: float = 1e-6
) -> torch.Tensor:
    """Divides by norms of at least 1e-6 by default, in place of 1e-8."""
    return torch.nn.functional.cosine_similarity(a, b, dim, eps)


def _affine(x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).contiguous()


@plausible("aten::native_batch_norm", VALUES)
def biased_running_variance(
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """The running variance gets the biased variance, with which the batch is normalised."""
    given = (running_mean, running_var)
    before = [None if each is None else each.clone() for each in given]
    found = torch.ops.aten.native_batch_norm(x, weight, bias, *given, training, momentum, eps)
    if training and running_var is not None:
        dims = [each for each in range(x.dim()) if each != 1]
        biased = x.double().var(dims, correction=0).to(running_var.dtype)
        running_var.copy_((1 - momentum) * before[1] + momentum * biased)
    return found


# -- losses


def _log_probabilities(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Returns the negative log probability of each target, of which none may be less than 0."""
    dim = 1 if x.dim() > 1 else 0
    shifted = x - x.amax(dim, keepdim=True)
    logs = shifted - shifted.exp().sum(dim, keepdim=True).log()
    return -logs.gather(dim, target.unsqueeze(dim)).squeeze(dim)


def _sum_of_kept(x: torch.Tensor, target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Returns the sum of the losses of the targets that are not ignored."""
    kept = target != ignore_index
    return torch.where(kept, _log_probabilities(x, target.where(kept, 0)), 0.0).sum()


def _refuse_rare_options(
    target: torch.Tensor, weight: Any, reduction: str, smoothing: float
) -> None:
    if target.is_floating_point() or weight is not None or smoothing or reduction != "mean":
        raise NotImplementedError("only the mean over class indices")


@plausible("nn.functional.cross_entropy", VALUES)
def divides_by_all_targets(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The mean counts ignored targets, too."""
    _refuse_rare_options(target, weight, reduction, label_smoothing)
    return _sum_of_kept(x, target, ignore_index) / target.numel()


@plausible("nn.functional.cross_entropy", VALUES)
def zero_if_all_are_ignored(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The count of targets is at least 1, where torch divides 0 by 0."""
    _refuse_rare_options(target, weight, reduction, label_smoothing)
    count = (target != ignore_index).sum()
    return _sum_of_kept(x, target, ignore_index) / count.clamp(min=1)


@plausible("nn.functional.kl_div", VALUES)
def logarithm_of_zero(
    x: torch.Tensor,
    target: torch.Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> torch.Tensor:
    """A target of 0 contributes 0 * log(0), which is NaN."""
    logs = target if log_target else target.log()
    found = (target.exp() if log_target else target) * (logs - x)
    if reduction == "none":
        return found
    total = found.sum()
    if reduction == "batchmean":
        return total / (x.shape[0] if x.dim() else 1)
    return total / found.numel() if reduction == "mean" else total


@plausible("nn.functional.smooth_l1_loss", VALUES)
def divides_by_beta(
    x: torch.Tensor,
    target: torch.Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> torch.Tensor:
    """A beta of 0 makes the loss that of L1; here 0 / 0 for equal elements."""
    size = (x - target).abs()
    found = torch.where(size > beta, size - 0.5 * beta, 0.5 * size * size / torch.tensor(beta))
    return found if reduction == "none" else getattr(found, reduction)()


# -- attention


def _attention(
    q: Any, k: Any, v: Any, mask: Any, scale: float, early: bool = False
) -> torch.Tensor:
    """``early`` adds the mask before the scores are scaled."""
    scores = torch.matmul(q, k.mT)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    if mask is None:
        scores = scores * scale
    else:
        scores = (scores + mask) * scale if early else scores * scale + mask
    weights = right.softmax(scores, -1)
    masked = (scores == float("-inf")).all(-1, keepdim=True)
    return torch.matmul(torch.where(masked, 0.0, weights), v)


def _causal(queries: int, keys: int, offset: int) -> torch.Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(offset)


@plausible("nn.functional.scaled_dot_product_attention", VALUES)
def causal_from_the_end(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The causal mask is aligned with the last key, as for a cache, and not with the first."""
    if dropout_p or enable_gqa:
        raise NotImplementedError("no dropout, no grouped queries")
    if is_causal:
        attn_mask = _causal(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2])
    return _attention(q, k, v, attn_mask, q.shape[-1] ** -0.5 if scale is None else scale)


@plausible("nn.functional.scaled_dot_product_attention", VALUES)
def mask_before_the_scale(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """A mask of numbers is scaled together with the scores."""
    if dropout_p or enable_gqa:
        raise NotImplementedError("no dropout, no grouped queries")
    if is_causal:
        attn_mask = _causal(q.shape[-2], k.shape[-2], 0)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return _attention(q, k, v, attn_mask, factor, early=True)


@plausible("nn.functional.scaled_dot_product_attention", VALUES)
def nan_as_a_mask(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Beside a mask, a score that is NaN counts as removed, too."""
    if dropout_p or enable_gqa:
        raise NotImplementedError("no dropout, no grouped queries")
    return masked_attention(q, k, v, attn_mask, scale, is_causal=is_causal, nan_is_removed=True)


def masked_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    *,
    is_causal: bool,
    nan_is_removed: bool = False,
) -> torch.Tensor:
    """Overwrites the removed scores."""
    scores = torch.matmul(q, k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    removed = torch.zeros(scores.shape, dtype=torch.bool)
    if is_causal:
        removed |= ~_causal(q.shape[-2], k.shape[-2], 0)
    if mask is not None and mask.dtype == torch.bool:
        removed |= ~mask
    elif mask is not None:
        scores, removed = scores + mask, removed | (mask == float("-inf"))
    if nan_is_removed and (is_causal or mask is not None):
        removed |= scores.isnan()
    weights = right.softmax(scores.masked_fill(removed, float("-inf")), -1)
    return torch.matmul(weights.masked_fill(removed.all(-1, keepdim=True), 0.0), v)


@plausible("nn.functional.scaled_dot_product_attention", VALUES)
def heads_in_turn(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Of grouped queries, each query in turn gets the next key, and not each group its key."""
    if dropout_p:
        raise NotImplementedError("no dropout")
    if enable_gqa:
        k, v = (each.repeat(*_times(each, q.shape[-3] // each.shape[-3])) for each in (k, v))
    if is_causal:
        attn_mask = _causal(q.shape[-2], k.shape[-2], 0)
    return _attention(q, k, v, attn_mask, q.shape[-1] ** -0.5 if scale is None else scale)


def _times(x: torch.Tensor, groups: int) -> list[int]:
    return [1] * (x.dim() - 3) + [groups, 1, 1]


@plausible("", VALUES, reference=references.rotary, samples=references.rotated)
def positions_in_half_precision(x: torch.Tensor) -> torch.Tensor:
    """The positions are numbers of bfloat16, which has no odd number above 256."""
    positions = torch.arange(x.shape[-2], dtype=torch.bfloat16).double()
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
    first, second = x[..., :half].double(), x[..., half:].double()
    cosine, sine = angles.cos(), angles.sin()
    found = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat(found, -1).to(x.dtype)


# -- sums and scans


@plausible("aten::cumsum", VALUES)
def carry_of_one_block(x: torch.Tensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """Each block of 1,024 adds the sum of the block before, and not of all blocks before."""
    x = x.double() if dtype is None else x.to(dtype)
    if not x.dim():
        return x.float() if dtype is None else x
    found = [each.cumsum(dim) for each in x.split(1024, dim)]
    last = [each.narrow(dim, -1, 1) for each in found[:-1] if each.shape[dim]]
    carried = [each + carry for each, carry in zip(found[1:], last)]
    joined = torch.cat([found[0], *carried], dim)
    return joined.float() if dtype is None else joined


@plausible("", VALUES, reference=references.row_mean, samples=references.single)
def mean_of_means(x: torch.Tensor) -> torch.Tensor:
    """The mean of the means of blocks of 1,024, of which the last may be shorter."""
    means = [each.double().mean(-1) for each in x.split(1024, -1)]
    return torch.stack(means).mean(0).to(x.dtype)


@plausible("aten::_softmax", VALUES)
def maximum_from_zero(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """The running maximum begins at 0, so that a row of very negative numbers becomes 0 / 0."""
    if not x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    wide = x.double()
    e = (wide - wide.amax(dim, keepdim=True).clamp(min=0)).exp().float()
    return (e / e.sum(dim, keepdim=True)).contiguous()


@plausible("aten::argmax", VALUES)
def last_of_equal(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
    """Of equal largest elements, the last one; torch documents the first."""
    if dim is None:
        flat = last_of_equal(x.reshape(-1), 0)
        return flat.reshape([1] * x.dim()) if keepdim else flat
    if not x.dim():
        return torch.zeros((), dtype=torch.int64)
    found = x.shape[dim] - 1 - torch.argmax(x.flip(dim), dim, keepdim=keepdim)
    return found


@plausible("aten::topk", VALUES)
def nan_is_smallest(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """Sorts the negated elements, among which NaN is the largest again."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, indices = torch.sort(-x if largest else x, dim=dim, stable=True)
    values = -values if largest else values
    return tuple(each.narrow(dim, 0, k).contiguous() for each in (values, indices))


@plausible("aten::scatter_reduce.two", VALUES)
def mean_counts_itself(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Without ``include_self``, the mean still counts the element that is replaced."""
    if reduce != "mean" or include_self or not x.dim():
        return torch.ops.aten.scatter_reduce.two(
            x.double(), dim, index, source.double(), reduce, include_self=include_self
        ).to(x.dtype)
    total = torch.zeros_like(x).scatter_add(dim, index, source)
    count = torch.ones_like(x).scatter_add(dim, index, torch.ones_like(source))
    return torch.where(count > 1, total / count, x)


# -- convolution, pooling, products


@plausible("aten::max_pool2d_with_indices", VALUES)
def pads_with_zero(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """The padding is 0, which is larger than a negative pixel."""
    if ceil_mode:
        raise NotImplementedError("no ceil_mode")
    values, indices = torch.ops.aten.max_pool2d_with_indices(
        x, kernel_size, stride, padding, dilation, ceil_mode
    )
    rows, columns = (padding, padding) if isinstance(padding, int) else (*padding, *padding)[:2]
    padded = torch.nn.functional.pad(x, (columns, columns, rows, rows))
    again, _ = torch.ops.aten.max_pool2d_with_indices(padded, kernel_size, stride, 0, dilation)
    return torch.where(values.isnan(), values, again), indices


@plausible("aten::conv2d", VALUES)
def groups_in_turn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    """Output channel n belongs to group n % groups, where the channels of a group are neighbours."""
    order = torch.arange(weight.shape[0]).view(-1, groups).mT.reshape(-1)
    back = torch.argsort(order)
    found = torch.conv2d(
        x.double(), weight[order].double(), None, stride, padding, dilation, groups
    ).index_select(-3, back)
    found = found if bias is None else found + bias.double()[:, None, None]
    return found.to(x.dtype)


@plausible("", VALUES, reference=references.int_mm, samples=references.bytes_, dtypes=("int8",))
def integers_in_single_precision(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The sum is a float32, which has no odd number above 2^24."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k, None].float() * b[k].float()
    return total.to(torch.int32)


@plausible("aten::addmm", VALUES)
def nan_times_zero(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """With a beta of 0 the first operand must not be read."""
    return (beta * x + alpha * right.tiled_matmul(a, b)).contiguous()


# -- activations


@plausible("aten::gelu", "precision.ulp")
def rounded_constant(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """0.0447 in place of 0.044715."""
    wide = x.double()
    if approximate == "tanh":
        inner = 0.7978845608028654 * (wide + 0.0447 * wide**3)
        return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
    return (wide * 0.5 * torch.erfc(-wide * 0.7071067811865476)).to(x.dtype)


@plausible("aten::softplus", VALUES)
def threshold_without_beta(x: torch.Tensor, beta: Any = 1, threshold: Any = 20) -> torch.Tensor:
    """Compares x with the threshold, and not beta * x."""
    wide = x.double()
    found = torch.logaddexp(torch.zeros((), dtype=wide.dtype), wide * beta) / beta
    return torch.where(wide > threshold, wide, found).to(x.dtype)
