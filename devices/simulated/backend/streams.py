"""Streams and events of ``torch.simulated``, as in ``torch.cuda``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from devices.simulated.backend import native
from devices.simulated.backend.indices import index_of


class Stream(torch.Stream):
    """A stream of the pool; ``priority`` -1 is served first, 0 is the default. Others are clamped."""

    def __new__(cls, device: torch.types.Device = None, priority: int = 0, **known: Any) -> Stream:
        made: Any = torch.Stream.__new__
        if known:
            return made(cls, **known)  # type: ignore[no-any-return]
        return made(cls, torch.device(native.NAME, index_of(device)), priority=priority)  # type: ignore[no-any-return]

    def wait_event(self, event: torch.Event) -> None:
        """Let what is queued from now on wait for an event, of this process or another."""
        event.wait(self)

    @property
    def priority(self) -> int:
        """The priority that the stream was made with, within ``priority_range``."""
        return int(native.library.stream_priority(self.device_index, self.stream_id))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return (0, -1)


class ExternalStream(Stream):
    """The stream behind a native handle; whoever made it owns it. Raises ValueError for no handle."""

    def __new__(cls, handle: int, device: torch.types.Device = None) -> ExternalStream:
        index = index_of(device)
        kind = int(torch._C._autograd.DeviceType.PrivateUse1.value)
        stream_id = native.library.stream_of_handle(handle, index)
        made: Any = torch.Stream.__new__
        return made(cls, stream_id=stream_id, device_index=index, device_type=kind)  # type: ignore[no-any-return]

    def __del__(self) -> None:
        if native.on("streams.external_destroys_owner"):
            native.library.destroy_stream(self.device_index, self.stream_id)


def get_stream_from_external(data_ptr: int, device: torch.types.Device = None) -> ExternalStream:
    """``ExternalStream`` under the name that ``torch.cuda`` has for it too."""
    return ExternalStream(data_ptr, device)


def current_stream(device: torch.types.Device = None) -> torch.Stream:
    """This thread's current stream of a device."""
    return torch.accelerator.current_stream(torch.device(native.NAME, index_of(device)))


def default_stream(device: torch.types.Device = None) -> torch.Stream:
    """The default stream of a device."""
    kind = int(torch._C._autograd.DeviceType.PrivateUse1.value)
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, current; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """Make the stream of these three numbers current: what compiled code calls."""
    torch.accelerator.set_stream(
        torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    )


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
    native.library.busy(float(milliseconds))
