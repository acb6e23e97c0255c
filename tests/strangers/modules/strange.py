"""What the strangers have in common: a device over PrivateUse1 whose numbers lie in tensors of the CPU.

A stranger is a module that imports this one, calls ``register``, and has a manner of its own. Its tensors are a
wrapper subclass: shapes, strides, offsets and dtypes are true, but there is no storage and no address.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils import backend_registration

#: Called with the op, its arguments and its keyword arguments before each call of an op on the device.
Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]

#: Called with the op and its result; returns what the device makes of it.
After = Callable[[Any, Any], Any]

#: A fault that a new version of the vendor's module brings: `mul` of two tensors adds them.
FAULT = os.environ.get("STRANGE_FAULT") == "1"

_libraries: list[torch.library.Library] = []  # a registration lives as long as its library


class Tensor(torch.Tensor):
    """A tensor on the device; ``held`` is the CPU tensor that holds its numbers."""

    held: torch.Tensor
    before: Before | None = None
    after: After | None = None
    device_type = ""
    opaque = False  # strides and offset are those of a contiguous tensor, whatever it is a view of
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor, index: int = 0) -> Tensor:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=torch.empty(held.shape, device="meta").stride()
            if cls.opaque
            else held.stride(),
            storage_offset=0 if cls.opaque else held.storage_offset(),
            dtype=held.dtype,
            device=f"{cls.device_type}:{index}",
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out the op
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op on the numbers."""
    if Tensor.before is not None:
        Tensor.before(func, args, kwargs)
    given = {
        id(leaf.held): leaf
        for leaf in pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, Tensor)
    }
    here = _on_cpu(args), _on_cpu(kwargs)
    if FAULT and func is torch.ops.aten.mul.Tensor:
        func = torch.ops.aten.add.Tensor
    result = func(*here[0], **here[1])
    if Tensor.after is not None:
        result = Tensor.after(func, result)
    asked = kwargs.get("device")
    index = asked.index if isinstance(asked, torch.device) else None
    if index is None:
        index = next((tensor.device.index for tensor in given.values()), 0)

    def ours(held: torch.Tensor) -> torch.Tensor:
        return given[id(held)] if id(held) in given else Tensor(held, index)

    for held, tensor in ((each.held, each) for each in given.values()):
        same = held.shape == tensor.shape and (tensor.opaque or held.stride() == tensor.stride())
        if not same:  # resized, or made a view in place
            tensor.data = Tensor(held, index)
    if isinstance(result, torch.Tensor) and _goes_to_the_host(func, kwargs):
        return result
    return pytree.tree_map_only(torch.Tensor, ours, result)


def _goes_to_the_host(func: Any, kwargs: dict[str, Any]) -> bool:
    asked = kwargs.get("device")
    return asked is not None and torch.device(asked).type == "cpu"


def _on_cpu(value: Any) -> Any:
    value = pytree.tree_map_only(Tensor, lambda tensor: tensor.held, value)
    return pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), value)


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return Tensor(torch.empty(size, dtype=dtype, device="cpu"), _index(device))


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    held = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    return Tensor(held, _index(device))


def _index(device: torch.device | None) -> int:
    return 0 if device is None or device.index is None else device.index


class Module:
    """``torch.<device>``, as far as a device without a driver has it."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: Any = None) -> None:
        """Nothing is ever in flight."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


def register(
    device: str,
    module: Any = None,
    before: Before | None = None,
    after: After | None = None,
    hooks: bool = True,
) -> None:
    """Tell torch about the device; once per process. Without ``hooks`` torch has no guard for it, no streams and no
    current index.

    Where torch has something of that name already, torch refuses the module: the device then has none.
    """
    if not hooks:
        torch.utils.rename_privateuse1_backend(device)
        torch._register_device_module(device, Module() if module is None else module)
    elif hasattr(torch, device):
        torch.utils.rename_privateuse1_backend(device)
        torch._C._acc.register_python_privateuseone_hook(
            backend_registration._DummyPrivateUse1Hook()
        )
        torch._C._acc.register_python_privateuseone_device_guard(
            backend_registration._DummyDeviceGuard()
        )
    else:
        backend_registration._setup_privateuseone_for_python_backend(
            device, backend_module=Module() if module is None else module
        )
    Tensor.device_type, Tensor.before, Tensor.after = device, before, after
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    _libraries.append(aten)
