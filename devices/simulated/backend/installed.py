"""Planted faults in Python: what is installed while a fault is on, in the place of a kernel or a method of torch's.

The other faults are switches that the library, or a module of this package, checks.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, ClassVar, Final

import torch

from devices.simulated.backend import native

Mend = Callable[[], None]  # repairs what was broken

_C: Any = torch._C

#: By fault: what breaks something, and returns a function that repairs it.
INSTALLED: Final[dict[str, Callable[[], Mend]]] = {}

_mends: dict[str, Mend] = {}


def switch(name: str, on: bool) -> None:
    """Switch a fault on or off; does nothing if it is not one of these, or already is in that state."""
    if on and name in INSTALLED and name not in _mends:
        _mends[name] = INSTALLED[name]()
    elif not on and name in _mends:
        _mends.pop(name)()


def _installs(
    fault: str, install: Callable[..., Mend], *where: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What stands below is installed while the fault is on: ``install(function, *where)``."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        INSTALLED[fault] = partial(install, function, *where)
        return function

    return note


def op_of(fault: str) -> str | None:
    """The op whose kernel a fault replaces (``aten::cos``); None if it is no such fault."""
    install: Any = INSTALLED.get(fault)
    if install is None or install.func not in (_kernel, _leaking):
        return None
    return f"aten::{install.args[1].partition('.')[0]}"


def _kernel(function: Callable[..., Any], op: str, key: str) -> Mend:
    """Replace the kernel of an op."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel is overridden on purpose
        library.impl(op, function, key)
    return library._destroy


def _fallback(function: Callable[..., Any]) -> Mend:
    """Add a kernel for all ops that the device has none for."""
    library = torch.library.Library("_", "IMPL")
    library.fallback(function, "PrivateUse1")
    return library._destroy


def _method(function: Callable[..., Any], name: str) -> Mend:
    """Replace a method of tensors; the function takes the tensor, the original method, and the arguments."""
    original = getattr(torch.Tensor, name)
    setattr(torch.Tensor, name, partialmethod(function, original))
    return lambda: setattr(torch.Tensor, name, original)


def _called(function: Callable[[], Mend]) -> Mend:
    return function()


def _without(key: str) -> Any:
    """A guard that excludes a dispatch key."""
    return _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(_C.DispatchKey, key)))


# -- transfer


@_installs("transfer.numpy_exposes_memory", _method, "numpy")
def _numpy(self: torch.Tensor, original: Callable[..., Any], *, force: bool = False) -> Any:
    if self.device.type != native.NAME:
        return original(self, force=force)
    import numpy as np

    start = native.library.device_side(self.untyped_storage().data_ptr())
    raw: Any = (ctypes.c_byte * self.untyped_storage().nbytes()).from_address(start)
    kind = original(torch.empty(0, dtype=self.dtype)).dtype
    size = self.element_size()
    steps = [step * size for step in self.stride()]
    return np.ndarray(tuple(self.shape), kind, raw, self.storage_offset() * size, steps)


@_installs("transfer.slice_not_pinned", _method, "is_pinned")
def _is_pinned(self: torch.Tensor, original: Callable[..., Any], *args: Any) -> bool:
    return self.storage_offset() == 0 and bool(original(self, *args))


@_installs("transfer.zero_lost_in_view", _kernel, "zero_", "PrivateUse1")
def _zero_if_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.fill_(0) if x.is_contiguous() else x


@_installs("compile.export_wrong_device", _called)
def _load_on_first_index() -> Mend:
    registry: Any = torch.serialization._package_registry

    def deserialize(storage: Any, location: str) -> Any:
        return storage.to(device=f"{native.NAME}:0") if location.startswith(native.NAME) else None

    entry = (5, lambda storage: None, deserialize)  # before torch's own, which are 10 and more
    registry.insert(0, entry)
    return lambda: registry.remove(entry)


