"""The device as Dynamo sees it: registered when Dynamo is imported, which takes seconds, and not before."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import torch

from devices.simulated.backend import native

_TARGET: Final = "torch._dynamo.device_interface"


def register_when_imported() -> None:
    """Register the interface now where Dynamo is loaded, else as soon as it is."""
    loaded = sys.modules.get(_TARGET)
    if loaded is not None:
        _register(loaded)
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds one module as everybody else does, and registers the interface after it ran."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _register(module)

            loader.exec_module = exec_module
        return spec


def _register(module: Any) -> None:
    ours: Any = getattr(torch, native.NAME)

    class SimulatedInterface(module.DeviceInterface):  # type: ignore[misc]
        """Dynamo's questions, answered by ``torch.simulated``."""

        device = ours.device
        Event = ours.Event
        Stream = ours.Stream

        class Worker:
            """What a process that compiles asks, which may not use the device."""

            @staticmethod
            def set_device(index: int) -> None:
                ours.set_device(index)

            @staticmethod
            def current_device() -> int:
                return int(ours.current_device())

            @staticmethod
            def get_device_properties(which: Any = None) -> Any:
                return ours.get_device_properties(which)

        current_device = staticmethod(ours.current_device)
        set_device = staticmethod(ours.set_device)
        exchange_device = staticmethod(ours._exchange_device)
        maybe_exchange_device = staticmethod(ours._maybe_exchange_device)
        stream = staticmethod(ours.stream)
        current_stream = staticmethod(ours.current_stream)
        set_stream = staticmethod(ours.set_stream)
        _set_stream_by_id = staticmethod(ours._set_stream_by_id)
        synchronize = staticmethod(ours.synchronize)
        get_device_properties = staticmethod(ours.get_device_properties)
        memory_allocated = staticmethod(ours.memory_allocated)
        is_available = staticmethod(ours.is_available)
        is_initialized = staticmethod(ours.is_initialized)

        @staticmethod
        def device_count() -> int:
            return int(ours.device_count()) + native.on("compile.interface_wrong_count")

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return bool(ours.is_bf16_supported())

        @staticmethod
        def get_raw_stream(index: int) -> int:
            return int(ours.current_stream(index).native_handle or 0)

        @staticmethod
        def get_compute_capability(which: Any = None) -> str:
            return ""

    module.register_interface_for_device(native.NAME, SimulatedInterface)
    for index in range(ours.device_count()):
        module.register_interface_for_device(f"{native.NAME}:{index}", SimulatedInterface)
