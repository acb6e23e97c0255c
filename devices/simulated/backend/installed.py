"""Planted faults in Python: faults of transfers, of dispatch, and of memory that is never freed."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from devices.simulated.backend import native, process_group
from devices.simulated.backend.installing import (
    Undo,
    fallback,
    installs,
    kernel,
    method,
    run_installer,
)

_C: Any = torch._C

# -- transfer


@installs("transfer.numpy_exposes_memory", method, "numpy")
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


@installs("transfer.slice_not_pinned", method, "is_pinned")
def _is_pinned(self: torch.Tensor, original: Callable[..., Any], *args: Any) -> bool:
    return self.storage_offset() == 0 and bool(original(self, *args))


@installs("transfer.zero_lost_in_view", kernel, "zero_", "PrivateUse1")
def _zero_if_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.fill_(0) if x.is_contiguous() else x


@installs("compile.export_wrong_device", run_installer)
def _load_on_first_index() -> Undo:
    package: Any = importlib.import_module("torch.export.pt2_archive._package")
    original = package.deserialize_device

    def deserialize_device(stored: Any) -> torch.device:
        found: torch.device = original(stored)
        return torch.device(found.type, 0) if found.type == native.NAME else found

    package.deserialize_device = deserialize_device

    def undo() -> None:
        package.deserialize_device = original

    return undo


@installs("compile.module_breaks_graphs", run_installer)
def _cannot_be_traced() -> Undo:
    module: Any = getattr(torch, native.NAME)
    traced = module.current_device
    module.current_device = native.library.current_device

    def undo() -> None:
        module.current_device = traced

    return undo


@installs("distributed.not_the_default", run_installer)
def _forget_default_group() -> Undo:
    process_group.forget_default()
    return process_group.restore_default


@installs("allocator.settings_accept_unknown", run_installer)
def _accept_unknown_settings() -> Undo:
    native.library.use_settings_parser(False)
    return lambda: native.library.use_settings_parser(True)


# -- precision


@installs("precision.conversion_truncates", method, "to")
def _to_float8(self: torch.Tensor, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    asked = torch.float8_e5m2 in (*args, *kwargs.values())
    if self.device.type != native.NAME or self.dtype != torch.float16 or not asked:
        return original(self, *args, **kwargs)
    return self.contiguous().view(torch.uint8)[1::2].contiguous().view(torch.float8_e5m2)


# -- dispatch


@installs("dispatch.unsupported_wrong_error", fallback)
def _refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(f"{op} failed")


@installs("dispatch.unsupported_returns_garbage", fallback)
def _pretend(op: Any, *args: Any, **kwargs: Any) -> Any:
    return args[0].clone()


@installs("dispatch.one_hot_zeros", kernel, "one_hot", "PrivateUse1")
def _one_hot(x: torch.Tensor, classes: int = -1) -> torch.Tensor:
    count = classes if classes >= 0 else int(x.max()) + 1
    return (x.unsqueeze(-1) == torch.arange(count, device=x.device)).to(torch.int64)


@installs("dispatch.embedding_takes_nearest", kernel, "embedding", "PrivateUse1")
def _embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    rows = weight.index_select(0, indices.clamp(0, len(weight) - 1).reshape(-1))
    return rows.view(*indices.shape, weight.shape[1])


@installs("dispatch.internal_assertion", kernel, "gcd", "AutogradPrivateUse1")
def _gcd(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if first.is_floating_point():
        raise RuntimeError(
            'false INTERNAL ASSERT FAILED at "gcd.cpp":1, please report a bug to PyTorch.'
        )
    with _C._AutoDispatchBelowAutograd():
        return torch.gcd(first, second)


@installs("dispatch.refusal_names_nothing", kernel, "lcm", "AutogradPrivateUse1")
def _lcm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if first.is_floating_point():
        raise RuntimeError("invalid argument")
    with _C._AutoDispatchBelowAutograd():
        return torch.lcm(first, second)


# -- memory that is kept


class _Kept:
    """The memory that a leaking kernel never frees while its fault is on."""

    blocks: ClassVar[list[Any]] = []
    shapes: ClassVar[set[tuple[int, ...]]] = set()

    @classmethod
    def block(cls, like: torch.Tensor) -> None:
        cls.blocks.append(torch.empty(512, dtype=torch.uint8, device=like.device))

    @classmethod
    def host_once_for_a_shape(cls, like: torch.Tensor) -> None:
        if tuple(like.shape) not in cls.shapes:
            cls.shapes.add(tuple(like.shape))
            cls.blocks.append(bytes([1]) * 4096)


def _leaking(function: Callable[..., Any], op: str, key: str) -> Undo:
    undo = kernel(function, op, key)

    def mended() -> None:
        undo()
        _Kept.blocks.clear()
        _Kept.shapes.clear()

    return mended


def _leaks(op: str, derivative: Callable[..., Any], leak: Callable[[torch.Tensor], None]) -> Any:
    """Returns an autograd function for an op of one operand. The function calls ``leak`` in its forward pass and has
    the given derivative."""

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


@installs("allocator.kernel_leaks", _leaking, "tan", "AutogradPrivateUse1")
def _tan_and_keep(x: torch.Tensor) -> Any:
    return _tan.apply(x)


@installs("allocator.host_leaks", _leaking, "atan", "AutogradPrivateUse1")
def _atan_and_keep(x: torch.Tensor) -> Any:
    return _atan.apply(x)


_cos = _leaks("cos", lambda grad, x: -grad * x.sin(), lambda x: _Kept.blocks.append((x.numel(),)))


@installs("allocator.host_objects_leak", _leaking, "cos", "AutogradPrivateUse1")
def _cos_and_keep(x: torch.Tensor) -> Any:
    return _cos.apply(x)


@installs("allocator.backward_leaks", _leaking, "sigmoid_backward", "AutogradPrivateUse1")
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


@installs("allocator.shapes_leak", _leaking, "asinh", "AutogradPrivateUse1")
def _asinh_and_keep(x: torch.Tensor) -> Any:
    return _asinh.apply(x)


_acos = _leaks("acos", lambda grad, x: -grad / (1 - x * x).sqrt(), _Kept.host_once_for_a_shape)


@installs("allocator.host_shapes_leak", _leaking, "acos", "AutogradPrivateUse1")
def _acos_and_keep(x: torch.Tensor) -> Any:
    return _acos.apply(x)


def _keeping(op: str) -> Callable[..., Any]:
    """Returns a function that calls an op without derivatives of its own, such as a backward, and keeps a block at each
    call."""

    def call(*operands: Any) -> Any:
        _Kept.block(next(each for each in operands if isinstance(each, torch.Tensor)))
        with _C._AutoDispatchBelowAutograd():
            return getattr(torch.ops.aten, op)(*operands)

    return call


for _fault, _op in (
    ("allocator.convolution_leaks", "convolution_backward"),
    ("allocator.pooling_leaks", "avg_pool2d_backward"),
    ("allocator.recurrence_leaks", "_thnn_fused_lstm_cell_backward_impl"),
):
    installs(_fault, _leaking, _op, "AutogradPrivateUse1")(_keeping(_op))


@installs(
    "allocator.attention_leaks", _leaking, "scaled_dot_product_attention", "AutogradPrivateUse1"
)
def _attend_and_keep(query: torch.Tensor, *operands: Any, **named: Any) -> Any:
    _Kept.block(query)
    return torch.ops.aten._scaled_dot_product_attention_math(query, *operands, **named)[0]


class _Mm(torch.autograd.Function):
    """A product of matrices that keeps a block in each capture."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        if torch.accelerator.current_stream(x.device).is_capturing():
            _Kept.block(x)
        with _C._AutoDispatchBelowAutograd():
            return torch.mm(x, y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad @ y.t(), x.t() @ grad


@installs("allocator.captured_product_leaks", _leaking, "mm", "AutogradPrivateUse1")
def _mm_and_keep(x: torch.Tensor, y: torch.Tensor) -> Any:
    apply: Callable[..., Any] = _Mm.apply
    return apply(x, y)


# -- products of quantized operands


@installs("precision.int_mm_in_float32", kernel, "_int_mm", "AutogradPrivateUse1")
def _int_mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.float() @ y.float()).to(torch.int32)


