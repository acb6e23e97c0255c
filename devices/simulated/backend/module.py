"""``torch.simulated``: what torch and users expect of a device's module, as of ``torch.cuda``."""

from __future__ import annotations

import atexit
import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from devices.simulated.backend import graphs, memory
from devices.simulated.backend.graphed import make_graphed_callables
from devices.simulated.backend.graphs import (
    Graph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
)
from devices.simulated.backend.memory import empty_host_cache, host_memory_stats

__all__ = [
    "Graph",
    "empty_host_cache",
    "graph",
    "graph_pool_handle",
    "graphs",
    "host_memory_stats",
    "is_current_stream_capturing",
    "make_graphed_callables",
    "memory",
]

NAME = "simulated"

_library: Any = None


def attach(library: ModuleType) -> None:
    """Use this library. Called once, by the package."""
    global _library, Gate
    _library = library
    Gate = library.Gate
    # What runs when the process ends would use what is being taken down.
    atexit.register(library.stop_kernels)
    memory.attach(library)
    graphs.attach(library)


def refuse_host_access() -> None:
    """Make the one method of torch's that follows a storage's address on the host raise instead of crashing."""
    storage: Any = torch.storage._StorageBase
    original = storage.byteswap

    def byteswap(self: Any, dtype: torch.dtype) -> Any:
        if self.device.type == NAME:
            raise NotImplementedError(
                "byteswap runs on the host, which cannot reach the simulated device's memory: call .cpu() first"
            )
        return original(self, dtype)

    storage.byteswap = byteswap


#: Holds the current stream until it is opened: ``gate = Gate(); gate.close(); ...; gate.open()``.
Gate: Any = None


# -- devices


def is_available() -> bool:
    """Whether the device can be used in this process: not after a fork."""
    return not _library.in_bad_fork()


def is_initialized() -> bool:
    """Whether this process has used the device."""
    return bool(_library.was_used())


def init() -> None:
    """Begin to use the device. Raises RuntimeError in a process forked after its parent did."""
    _library.first_use()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return bool(_library.in_bad_fork())


def device_count() -> int:
    """How many devices there are: ``$SIMULATED_DEVICES``, or 2."""
    return int(_library.device_count())


def current_device() -> int:
    """The index of this thread's current device."""
    return int(_library.current_device())


def set_device(device: torch.types.Device) -> None:
    """Make a device current; a negative index changes nothing."""
    index = _index(device)
    if index >= 0:
        _library.set_device(index)


def _exchange_device(index: int) -> int:
    """Make a device current and return the one before. A negative index changes nothing."""
    return int(_library.exchange_device(index))


_maybe_exchange_device = _exchange_device


class device:
    """``with torch.simulated.device(1):`` makes a device current for a block."""

    def __init__(self, device: torch.types.Device) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        self.idx = _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """The device of a tensor, for a block; nothing where it is on another kind of device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.get_device() if tensor.device.type == NAME else -1)


def _index(which: Any) -> int:
    """The index that a device, a number or None names. Raises ValueError for another device type."""
    if which is None:
        return current_device()
    if isinstance(which, int):
        return which
    found = torch.device(which)
    if found.type != NAME:
        raise ValueError(f"expected a {NAME} device, got {which!r}")
    return current_device() if found.index is None else found.index


def synchronize(device: torch.types.Device = None) -> None:
    """Wait for all work of a device. Raises what failed there."""
    _library.synchronize(_index(device))


# -- streams and events


def Stream(device: torch.types.Device = None, priority: int = 0, **known: Any) -> torch.Stream:
    """A stream of the pool; ``priority`` -1 is served first, 0 is the default."""
    if known:
        return torch.Stream(**known)
    return torch.Stream(torch.device(NAME, _index(device)), priority=priority)


def Event(enable_timing: bool = False, **other: Any) -> torch.Event:
    """An event of this device."""
    return torch.Event(NAME, enable_timing=enable_timing, **other)


def ExternalStream(handle: int, device: torch.types.Device = None) -> torch.Stream:
    """The stream behind a native handle; whoever made it owns it. Raises ValueError for no handle."""
    stream_id = _library.stream_of_handle(handle, _index(device))
    kind = int(torch._C._autograd.DeviceType.PrivateUse1.value)
    return torch.Stream(stream_id=stream_id, device_index=_index(device), device_type=kind)


def current_stream(device: torch.types.Device = None) -> torch.Stream:
    """This thread's current stream of a device."""
    return torch.accelerator.current_stream(torch.device(NAME, _index(device)))


