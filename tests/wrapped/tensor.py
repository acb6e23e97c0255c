"""The wrapped device's tensor: a subclass that shares the memory of a CPU tensor.

``torch.Tensor._make_subclass`` aliases the storage, so sizes, strides, storage offset, data_ptr and storage
identity are true, and in-place changes of any of them are the tensor's own. Since the class defines
``__torch_dispatch__``, every aten op on such a tensor passes through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.wrapped import registry


class WrappedTensor(torch.Tensor):
    """A tensor on the wrapped device."""

    @classmethod
    def __torch_function__(
        cls,
        func: registry.Kernel,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Python's view of the call: here a method is told from the function of the same name."""
        with torch._C.DisableTorchFunctionSubclass():
            return registry.call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out the op
        cls,
        func: registry.Kernel,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the overload on the CPU's memory, as it is or as a planted fault has it."""
        with torch._C._DisableTorchDispatch():
            return wrap_all(registry.call(func, args, kwargs or {}))


def wrap(tensor: torch.Tensor) -> WrappedTensor:
    """A device tensor of the same storage, strides and offset. Call it on plain CPU tensors."""
    wrapped: WrappedTensor = torch.Tensor._make_subclass(WrappedTensor, tensor)
    return wrapped


def wrap_all(result: Any) -> Any:
    """The result with its tensors on the device; a tensor that is there already is returned as it is."""
    if isinstance(result, WrappedTensor):
        return result
    if isinstance(result, torch.Tensor):
        # What is on another device (an out= that a fault let through) stays what it is.
        return wrap(result) if result.device.type == "cpu" else result
    if isinstance(result, (list, tuple)):
        return type(result)(wrap_all(item) for item in result)
    return result


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device."""
    if isinstance(tensor, WrappedTensor):
        return tensor.clone()
    return wrap(tensor.clone())


def from_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU. Plain tensors, which factories return, pass through."""
    if not isinstance(tensor, WrappedTensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
        copy: torch.Tensor = registry.call(registry.read, (tensor,), {})
        return copy
