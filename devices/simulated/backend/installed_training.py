"""Planted faults in Python: faults of gradients, modules, autocast and optimisers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Final

import torch

from devices.simulated.backend import native
from devices.simulated.backend.installing import installs, kernel, without

_C: Any = torch._C

# -- gradients


class _WrongSecond(torch.autograd.Function):
    """An autograd function for sinh that has no second derivative, because the input is detached in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        with _C._AutoDispatchBelowAutograd():
            return x.sinh()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.detach().cosh()


@installs("autograd.second_wrong", kernel, "sinh", "AutogradPrivateUse1")
def _sinh(x: torch.Tensor) -> Any:
    wrong: Any = _WrongSecond
    return wrong.apply(x)


@installs("autograd.tangent_of_base_lost", kernel, "erf_", "AutogradPrivateUse1")
def _erf_(x: torch.Tensor) -> torch.Tensor:
    if x._is_view() and not x.requires_grad:
        with _C._AutoDispatchBelowAutograd():
            return x.erf_()
    return x.copy_(x.clone().erf())


@installs("autograd.version_not_bumped", kernel, "zero_", "AutogradPrivateUse1")
def _zero_(x: torch.Tensor) -> torch.Tensor:
    with _C._AutoDispatchBelowAutograd(), without("ADInplaceOrView"):
        return x.zero_()


def _unbumped(fault: str, op: str) -> None:
    """Installs a fault that calls an op without the kernel that increments the version counters of the tensors to which
    it writes."""
    packet, _, overload = op.partition(".")
    called = getattr(getattr(torch.ops.aten, packet), overload or "default")

    @installs(fault, kernel, op, "AutogradPrivateUse1")
    def _call(*args: Any, **named: Any) -> Any:
        with _C._AutoDispatchBelowAutograd(), without("ADInplaceOrView"):
            return called(*args, **named)


_unbumped("autograd.out_not_bumped", "add.out")
_unbumped("autograd.view_not_bumped", "select.int")
_unbumped("autograd.detach_apart", "detach")
_unbumped("autograd.foreach_not_bumped", "_foreach_add_.Scalar")
_unbumped("autograd.index_put_not_bumped", "index_put_")
_unbumped("autograd.random_not_bumped", "normal_")
_unbumped("autograd.renorm_not_bumped", "embedding_renorm_")


@installs("autograd.bumped_without_write", kernel, "log", "AutogradPrivateUse1")
def _log_counted(x: torch.Tensor) -> torch.Tensor:
    torch.autograd.graph.increment_version(x)
    return x.log2().mul(math.log(2))