def set_stream(stream: torch.Stream) -> None:
    """Make a stream, and its device, current."""
    torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """A stream as the current one, for a block."""
    if stream is None:
        yield
        return
    with stream:
        yield


def busy(milliseconds: float) -> None:
    """Keep the current stream busy for some time; the host goes on."""
    _library.busy(float(milliseconds))


# -- random numbers


def default_generators() -> tuple[torch.Generator, ...]:
    """The default generator of each device."""
    return tuple(_library.default_generator(index) for index in range(device_count()))


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _library.default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generator of every device."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator with a random number."""
    _library.default_generator(current_device()).seed()


def seed_all() -> None:
    """Seed every device's generator with the same random number."""
    manual_seed_all(torch.default_generator.seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return int(_library.default_generator(current_device()).initial_seed())


def get_rng_state(device: torch.types.Device = None) -> torch.Tensor:
    """The state of a device's generator, as bytes on the CPU."""
    state: torch.Tensor = _library.default_generator(_index(device)).get_state()
    return state


def set_rng_state(new_state: torch.Tensor, device: torch.types.Device = None) -> None:
    """Give a device's generator a state that ``get_rng_state`` returned."""
    _library.default_generator(_index(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Give every device's generator its state."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# -- memory


def memory_stats(device: torch.types.Device = None) -> OrderedDict[str, Any]:
    """Every counter of the allocator, under the names of ``torch.cuda.memory_stats``."""
    counters = dict(torch.accelerator.memory.memory_stats(_index(device)))
    # torch.accelerator leaves this one out. The device has no policy by which it would refuse before it tries.
    counters.setdefault("num_oom_rejections", 0)
    counters.update(_library.reserved_bytes_by_private_pools(_index(device)))  # and these
    return OrderedDict(sorted(counters.items()))


def memory_allocated(device: torch.types.Device = None) -> int:
    """Bytes in live blocks."""
    return torch.accelerator.memory.memory_allocated(_index(device))


def max_memory_allocated(device: torch.types.Device = None) -> int:
    """The most bytes that were in live blocks since the last reset."""
    return torch.accelerator.memory.max_memory_allocated(_index(device))


def memory_reserved(device: torch.types.Device = None) -> int:
    """Bytes in segments."""
    return torch.accelerator.memory.memory_reserved(_index(device))


def max_memory_reserved(device: torch.types.Device = None) -> int:
    """The most bytes that were in segments since the last reset."""
    return torch.accelerator.memory.max_memory_reserved(_index(device))


def reset_peak_memory_stats(device: torch.types.Device = None) -> None:
    """Let every peak be what is current."""
    torch.accelerator.memory.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: torch.types.Device = None) -> None:
    """Set every total to zero."""
    torch.accelerator.memory.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: torch.types.Device = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    return torch.accelerator.memory.get_memory_info(_index(device))


def empty_cache() -> None:
    """Return every segment without a live block."""
    torch.accelerator.memory.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: torch.types.Device = None) -> None:
    """Hold this process to a fraction of a device's memory. Raises ValueError outside [0, 1]."""
    _library.set_memory_fraction(float(fraction), _index(device))


def get_per_process_memory_fraction(device: torch.types.Device = None) -> float:
    """The fraction of a device's memory that this process may reserve."""
    return float(_library.memory_fraction(_index(device)))


# -- what else torch asks


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """bfloat16 runs, as on the CPU."""
    return True


def get_device_name(device: torch.types.Device = None) -> str:
    """The device's name, the same for all."""
    _library.checked_device(_index(device))
    return "Simulated device"
