"""Planted faults in Python: what is installed while a fault is on, in the place of a kernel or a method of torch's.

The other faults are switches that the library, or a module of this package, checks.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, Final

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
def _log(x: torch.Tensor) -> torch.Tensor:
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


# -- training


@_installs("autocast.op_left_in_float32", _kernel, "mm", "AutocastPrivateUse1")
def _mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    with _without("AutocastPrivateUse1"):
        return torch.mm(first, second)


@_installs("optim.foreach_skips_last", _kernel, "_foreach_add_.Scalar", "PrivateUse1")
def _add_to_all_but_the_last(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors[:-1]:
        tensor.add_(scalar)


@_installs("optim.foreach_ignores_strides", _kernel, "_foreach_mul_.Scalar", "PrivateUse1")
def _multiply_as_if_dense(tensors: list[torch.Tensor], scalar: float) -> None:
    for tensor in tensors:
        dense = torch.empty(tensor.shape, device="meta").stride()
        tensor.as_strided(tensor.shape, dense, tensor.storage_offset()).mul_(scalar)