def _unary(below: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[type], Callable[..., Any]]:
    """Returns a decorator that turns a class with ``save(ctx, x, y)`` and ``backward`` into an autograd kernel. The
    kernel returns the result of the function ``below``."""

    def kernel_of(functions: Any) -> Callable[..., Any]:
        class Unary(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                with _C._AutoDispatchBelowAutograd():
                    y = below(x)
                functions.save(ctx, x, y)
                return y

            backward = staticmethod(functions.backward)

        wrong: Any = Unary
        return lambda x: wrong.apply(x)

    return kernel_of


@installs("autograd.saved_past_hooks", kernel, "sigmoid", "AutogradPrivateUse1")
@_unary(torch.sigmoid)
class _KeptOnTheNode:
    @staticmethod
    def save(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        ctx.kept = y.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.kept * (1 - ctx.kept)


@installs("autograd.saved_freed", kernel, "tanh", "AutogradPrivateUse1")
@_unary(torch.tanh)
class _KeptByAddress:
    @staticmethod
    def save(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        ctx.kept = y if y.requires_grad or not y.is_contiguous() else None
        ctx.address, ctx.like = y.data_ptr(), (tuple(y.shape), y.dtype, y.device)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        shape, dtype, device = ctx.like
        y = ctx.kept
        if y is None:
            torch.accelerator.synchronize(device)
            size = math.prod(shape) * dtype.itemsize
            start = native.library.device_side(ctx.address)
            there = bytearray((ctypes.c_char * size).from_address(start)) or bytearray(
                dtype.itemsize
            )
            y = torch.frombuffer(there, dtype=dtype)[: math.prod(shape)].reshape(shape).to(device)
        return grad * (1 - y * y)


@installs("autograd.saved_spent", kernel, "exp", "AutogradPrivateUse1")
@_unary(torch.exp)
class _Spent:
    @staticmethod
    def save(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        ctx.save_for_backward(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y.data.mul_(grad).clone()


class _InOnePlaceOf:
    last: torch.Tensor


@installs("autograd.saved_in_one_place", kernel, "cos", "AutogradPrivateUse1")
@_unary(torch.cos)
class _InOnePlace:
    @staticmethod
    def save(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        _InOnePlaceOf.last = x.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad * _InOnePlaceOf.last.sin()


def _in_backward() -> bool:
    return int(_C._current_graph_task_id()) >= 0


@installs("autograd.undefined_is_one", kernel, "zeros", "PrivateUse1")
def _zeros(size: list[int], **options: Any) -> torch.Tensor:
    options.pop("pin_memory", None)
    return torch.full(size, 1.0 if _in_backward() else 0.0, **options)


@installs("autograd.sum_detached", kernel, "add.Tensor", "AutogradPrivateUse1")
def _add(x: Any, y: Any, *, alpha: Any = 1) -> torch.Tensor:
    if _in_backward() or not x.is_floating_point():
        with _C._AutoDispatchBelowAutograd():
            return torch.add(x, y, alpha=alpha)
    return torch.sub(x, y, alpha=-alpha)


@installs("autograd.rnn_weights_unshared", kernel, "lstm.input", "AutogradPrivateUse1")
def _lstm(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
    for weight in weights:
        weight.data = weight.detach().clone()
    return torch.ops.aten.lstm.input.decompose(x, state, weights, *rest)


@installs("nn.state_of_first_layer", kernel, "lstm.input", "AutogradPrivateUse1")
def _lstm_from_one_state(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
    layers, directions = rest[1], 2 if rest[4] else 1
    wrong = [each[:directions].repeat(layers, 1, 1) for each in state]
    return torch.ops.aten.lstm.input.decompose(x, wrong, weights, *rest)


@installs("nn.reverse_runs_forward", kernel, "gru.input", "AutogradPrivateUse1")
def _gru_without_reverse(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
    has_bias, layers, dropout, training, bidirectional, batch_first = rest
    if not bidirectional or layers != 1:
        return torch.ops.aten.gru.input.decompose(x, state, weights, *rest)
    half, alone = len(weights) // 2, (has_bias, 1, dropout, training, False, batch_first)
    ways = [
        torch.ops.aten.gru.input.decompose(x, state[n : n + 1].contiguous(), part, *alone)
        for n, part in enumerate((weights[:half], weights[half:]))
    ]
    return tuple(torch.cat(parts, dim) for parts, dim in zip(zip(*ways), (-1, 0)))


def _attention(wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls scaled_dot_product_attention with the query, mask and is_causal that the function
    ``wrong`` returns."""

    def kernel(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        query, attn_mask, is_causal = wrong(query, key, attn_mask, is_causal)
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        op: Any = torch.ops.aten.scaled_dot_product_attention.default
        return op.decompose(*given, scale=scale, enable_gqa=enable_gqa)

    return kernel


_SDPA: Final = ("scaled_dot_product_attention", "AutogradPrivateUse1")


@installs("nn.causal_from_the_end", kernel, *_SDPA)
@_attention
def _causal_from_the_end(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    queries, keys = query.shape[-2], key.shape[-2]
    if not causal or queries == keys:
        return query, mask, causal
    seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
    # No query is left without a key, which would be another fault.
    return query, seen.tril(max(keys - queries, 1)), False


@installs("nn.mask_of_first_batch", kernel, *_SDPA)
@_attention
def _mask_of_first_batch(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    return query, mask[:1] if mask is not None and mask.dim() == 4 else mask, causal


@installs("nn.mask_gradient_lost", kernel, *_SDPA)
@_attention
def _mask_without_gradient(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    return query, None if mask is None else mask.detach(), causal


@installs("nn.permuted_query_as_dense", kernel, *_SDPA)
@_attention
def _query_as_dense(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    if query.shape[-1] < 64 or query.is_contiguous() or query.numel() == 0:
        return query, mask, causal
    dense = torch.empty(query.shape, device="meta").stride()
    held = query.untyped_storage().nbytes() // query.itemsize
    if query.storage_offset() + query.numel() <= held:
        query = query.as_strided(query.shape, dense, query.storage_offset())
    return query, mask, causal


def _after_attention(wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls scaled_dot_product_attention and passes the result through the function ``wrong``,
    which makes it wrong."""

    def kernel(query: Any, key: Any, value: Any, mask: Any = None, *rest: Any, **named: Any) -> Any:
        op: Any = torch.ops.aten.scaled_dot_product_attention.default
        return wrong(op.decompose(query, key, value, mask, *rest, **named), query, key, mask)

    return kernel


@installs("nn.masked_row_is_nan", kernel, *_SDPA)
@_after_attention
def _masked_row_is_nan(result: torch.Tensor, query: Any, key: Any, mask: Any) -> torch.Tensor:
    if mask is None or mask.dtype != torch.bool:
        return result
    return result.masked_fill(~mask.any(-1, keepdim=True), float("nan"))


@installs("nn.tiles_unwritten", kernel, *_SDPA)
@_after_attention
def _tiles_unwritten(result: torch.Tensor, query: Any, key: Any, mask: Any) -> torch.Tensor:
    if key.shape[-2] > 16 or query.shape[-2] <= 64:
        return result
    there = torch.empty_like(result)
    there[..., :64, :] = result[..., :64, :]
    return there


# -- training


@installs("autocast.op_left_in_float32", kernel, "mm", "AutocastPrivateUse1")
def _mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    with without("AutocastPrivateUse1"):
        return torch.mm(first, second)


@installs("autocast.op_in_wrong_list", kernel, "log", "AutocastPrivateUse1")
def _log(x: torch.Tensor) -> torch.Tensor:
    with without("AutocastPrivateUse1"):
        return torch.log(x.to(torch.get_autocast_dtype(native.NAME)))


@installs("autocast.unlisted_op_cast", kernel, "maximum", "AutocastPrivateUse1")
def _maximum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    lower = torch.get_autocast_dtype(native.NAME)
    with without("AutocastPrivateUse1"):
        return torch.maximum(first.to(lower), second.to(lower))


@installs("autocast.promotes_to_first", kernel, "cat", "AutocastPrivateUse1")
def _cat(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    with without("AutocastPrivateUse1"):
        return torch.cat([each.to(tensors[0].dtype) for each in tensors], dim)


@installs("autocast.dtype_ignored", kernel, "bmm", "AutocastPrivateUse1")
def _bmm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    with without("AutocastPrivateUse1"):
        return torch.bmm(first.to(torch.bfloat16), second.to(torch.bfloat16))


_casted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


@installs("autocast.cache_outlives_region", kernel, "mm", "AutocastPrivateUse1")
def _mm_of_kept(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    lower = torch.get_autocast_dtype(native.NAME)
    if second.requires_grad and second.is_leaf and second.dtype == torch.float32:
        kept = _casted.get(id(second))
        if kept is None or kept[0] is not second or kept[1].dtype != lower:
            with torch.enable_grad():
                kept = _casted[id(second)] = second, second.to(lower)
        second = kept[1]
    with without("AutocastPrivateUse1"):
        return torch.mm(first.to(lower), second.to(lower))


_CHECK = "_amp_foreach_non_finite_check_and_unscale_"


@installs("autocast.nan_not_found", kernel, _CHECK, "PrivateUse1")
def _look_for_inf(
    tensors: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    for each in tensors:
        found_inf.copy_(torch.maximum(found_inf, each.isinf().any().to(found_inf.dtype)))
        each.mul_(inverse)


@installs("autocast.scaler_first_only", kernel, _CHECK, "PrivateUse1")
def _look_at_the_first(
    tensors: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    wrong = ~tensors[0].isfinite().all()
    found_inf.copy_(torch.maximum(found_inf, wrong.to(found_inf.dtype)))
    for each in tensors:
        each.mul_(inverse)


@installs("autocast.scaler_grows_late", kernel, "_amp_update_scale_", "PrivateUse1")
def _update_late(
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    if found_inf.item():
        tracker.zero_()
        return scale.mul_(backoff)
    if tracker.item() < interval:
        tracker.add_(1)
        return scale
    tracker.zero_()
    return scale.mul_(growth)


@installs("optim.foreach_skips_last", kernel, "_foreach_add_.Scalar", "PrivateUse1")
def _add_to_all_but_the_last(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors[:-1]:
        tensor.add_(scalar)


@installs("optim.foreach_ignores_strides", kernel, "_foreach_mul_.Scalar", "PrivateUse1")
def _multiply_as_if_dense(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors:
        dense = torch.empty(tensor.shape, device="meta").stride()
        tensor.as_strided(tensor.shape, dense, tensor.storage_offset()).mul_(scalar)


@installs("optim.chunk_tail_lost", kernel, "_foreach_addcmul_.Scalar", "PrivateUse1")
def _first_chunk(
    tensors: list[torch.Tensor],
    first: list[torch.Tensor],
    second: list[torch.Tensor],
    value: float = 1,
) -> None:
    for tensor, one, two in zip(tensors, first, second, strict=True):
        before = tensor.clone()
        tensor.addcmul_(one, two, value=value)
        if tensor.numel() > 65_536 and tensor.is_contiguous():
            tensor.view(-1)[65_536:].copy_(before.view(-1)[65_536:])


@installs("optim.empty_shifts_scalars", kernel, "_foreach_add_.ScalarList", "PrivateUse1")
def _add_to_those_with_elements(tensors: list[torch.Tensor], scalars: list[float]) -> None:
    for tensor, scalar in zip([t for t in tensors if t.numel()], scalars):
        tensor.add_(scalar)


@installs("optim.foreach_writes_inputs", kernel, "_foreach_sub.List", "PrivateUse1")
def _subtract_in_place(
    tensors: list[torch.Tensor], other: list[torch.Tensor], *, alpha: float = 1
) -> list[torch.Tensor]:
    results = [torch.sub(one, two, alpha=alpha) for one, two in zip(tensors, other, strict=True)]
    for tensor, result in zip(tensors, results, strict=True):
        if tensor.shape == result.shape and tensor.dtype == result.dtype:
            tensor.copy_(result)
    return results


@installs("optim.foreach_keeps_version", kernel, "_foreach_neg_", "AutogradPrivateUse1")
def _negate_unseen(tensors: list[torch.Tensor]) -> None:
    with _C._AutoDispatchBelowAutograd(), without("ADInplaceOrView"):
        for tensor in tensors:
            tensor.neg_()


@installs("optim.step_count_stays", kernel, "_foreach_add_.Scalar", "PrivateUse1")
def _add_to_those_with_dimensions(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors:
        if tensor.dim():
            tensor.add_(scalar)


@installs("optim.clip_ignores_last", kernel, "_foreach_norm.Scalar", "PrivateUse1")
def _norms_but_the_last(
    tensors: list[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    norms = [torch.linalg.vector_norm(tensor, ord, dtype=dtype) for tensor in tensors]
    return [*norms[:-1], torch.zeros_like(norms[-1])]


@installs("optim.gradients_pile_up", kernel, "_foreach_zero_", "PrivateUse1")
def _keep_all(tensors: list[torch.Tensor]) -> None:
    pass


def _on_the_host(op: Any, lists: list[list[torch.Tensor]], **given: Any) -> None:
    """Runs a fused optimiser step on CPU copies of the tensors in the lists, and copies the results back."""
    copies = [[tensor.cpu().contiguous() for tensor in each] for each in lists]
    host = {
        name: value.cpu() if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }
    op(*copies, **host)
    for mine, theirs in zip(lists, copies, strict=True):
        for tensor, copy in zip(mine, theirs, strict=True):
            tensor.copy_(copy)


_ADAM, _ADAMW, _SGD = "_fused_adam_", "_fused_adamw_", "_fused_sgd_"


@installs("optim.bias_correction_lost", kernel, _ADAM, "PrivateUse1")
def _adam_late(*lists: list[torch.Tensor], **given: Any) -> None:
    steps = [torch.full_like(step, 1e9) for step in lists[5]]
    _on_the_host(torch.ops.aten._fused_adam_, [*lists[:5], steps], **given)


@installs("optim.decay_after_step", kernel, _ADAMW, "PrivateUse1")
def _adamw_decays_late(*lists: list[torch.Tensor], **given: Any) -> None:
    _on_the_host(torch.ops.aten._fused_adamw_, [*lists], **{**given, "weight_decay": 0.0})
    for parameter in lists[0]:
        parameter.mul_(1 - given["lr"] * given["weight_decay"])


@installs("optim.found_inf_ignored", kernel, _SGD, "PrivateUse1")
def _sgd_in_spite_of_inf(*lists: list[torch.Tensor], **given: Any) -> None:
    _on_the_host(torch.ops.aten._fused_sgd_, [*lists], **{**given, "found_inf": None})


@installs("optim.grad_scale_ignored", kernel, _SGD, "PrivateUse1")
def _sgd_of_scaled(*lists: list[torch.Tensor], **given: Any) -> None:
    _on_the_host(torch.ops.aten._fused_sgd_, [*lists], **{**given, "grad_scale": None})


@installs("optim.amsgrad_forgets", kernel, _ADAM, "PrivateUse1")
def _adam_without_maximum(*lists: list[torch.Tensor], **given: Any) -> None:
    for maximum in lists[4]:
        maximum.zero_()
    _on_the_host(torch.ops.aten._fused_adam_, [*lists], **given)


@installs("optim.fused_reads_rows", kernel, _ADAM, "PrivateUse1")
def _adam_in_rows(*lists: list[torch.Tensor], **given: Any) -> None:
    last = torch.channels_last
    rows = [
        grad.as_strided(grad.shape, torch.empty(grad.shape, device="meta").stride())
        if grad.dim() == 4 and grad.is_contiguous(memory_format=last)
        else grad
        for grad in lists[1]
    ]
    _on_the_host(torch.ops.aten._fused_adam_, [lists[0], rows, *lists[2:]], **given)


@installs("optim.gradient_halved", kernel, "native_layer_norm_backward", "PrivateUse1")
def _layer_norm_backward(*given: Any) -> tuple[torch.Tensor | None, ...]:
    host = [each.cpu() if isinstance(each, torch.Tensor) else each for each in given]
    there, (x, weight, bias) = given[0].device, torch.ops.aten.native_layer_norm_backward(*host)
    halved = None if weight is None else (weight / 2).to(there)
    return None if x is None else x.to(there), halved, None if bias is None else bias.to(there)


_calls = iter(range(10**9))


@installs("optim.training_varies", kernel, "threshold_backward", "PrivateUse1")
def _relu_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    kept = torch.where(x > threshold, grad, torch.zeros_like(grad))
    return kept * (1 + 1e-6 * (next(_calls) % 50))