@_installs("allocator.settings_accept_unknown", _called)
def _accept_unknown_settings() -> Mend:
    native.library.use_settings_parser(False)
    return lambda: native.library.use_settings_parser(True)


# -- dispatch


@_installs("dispatch.unsupported_wrong_error", _fallback)
def _refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(f"{op} failed")


@_installs("dispatch.unsupported_returns_garbage", _fallback)
def _pretend(op: Any, *args: Any, **kwargs: Any) -> Any:
    return args[0].clone()


@_installs("dispatch.one_hot_zeros", _kernel, "one_hot", "PrivateUse1")
def _one_hot(x: torch.Tensor, classes: int = -1) -> torch.Tensor:
    count = classes if classes >= 0 else int(x.max()) + 1
    return (x.unsqueeze(-1) == torch.arange(count, device=x.device)).to(torch.int64)


@_installs("dispatch.embedding_takes_nearest", _kernel, "embedding", "PrivateUse1")
def _embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    rows = weight.index_select(0, indices.clamp(0, len(weight) - 1).reshape(-1))
    return rows.view(*indices.shape, weight.shape[1])


@_installs("dispatch.internal_assertion", _kernel, "gcd", "AutogradPrivateUse1")
def _gcd(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if first.is_floating_point():
        raise RuntimeError(
            'false INTERNAL ASSERT FAILED at "gcd.cpp":1, please report a bug to PyTorch.'
        )
    with _C._AutoDispatchBelowAutograd():
        return torch.gcd(first, second)


@_installs("dispatch.refusal_names_nothing", _kernel, "lcm", "AutogradPrivateUse1")
def _lcm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if first.is_floating_point():
        raise RuntimeError("invalid argument")
    with _C._AutoDispatchBelowAutograd():
        return torch.lcm(first, second)


# -- memory that is kept


class _Kept:
    """Memory that a leaking kernel keeps while its fault is on."""

    blocks: ClassVar[list[Any]] = []
    shapes: ClassVar[set[tuple[int, ...]]] = set()

    @classmethod
    def block(cls, like: torch.Tensor) -> None:
        cls.blocks.append(torch.empty(512, dtype=torch.uint8, device=like.device))


def _leaking(function: Callable[..., Any], op: str, key: str) -> Mend:
    mend = _kernel(function, op, key)

    def mended() -> None:
        mend()
        _Kept.blocks.clear()
        _Kept.shapes.clear()

    return mended


def _leaks(op: str, derivative: Callable[..., Any], leak: Callable[[torch.Tensor], None]) -> Any:
    """A function of one operand that leaks, with its derivative."""

    class Leaking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            ctx.save_for_backward(x)
            leak(x)
            with _C._AutoDispatchBelowAutograd():
                return getattr(torch, op)(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return derivative(grad, ctx.saved_tensors[0])

    return Leaking


_tan = _leaks("tan", lambda grad, x: grad * (1 + x.tan() ** 2), _Kept.block)
_atan = _leaks(
    "atan", lambda grad, x: grad / (1 + x * x), lambda x: _Kept.blocks.append(bytes([1]) * 65536)
)


@_installs("allocator.kernel_leaks", _leaking, "tan", "AutogradPrivateUse1")
def _tan_and_keep(x: torch.Tensor) -> Any:
    return _tan.apply(x)


@_installs("allocator.host_leaks", _leaking, "atan", "AutogradPrivateUse1")
def _atan_and_keep(x: torch.Tensor) -> Any:
    return _atan.apply(x)


_cos = _leaks("cos", lambda grad, x: -grad * x.sin(), lambda x: _Kept.blocks.append((x.numel(),)))


@_installs("allocator.host_objects_leak", _leaking, "cos", "AutogradPrivateUse1")
def _cos_and_keep(x: torch.Tensor) -> Any:
    return _cos.apply(x)


@_installs("allocator.backward_leaks", _leaking, "sigmoid_backward", "AutogradPrivateUse1")
def _sigmoid_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    _Kept.block(grad)
    with _C._AutoDispatchBelowAutograd():
        found: torch.Tensor = torch.ops.aten.sigmoid_backward(grad, output)
        return found


def _once_for_a_shape(x: torch.Tensor) -> None:
    if tuple(x.shape) not in _Kept.shapes:
        _Kept.shapes.add(tuple(x.shape))
        _Kept.block(x)


_asinh = _leaks("asinh", lambda grad, x: grad / (1 + x * x).sqrt(), _once_for_a_shape)


@_installs("allocator.shapes_leak", _leaking, "asinh", "AutogradPrivateUse1")
def _asinh_and_keep(x: torch.Tensor) -> Any:
    return _asinh.apply(x)


# -- gradients


class _WrongSecond(torch.autograd.Function):
    """sinh whose gradient has no gradient: the input is detached in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        with _C._AutoDispatchBelowAutograd():
            return x.sinh()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.detach().cosh()


@_installs("autograd.second_wrong", _kernel, "sinh", "AutogradPrivateUse1")
def _sinh(x: torch.Tensor) -> Any:
    wrong: Any = _WrongSecond
    return wrong.apply(x)


@_installs("autograd.version_not_bumped", _kernel, "zero_", "AutogradPrivateUse1")
def _zero_(x: torch.Tensor) -> torch.Tensor:
    with _C._AutoDispatchBelowAutograd(), _without("ADInplaceOrView"):
        return x.zero_()


def _unbumped(fault: str, op: str) -> None:
    """An op that writes to tensors, without the kernel that increments their version counters."""
    packet, _, overload = op.partition(".")
    called = getattr(getattr(torch.ops.aten, packet), overload or "default")

    @_installs(fault, _kernel, op, "AutogradPrivateUse1")
    def _call(*args: Any, **named: Any) -> Any:
        with _C._AutoDispatchBelowAutograd(), _without("ADInplaceOrView"):
            return called(*args, **named)


_unbumped("autograd.out_not_bumped", "add.out")
_unbumped("autograd.view_not_bumped", "select.int")
_unbumped("autograd.detach_apart", "detach")
_unbumped("autograd.foreach_not_bumped", "_foreach_add_.Scalar")
_unbumped("autograd.index_put_not_bumped", "index_put_")
_unbumped("autograd.random_not_bumped", "normal_")
_unbumped("autograd.renorm_not_bumped", "embedding_renorm_")


@_installs("autograd.bumped_without_write", _kernel, "log", "AutogradPrivateUse1")
def _log_counted(x: torch.Tensor) -> torch.Tensor:
    torch.autograd.graph.increment_version(x)
    return x.log2().mul(math.log(2))


def _unary(below: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[type], Callable[..., Any]]:
    """A kernel of autograd: the class has ``save(ctx, x, y)`` and ``backward``; the value is that of ``below``."""

    def made(functions: Any) -> Callable[..., Any]:
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

    return made


@_installs("autograd.saved_past_hooks", _kernel, "sigmoid", "AutogradPrivateUse1")
@_unary(torch.sigmoid)
class _KeptOnTheNode:
    @staticmethod
    def save(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        ctx.kept = y.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.kept * (1 - ctx.kept)


@_installs("autograd.saved_freed", _kernel, "tanh", "AutogradPrivateUse1")
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


@_installs("autograd.saved_spent", _kernel, "exp", "AutogradPrivateUse1")
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


@_installs("autograd.saved_in_one_place", _kernel, "cos", "AutogradPrivateUse1")
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


@_installs("autograd.undefined_is_one", _kernel, "zeros", "PrivateUse1")
def _zeros(size: list[int], **options: Any) -> torch.Tensor:
    options.pop("pin_memory", None)
    return torch.full(size, 1.0 if _in_backward() else 0.0, **options)


@_installs("autograd.sum_detached", _kernel, "add.Tensor", "AutogradPrivateUse1")
def _add(x: Any, y: Any, *, alpha: Any = 1) -> torch.Tensor:
    if _in_backward() or not x.is_floating_point():
        with _C._AutoDispatchBelowAutograd():
            return torch.add(x, y, alpha=alpha)
    return torch.sub(x, y, alpha=-alpha)


@_installs("autograd.rnn_weights_unshared", _kernel, "lstm.input", "AutogradPrivateUse1")
def _lstm(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
    for weight in weights:
        weight.data = weight.detach().clone()
    return torch.ops.aten.lstm.input.decompose(x, state, weights, *rest)


@_installs("nn.state_of_first_layer", _kernel, "lstm.input", "AutogradPrivateUse1")
def _lstm_from_one_state(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
    layers, directions = rest[1], 2 if rest[4] else 1
    wrong = [each[:directions].repeat(layers, 1, 1) for each in state]
    return torch.ops.aten.lstm.input.decompose(x, wrong, weights, *rest)


@_installs("nn.reverse_runs_forward", _kernel, "gru.input", "AutogradPrivateUse1")
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
    """scaled_dot_product_attention with other arguments, which the function gives."""

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


@_installs("nn.causal_from_the_end", _kernel, *_SDPA)
@_attention
def _causal_from_the_end(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    queries, keys = query.shape[-2], key.shape[-2]
    if not causal or queries == keys:
        return query, mask, causal
    seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
    # No query is left without a key, which would be another fault.
    return query, seen.tril(max(keys - queries, 1)), False


@_installs("nn.mask_of_first_batch", _kernel, *_SDPA)
@_attention
def _mask_of_first_batch(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    return query, mask[:1] if mask is not None and mask.dim() == 4 else mask, causal


@_installs("nn.mask_gradient_lost", _kernel, *_SDPA)
@_attention
def _mask_without_gradient(query: torch.Tensor, key: torch.Tensor, mask: Any, causal: bool) -> Any:
    return query, None if mask is None else mask.detach(), causal


@_installs("nn.permuted_query_as_dense", _kernel, *_SDPA)
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
    """scaled_dot_product_attention, whose result the function spoils."""

    def kernel(query: Any, key: Any, value: Any, mask: Any = None, *rest: Any, **named: Any) -> Any:
        op: Any = torch.ops.aten.scaled_dot_product_attention.default
        return wrong(op.decompose(query, key, value, mask, *rest, **named), query, key, mask)

    return kernel


@_installs("nn.masked_row_is_nan", _kernel, *_SDPA)
@_after_attention
def _masked_row_is_nan(result: torch.Tensor, query: Any, key: Any, mask: Any) -> torch.Tensor:
    if mask is None or mask.dtype != torch.bool:
        return result
    return result.masked_fill(~mask.any(-1, keepdim=True), float("nan"))


@_installs("nn.tiles_unwritten", _kernel, *_SDPA)
@_after_attention
def _tiles_unwritten(result: torch.Tensor, query: Any, key: Any, mask: Any) -> torch.Tensor:
    if key.shape[-2] > 16 or query.shape[-2] <= 64:
        return result
    there = torch.empty_like(result)
    there[..., :64, :] = result[..., :64, :]
    return there


# -- training


@_installs("autocast.op_left_in_float32", _kernel, "mm", "AutocastPrivateUse1")
def _mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    with _without("AutocastPrivateUse1"):
        return torch.mm(first, second)


@_installs("autocast.op_in_wrong_list", _kernel, "log", "AutocastPrivateUse1")
def _log(x: torch.Tensor) -> torch.Tensor:
    with _without("AutocastPrivateUse1"):
        return torch.log(x.to(torch.get_autocast_dtype(native.NAME)))


@_installs("autocast.unlisted_op_cast", _kernel, "maximum", "AutocastPrivateUse1")
def _maximum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    lower = torch.get_autocast_dtype(native.NAME)
    with _without("AutocastPrivateUse1"):
        return torch.maximum(first.to(lower), second.to(lower))


@_installs("autocast.promotes_to_first", _kernel, "cat", "AutocastPrivateUse1")
def _cat(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    with _without("AutocastPrivateUse1"):
        return torch.cat([each.to(tensors[0].dtype) for each in tensors], dim)


@_installs("autocast.dtype_ignored", _kernel, "bmm", "AutocastPrivateUse1")
def _bmm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    with _without("AutocastPrivateUse1"):
        return torch.bmm(first.to(torch.bfloat16), second.to(torch.bfloat16))


_casted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


@_installs("autocast.cache_outlives_region", _kernel, "mm", "AutocastPrivateUse1")
def _mm_of_kept(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    lower = torch.get_autocast_dtype(native.NAME)
    if second.requires_grad and second.is_leaf and second.dtype == torch.float32:
        kept = _casted.get(id(second))
        if kept is None or kept[0] is not second or kept[1].dtype != lower:
            with torch.enable_grad():
                kept = _casted[id(second)] = second, second.to(lower)
        second = kept[1]
    with _without("AutocastPrivateUse1"):
        return torch.mm(first.to(lower), second.to(lower))


_CHECK = "_amp_foreach_non_finite_check_and_unscale_"


@_installs("autocast.nan_not_found", _kernel, _CHECK, "PrivateUse1")
def _look_for_inf(
    tensors: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    for each in tensors:
        found_inf.copy_(torch.maximum(found_inf, each.isinf().any().to(found_inf.dtype)))
        each.mul_(inverse)


@_installs("autocast.scaler_first_only", _kernel, _CHECK, "PrivateUse1")
def _look_at_the_first(
    tensors: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    wrong = ~tensors[0].isfinite().all()
    found_inf.copy_(torch.maximum(found_inf, wrong.to(found_inf.dtype)))
    for each in tensors:
        each.mul_(inverse)


@_installs("autocast.scaler_grows_late", _kernel, "_amp_update_scale_", "PrivateUse1")
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


@_installs("optim.foreach_skips_last", _kernel, "_foreach_add_.Scalar", "PrivateUse1")
def _add_to_all_but_the_last(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors[:-1]:
        tensor.add_(scalar)


@_installs("optim.foreach_ignores_strides", _kernel, "_foreach_mul_.Scalar", "PrivateUse1")
def _multiply_as_if_dense(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors:
        dense = torch.empty(tensor.shape, device="meta").stride()
        tensor.as_strided(tensor.shape, dense, tensor.storage_offset()).mul_(scalar)


@_installs("optim.chunk_tail_lost", _kernel, "_foreach_addcmul_.Scalar", "PrivateUse1")
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


@_installs("optim.empty_shifts_scalars", _kernel, "_foreach_add_.ScalarList", "PrivateUse1")
def _add_to_those_with_elements(tensors: list[torch.Tensor], scalars: list[float]) -> None:
    for tensor, scalar in zip([t for t in tensors if t.numel()], scalars):
        tensor.add_(scalar)


@_installs("optim.foreach_writes_inputs", _kernel, "_foreach_sub.List", "PrivateUse1")
def _subtract_in_place(
    tensors: list[torch.Tensor], other: list[torch.Tensor], *, alpha: float = 1
) -> list[torch.Tensor]:
    results = [torch.sub(one, two, alpha=alpha) for one, two in zip(tensors, other, strict=True)]
    for tensor, result in zip(tensors, results, strict=True):
        if tensor.shape == result.shape and tensor.dtype == result.dtype:
            tensor.copy_(result)
    return results


@_installs("optim.foreach_keeps_version", _kernel, "_foreach_neg_", "AutogradPrivateUse1")
def _negate_unseen(tensors: list[torch.Tensor]) -> None:
    with _C._AutoDispatchBelowAutograd(), _without("ADInplaceOrView"):
        for tensor in tensors:
            tensor.neg_()


@_installs("optim.step_count_stays", _kernel, "_foreach_add_.Scalar", "PrivateUse1")
def _add_to_those_with_dimensions(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors:
        if tensor.dim():
            tensor.add_(scalar)


@_installs("optim.clip_ignores_last", _kernel, "_foreach_norm.Scalar", "PrivateUse1")
def _norms_but_the_last(
    tensors: list[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[torch.Tensor]:
    norms = [torch.linalg.vector_norm(tensor, ord, dtype=dtype) for tensor in tensors]
    return [*norms[:-1], torch.zeros_like(norms[-1])]


@_installs("optim.gradients_pile_up", _kernel, "_foreach_zero_", "PrivateUse1")
def _keep_all(tensors: list[torch.Tensor]) -> None:
    pass


def _on_the_host(op: Any, lists: list[list[torch.Tensor]], **given: Any) -> None:
    """A fused step by the CPU's kernel, on copies of the tensors in the lists, which are copied back."""
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


@_installs("optim.bias_correction_lost", _kernel, _ADAM, "PrivateUse1")
def _adam_late(*lists: list[torch.Tensor], **given: Any) -> None:
    steps = [torch.full_like(step, 1e9) for step in lists[5]]
    _on_the_host(torch.ops.aten._fused_adam_, [*lists[:5], steps], **given)


@_installs("optim.decay_after_step", _kernel, _ADAMW, "PrivateUse1")
def _adamw_decays_late(*lists: list[torch.Tensor], **given: Any) -> None:
    _on_the_host(torch.ops.aten._fused_adamw_, [*lists], **{**given, "weight_decay": 0.0})
    for parameter in lists[0]:
        parameter.mul_(1 - given["lr"] * given["weight_decay"])


@_installs("optim.found_inf_ignored", _kernel, _SGD, "PrivateUse1")
def _sgd_in_spite_of_inf(*lists: list[torch.Tensor], **given: Any) -> None:
    _on_the_host(torch.ops.aten._fused_sgd_, [*lists], **{**given, "found_inf": None})


@_installs("optim.grad_scale_ignored", _kernel, _SGD, "PrivateUse1")
def _sgd_of_scaled(*lists: list[torch.Tensor], **given: Any) -> None:
    _on_the_host(torch.ops.aten._fused_sgd_, [*lists], **{**given, "grad_scale": None})


@_installs("optim.amsgrad_forgets", _kernel, _ADAM, "PrivateUse1")
def _adam_without_maximum(*lists: list[torch.Tensor], **given: Any) -> None:
    for maximum in lists[4]:
        maximum.zero_()
    _on_the_host(torch.ops.aten._fused_adam_, [*lists], **given)


@_installs("optim.fused_reads_rows", _kernel, _ADAM, "PrivateUse1")
def _adam_in_rows(*lists: list[torch.Tensor], **given: Any) -> None:
    last = torch.channels_last
    rows = [
        grad.as_strided(grad.shape, torch.empty(grad.shape, device="meta").stride())
        if grad.dim() == 4 and grad.is_contiguous(memory_format=last)
        else grad
        for grad in lists[1]
    ]
    _on_the_host(torch.ops.aten._fused_adam_, [lists[0], rows, *lists[2:]], **given)


@_installs("optim.gradient_halved", _kernel, "native_layer_norm_backward", "PrivateUse1")
def _layer_norm_backward(*given: Any) -> tuple[torch.Tensor | None, ...]:
    host = [each.cpu() if isinstance(each, torch.Tensor) else each for each in given]
    there, (x, weight, bias) = given[0].device, torch.ops.aten.native_layer_norm_backward(*host)
    halved = None if weight is None else (weight / 2).to(there)
    return None if x is None else x.to(there), halved, None if bias is None else bias.to(there)


_calls = iter(range(10**9))


@_installs("optim.training_varies", _kernel, "threshold_backward", "PrivateUse1")
def _relu_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    kept = torch.where(x > threshold, grad, torch.zeros_like(grad))
    return kept * (1 + 1e-6 * (next(_calls) % 50))