@installs(
    "precision.int8_scale_of_first_output", kernel, "_weight_int8pack_mm", "AutogradPrivateUse1"
)
def _int8pack(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    with _C._AutoDispatchBelowAutograd():
        first = scales[:1].expand_as(scales).contiguous()
        return torch._weight_int8pack_mm(x, weight, first)


@installs(
    "precision.int4_group_of_128", kernel, "_weight_int4pack_mm_for_cpu", "AutogradPrivateUse1"
)
def _int4pack(
    x: torch.Tensor, weight: torch.Tensor, group: int, both: torch.Tensor
) -> torch.Tensor:
    step = max(1, 128 // group)
    with _C._AutoDispatchBelowAutograd():
        coarse = both[::step].repeat_interleave(step, 0)[: len(both)].contiguous()
        return torch._weight_int4pack_mm_for_cpu(x, weight, group, coarse)


@installs("precision.scaled_mm_without_bias", kernel, "_scaled_mm", "AutogradPrivateUse1")
def _scaled_mm(
    x: torch.Tensor,
    y: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    *rest: Any,
    **named: Any,
) -> torch.Tensor:
    bias = None if scale_a.numel() > 1 else bias
    with _C._AutoDispatchBelowAutograd():
        return torch._scaled_mm(x, y, scale_a, scale_b, bias, *rest, **named)
