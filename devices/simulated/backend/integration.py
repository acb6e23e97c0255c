"""Adds the parts that torch lacks for a renamed backend: the DLPack protocol, Dynamo's device interface, and an error
for operations that would access device memory from the host."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import torch

from devices.simulated.backend import compiler, native
from devices.simulated.backend.streams import ExternalStream, current_stream, default_stream


def teach_tensors() -> None:
    """Adds DLPack's protocol to tensors of the device. The package calls the function once.

    Torch's C++ code exchanges the tensors as kDLExtDev without a copy, but ``Tensor.__dlpack_device__`` compares the
    name of the device with the literal "privateuse1", which a renamed backend no longer has. The function therefore
    wraps ``__dlpack_device__`` and ``__dlpack__``.
    """
    tensor: Any = torch.Tensor
    device_of, capsule_of = tensor.__dlpack_device__, tensor.__dlpack__

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type != native.NAME:
            return device_of(self)
        from torch.utils.dlpack import DLDeviceType

        return (DLDeviceType.kDLExtDev, self.device.index)

    def __dlpack__(self: torch.Tensor, *, stream: Any = -1, **options: Any) -> Any:
        if self.device.type != native.NAME:
            return capsule_of(self, stream=stream, **options)
        # None and -1 say that no order is wanted.
        if stream not in (None, -1) and not native.on("transfer.dlpack_ignores_stream"):
            _order(self.device.index, stream)
        exported = self.clone() if native.on("transfer.dlpack_copies") else self
        if native.on("transfer.dlpack_ignores_offset"):
            exported = self.as_strided(self.size(), self.stride(), 0)
        return capsule_of(exported, stream=-1, **options)

    tensor.__dlpack_device__ = __dlpack_device__
    tensor.__dlpack__ = __dlpack__


def _order(index: int, handle: object) -> None:
    """Makes another stream wait for the current stream of the device. ``handle`` is the native handle of that stream,
    on which a consumer will read the tensor. Raises TypeError if the handle is not an integer."""
    if not isinstance(handle, int):
        raise TypeError("stream must be ``int`` or ``none``")
    # 0 and 1 are the default stream.
    consumer = default_stream(index) if handle in (0, 1) else ExternalStream(handle, index)
    producer = current_stream(index)
    if consumer != producer:
        consumer.wait_stream(producer)


def register_when_imported() -> None:
    """Registers the device with Dynamo: immediately if Dynamo is loaded, otherwise when it is imported.

    Importing Dynamo takes seconds, so the function does not import it.
    """
    for target, register in _TARGETS.items():
        if target in sys.modules:
            register(sys.modules[target])
        else:
            sys.meta_path.insert(0, _Finder(target, register))


class _Finder:
    """A module finder that finds one module with the usual finders, and calls a function with that module after it has
    run."""

    def __init__(self, target: str, register: Callable[[Any], None]) -> None:
        self._target, self._register = target, register

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._target:
            return None
        sys.meta_path.remove(self)
        register = self._register
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                register(module)

            loader.exec_module = exec_module
        return spec


def _register(module: Any) -> None:
    ours: Any = getattr(torch, native.NAME)

    class SimulatedInterface(module.DeviceInterface):  # type: ignore[misc]
        """Dynamo's device interface, implemented by ``torch.simulated``."""

        device = ours.device
        Event = torch.Event  # its own constructor of events is no class of events
        Stream = ours.Stream
        exchange_device = maybe_exchange_device = staticmethod(ours._exchange_device)

        class Worker:
            """The part of the interface for compiler processes. Such processes must not use the device."""

        @staticmethod
        def device_count() -> int:
            return int(ours.device_count()) + native.on("compile.interface_wrong_count")

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return bool(ours.is_bf16_supported())

        @staticmethod
        def get_raw_stream(index: int) -> int:
            if native.on("compile.interface_no_raw_stream"):
                return int(ours.default_stream(index).native_handle or 0)
            return int(ours.current_stream(index).native_handle or 0)

        @staticmethod
        def current_device() -> int:
            stale = native.on("compile.interface_current_stale")
            return 0 if stale else int(ours.current_device())

        @staticmethod
        def synchronize(device: torch.types.Device = None) -> None:
            if not native.on("compile.interface_waits_for_nothing"):
                ours.synchronize(device)

        @staticmethod
        def get_compute_capability(which: Any = None) -> str:
            return ""

    worker: Any = SimulatedInterface.Worker
    worker.current_device = SimulatedInterface.current_device
    for name in ("set_device", "get_device_properties"):
        setattr(worker, name, staticmethod(getattr(ours, name)))
        setattr(SimulatedInterface, name, staticmethod(getattr(ours, name)))
    for name in (
        *("stream", "current_stream", "set_stream", "_set_stream_by_id"),
        *("memory_allocated", "is_available", "is_initialized"),
    ):
        setattr(SimulatedInterface, name, staticmethod(getattr(ours, name)))
    module.register_interface_for_device(native.NAME, SimulatedInterface)
    for index in range(ours.device_count()):
        module.register_interface_for_device(f"{native.NAME}:{index}", SimulatedInterface)


#: The modules of torch with which the device is registered, and how.
_TARGETS: Final[dict[str, Callable[[Any], None]]] = {
    "torch._dynamo.device_interface": _register,
    "torch._dynamo.backends.registry": compiler.register,
}


def refuse_host_access() -> None:
    """Makes ``UntypedStorage.byteswap`` raise an error for storages of the device. Without the error, the process would
    crash, because byteswap uses the device address on the host."""
    storage: Any = torch.storage._StorageBase
    original = storage.byteswap

    def byteswap(self: Any, dtype: torch.dtype) -> Any:
        if self.device.type == native.NAME:
            raise NotImplementedError(
                "byteswap runs on the host, which cannot reach the simulated device's memory: call .cpu() first"
            )
        return original(self, dtype)

    storage.byteswap = byteswap
