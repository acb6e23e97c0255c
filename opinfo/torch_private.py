"""The adapter over private names of torch but for its op database: FakeTensor, the dispatcher's tables, the profiler
below the public one, lazy negation, the identity of a storage. A test pins each name that is used."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode

# FakeTensor logs a traceback for each call that it refuses; a refusal is an answer here, not news.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

#: FakeTensor says in these ways that it has no answer, not that the call is wrong.
NO_FAKE_ANSWER = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def storage_id(tensor: torch.Tensor) -> int:
    """The same number for tensors that share a storage, as long as one of them lives."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """A view whose neg bit is set."""
    return torch._neg_view(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor has been written to."""
    return tensor._version


def key_of(torch_type: str) -> str:
    """The dispatch key of a device type: ``PrivateUse1``, also of a type whose module is not imported yet."""
    try:
        return str(torch._C._dispatch_key_for_device(torch_type))
    except RuntimeError:  # torch knows no such type: a module will give PrivateUse1 this name
        return "PrivateUse1"


def kernels(name: str, key: str) -> list[str]:
    """The lines of an op's dispatch table (``aten::add.Tensor``) for a key: none or one. A line ends with
    ``[backend fallback]`` where the kernel is the one for all ops that have no other."""
    table = torch._C._dispatch_dump_table(name).splitlines()
    return [line for line in table if line.startswith(f"{key}: ")]


@cache
def all_overloads() -> dict[str, tuple[str, ...]]:
    """The full names of every op's overloads: of ``aten::add``, ``aten::add.Tensor``, ``aten::add.out`` …"""
    found: dict[str, list[str]] = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        found.setdefault(name.partition(".")[0], []).append(name)
    return {packet: tuple(names) for packet, names in found.items()}


def profiled(call: Callable[[], Any]) -> tuple[list[Any], Exception | None]:
    """The events of each thread while something was called, and what it raised; NotImplementedError is raised."""
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    config = ProfilerConfig(
        ProfilerState.CPU, False, False, False, False, False, _ExperimentalConfig()
    )
    error = None
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as exc:
        error = exc
    finally:
        threads = torch._C._autograd._disable_profiler_legacy()
    return list(threads), error


def schema_of(overload: Any) -> Any:
    """The schema of an overload of ``torch.ops``."""
    return overload._schema


def import_backends() -> None:
    """Import the backends of the entry points ``torch.backends``, as importing torch does. Raises RuntimeError."""
    torch._import_device_backends()


def function_modes() -> list[Any]:
    """The modes of torch functions of this thread, the one that is asked first at the end."""
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    return modes


def dispatch_modes() -> list[Any]:
    """The dispatch modes of this thread, the one that is asked first at the end."""
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def take_modes() -> tuple[list[Any], list[Any]]:
    """Take all modes off this thread: those of functions, and those of dispatch."""
    taken = function_modes(), dispatch_modes()
    for _ in taken[0]:
        torch.overrides._pop_mode()
    for _ in taken[1]:
        torch.utils._python_dispatch._pop_mode()
    return taken


def put_modes(functions: Iterable[Any], dispatches: Iterable[Any]) -> None:
    """Put modes onto this thread, without calling their ``__enter__``."""
    for mode in functions:
        torch.overrides._push_mode(mode)
    for mode in dispatches:
        torch.utils._python_dispatch._push_mode(mode)


@contextmanager
def without_modes() -> Iterator[None]:
    """A block of our own work, into which no mode of a device's module reaches."""
    taken = take_modes()
    try:
        yield
    finally:
        put_modes(*taken)


def is_faking() -> bool:
    """Whether a FakeTensorMode is on: tensors of every device then are only described."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def default_device(mode: Any) -> torch.device | None:
    """The device of a mode that ``torch.set_default_device`` or ``with torch.device(…)`` has entered."""
    from torch.utils._device import DeviceContext

    return mode.device if isinstance(mode, DeviceContext) else None


def optimised_on(way: str, torch_type: str) -> bool:
    """Whether torch lists a device type for a way of stepping: ``foreach``, ``fused`` or ``capturable``."""
    from torch.optim.optimizer import _get_capturable_supported_devices
    from torch.utils._foreach_utils import (
        _get_foreach_kernels_supported_devices,
        _get_fused_kernels_supported_devices,
    )

    lists = {
        "foreach": _get_foreach_kernels_supported_devices,
        "fused": _get_fused_kernels_supported_devices,
        "capturable": _get_capturable_supported_devices,
    }
    # A list on the CPU is a loop: torch lists it for the choice by default only.
    return torch_type in lists[way]() or (way, torch_type) == ("foreach", "cpu")


def load_forward_ad() -> None:
    """Load what torch loads when a process first differentiates in forward mode: it compiles formulas for a sixth of a second."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of torch.jit.script, which torch calls
        importlib.import_module("torch._decomp.decompositions_for_jvp")
