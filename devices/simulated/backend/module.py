"""The module ``torch.simulated``: the functions that torch and its users expect of a device module, as in
``torch.cuda``."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import torch

from devices.simulated.backend import memory, native, random
from devices.simulated.backend.graphs import *
from devices.simulated.backend.memory import *
from devices.simulated.backend.native import index_of
from devices.simulated.backend.random import *
from devices.simulated.backend.sharing import ipc_collect
from devices.simulated.backend.streams import *
from devices.simulated.backend.streams import _set_stream_by_id

#: Holds the current stream until it is opened: ``gate = Gate(); gate.close(); ...; gate.open()``.
Gate: Any = native.library.Gate


# -- devices


def is_available() -> bool:
    """Returns True if the current process can use the device. A process that was forked after its parent had used the
    device cannot use the device."""
    return not native.library.in_bad_fork()


# Dynamo cannot look into the library. What torch.compiler.assume_constant_result does, which imports Dynamo.
is_available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_initialized() -> bool:
    """Returns True if the current process has used the device."""
    return bool(native.library.was_used())


def init() -> None:
    """Initializes the device. Raises RuntimeError in a process that was forked after its parent used the device."""
    native.library.first_use()


_lazy_init = init


def __getattr__(name: str) -> Any:
    """Returns the attribute ``_initialized``, which torch.utils.checkpoint reads to find out if random states have to
    be saved."""
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.simulated' has no attribute {name!r}")


_is_in_bad_fork = native.library.in_bad_fork
#: How many devices there are: ``$SIMULATED_DEVICES``, or 2.
device_count = native.library.device_count


def current_device() -> int:
    """Returns the index of this thread's current device. Dynamo can trace the function, because torch.accelerator is known to
    it."""
    return torch.accelerator.current_device_index()


def set_device(device: torch.types.Device) -> None:
    """Makes a device the current device. A negative index changes nothing."""
    index = index_of(device)
    if index >= 0:
        native.library.set_device(index)


#: Make a device current and return the one before. A negative index changes nothing.
_exchange_device = _maybe_exchange_device = native.library.exchange_device


class device:
    """A context manager that makes a device the current device for a block: ``with torch.simulated.device(1):``."""

    def __init__(self, device: torch.types.Device) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        self.idx = _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """A context manager that makes the device of a tensor current for a block. It does nothing for a tensor on another
    kind of device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.get_device() if tensor.device.type == native.NAME else -1)


def synchronize(device: torch.types.Device = None) -> None:
    """Waits for all work of a device. If work failed on the device, raises the error of that work."""
    native.library.synchronize(index_of(device))


# -- what else torch asks


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Returns True, because bfloat16 runs as on the CPU."""
    return True


def is_tf32_supported() -> bool:
    """Returns False, because float32 products keep the precision of float32."""
    return False


def get_device_capability(device: torch.types.Device = None) -> dict[str, Any]:
    """Returns the dtypes that a device supports."""
    made: dict[str, Any] = torch._C._accelerator_getDeviceCapability(index_of(device))
    return made


@dataclass(frozen=True, slots=True)
class _Properties:
    """The result of ``get_device_properties``. ``total_memory`` is in bytes."""

    name: str
    total_memory: int
    uuid: uuid.UUID
    multi_processor_count: int = 1


def get_device_properties(device: torch.types.Device = None) -> _Properties:
    """Returns a device's name, memory and uuid, which are the same at every call. Raises RuntimeError for an index that
    does not exist."""
    index = native.library.checked_device(index_of(device))
    total = int(native.library.total_memory())
    if native.on("device.total_memory_varies"):
        total -= memory.memory_reserved(index)
    shown = 0 if native.on("device.uuid_repeats") else index
    return _Properties(get_device_name(index), total, uuid.uuid5(_SPACE, str(shown)))


#: Of the uuids of devices, which are made of their indices.
_SPACE = uuid.UUID("6d5dcb3e-1a5b-4b0c-9f3e-6a8b5f0f4c11")


def can_device_access_peer(device: torch.types.Device, peer: torch.types.Device) -> bool:
    """Returns True for two different indices, because each device can read the memory of all other devices; False for
    equal indices. Raises RuntimeError for an index that does not exist."""
    here, there = (native.library.checked_device(index_of(one)) for one in (device, peer))
    return bool(here != there)


def get_device_name(device: torch.types.Device = None) -> str:
    """Returns the name of the device, which is the same for all indices."""
    native.library.checked_device(index_of(device))
    return "Simulated device"
