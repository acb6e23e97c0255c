"""Planted faults in Python: each function breaks something and returns a function that repairs it.

The other faults are switches that the library, or a module of this package, checks.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from devices.simulated.backend import native

Mend = Callable[[], None]

_C: Any = torch._C
_mends: dict[str, Mend] = {}


def switch(name: str, on: bool) -> None:
    """Switch a fault on or off; does nothing if it is not one of these, or already is in that state."""
    if on and name in INSTALLED and name not in _mends:
        _mends[name] = INSTALLED[name]()
    elif not on and name in _mends:
        _mends.pop(name)()


def _instead(op: str, key: str, function: Callable[..., Any], space: str = "aten") -> Mend:
    """Replace the kernel of an op; with ``space`` "_", add one for all ops without a kernel."""
    library = torch.library.Library(space, "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel is overridden on purpose
        if space == "_":
            library.fallback(function, key)
        else:
            library.impl(op, function, key)
    return library._destroy


def _without(*keys: str) -> Any:
    """A guard that excludes these dispatch keys."""
    every = _C.DispatchKeySet(getattr(_C.DispatchKey, keys[0]))
    for key in keys[1:]:
        every = every | _C.DispatchKeySet(getattr(_C.DispatchKey, key))
    return _C._ExcludeDispatchKeyGuard(every)


# -- transfer


def _numpy_exposes_memory() -> Mend:
    tensor: Any = torch.Tensor
    original = tensor.numpy

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if self.device.type != native.NAME:
            return original(self, force=force)
        import numpy as np

        start = native.library.device_side(self.untyped_storage().data_ptr())
        raw: Any = (ctypes.c_byte * self.untyped_storage().nbytes()).from_address(start)
        kind = original(torch.empty(0, dtype=self.dtype)).dtype
        steps = [step * self.element_size() for step in self.stride()]
        return np.ndarray(
            tuple(self.shape), kind, raw, self.storage_offset() * self.element_size(), steps
        )

    def mend() -> None:
        tensor.numpy = original

    tensor.numpy = numpy
    return mend


def _slice_not_pinned() -> Mend:
    tensor: Any = torch.Tensor
    original = tensor.is_pinned

    def is_pinned(self: torch.Tensor, *args: Any) -> bool:
        return self.storage_offset() == 0 and bool(original(self, *args))

    def mend() -> None:
        tensor.is_pinned = original

    tensor.is_pinned = is_pinned
    return mend


def _load_on_first_index() -> Mend:
    registry: Any = torch.serialization._package_registry

    def deserialize(storage: Any, location: str) -> Any:
        return storage.to(device=f"{native.NAME}:0") if location.startswith(native.NAME) else None

    entry = (5, lambda storage: None, deserialize)  # before torch's own, which are 10 and more
    registry.insert(0, entry)
    return lambda: registry.remove(entry)


def _accept_unknown_settings() -> Mend:
    native.library.use_settings_parser(False)
    return lambda: native.library.use_settings_parser(True)


# -- dispatch


def _unsupported_raises_runtime_error() -> Mend:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{op} failed")

    return _instead("", "PrivateUse1", refuse, space="_")


def _unsupported_returns_first_argument() -> Mend:
    def pretend(op: Any, *args: Any, **kwargs: Any) -> Any:
        return args[0].clone()

    return _instead("", "PrivateUse1", pretend, space="_")


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


def _second_derivative_lost() -> Mend:
    wrong: Any = _WrongSecond
    return _instead("sinh", "AutogradPrivateUse1", lambda x: wrong.apply(x))


def _version_kept() -> Mend:
    def zero_(x: torch.Tensor) -> torch.Tensor:
        with _C._AutoDispatchBelowAutograd(), _without("ADInplaceOrView"):
            return x.zero_()

    return _instead("zero_", "AutogradPrivateUse1", zero_)


def _weights_moved_apart() -> Mend:
    op = torch.ops.aten.lstm.input

    def lstm(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
        for weight in weights:
            weight.data = weight.detach().clone()
        return op.decompose(x, state, weights, *rest)

    return _instead("lstm.input", "AutogradPrivateUse1", lstm)


# -- training


def _product_left_in_float32() -> Mend:
    def mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with _without("AutocastPrivateUse1"):
            return torch.mm(first, second)

    return _instead("mm", "AutocastPrivateUse1", mm)


def _last_of_list_left_out() -> Mend:
    def add(tensors: list[torch.Tensor], scalar: float) -> None:
        for tensor in tensors[:-1]:
            tensor.add_(scalar)

    return _instead("_foreach_add_.Scalar", "PrivateUse1", add)


def _lists_taken_for_dense() -> Mend:
    def multiply(tensors: list[torch.Tensor], scalar: float) -> None:
        for tensor in tensors:
            dense = torch.empty(tensor.shape, device="meta").stride()
            tensor.as_strided(tensor.shape, dense, tensor.storage_offset()).mul_(scalar)

    return _instead("_foreach_mul_.Scalar", "PrivateUse1", multiply)


INSTALLED: Final[dict[str, Callable[[], Mend]]] = {
    "transfer.numpy_exposes_memory": _numpy_exposes_memory,
    "transfer.slice_not_pinned": _slice_not_pinned,
    "allocator.settings_accept_unknown": _accept_unknown_settings,
    "dispatch.unsupported_wrong_error": _unsupported_raises_runtime_error,
    "dispatch.unsupported_returns_garbage": _unsupported_returns_first_argument,
    "autograd.second_wrong": _second_derivative_lost,
    "autograd.version_not_bumped": _version_kept,
    "autograd.rnn_weights_unshared": _weights_moved_apart,
    "autocast.op_left_in_float32": _product_left_in_float32,
    "optim.foreach_skips_last": _last_of_list_left_out,
    "optim.foreach_ignores_strides": _lists_taken_for_dense,
    "compile.export_wrong_device": _load_on_first_index,
}
