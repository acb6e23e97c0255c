"""Streams and events of ``torch.simulated``, as in ``torch.cuda``."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from devices.simulated.backend import native
from devices.simulated.backend.native import index_of


class Stream(torch.Stream):
    """A stream from the pool of a device. Streams with priority -1 are served first. The default priority is 0;
    priorities outside this range are clamped."""

    def __new__(cls, device: torch.types.Device = None, priority: int = 0, **known: Any) -> Stream:
        made: Any = torch.Stream.__new__
        if known:
            return made(cls, **known)  # type: ignore[no-any-return]
        return made(cls, torch.device(native.NAME, index_of(device)), priority=priority)  # type: ignore[no-any-return]

    def wait_event(self, event: torch.Event) -> None:
        """Makes work that is queued on the stream from now on wait for an event, which may be an event of another
        process."""
        event.wait(self)

    @property
    def priority(self) -> int:
        """The priority of the stream, clamped to ``priority_range``."""
        if self.device_index and native.on("streams.priority_lost_elsewhere"):
            return 0
        return int(native.library.stream_priority(self.device_index, self.stream_id))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the priorities of the least urgent and of the most urgent streams, 0 and -1."""
        return (0, -1)


class ExternalStream(Stream):
    """A stream with a given native handle. The code that created the handle owns the native stream. Raises ValueError
    for an invalid handle."""

    def __new__(cls, handle: int, device: torch.types.Device = None) -> ExternalStream:
        index = 0 if native.on("streams.external_of_index_0") else index_of(device)
        kind = int(torch._C._autograd.DeviceType.PrivateUse1.value)
        stream_id = native.library.stream_of_handle(handle, index)
        made: Any = torch.Stream.__new__
        return made(cls, stream_id=stream_id, device_index=index, device_type=kind)  # type: ignore[no-any-return]

    def __del__(self) -> None:
        if native.on("streams.external_destroys_owner"):
            native.library.destroy_stream(self.device_index, self.stream_id)


def get_stream_from_external(data_ptr: int, device: torch.types.Device = None) -> ExternalStream:
    """Returns an ``ExternalStream`` for a native handle. ``torch.cuda`` has a function of the same name."""
    return ExternalStream(data_ptr, device)


def current_stream(device: torch.types.Device = None) -> torch.Stream:
    """Returns the current thread's current stream on a device."""
    return torch.accelerator.current_stream(torch.device(native.NAME, index_of(device)))


def default_stream(device: torch.types.Device = None) -> torch.Stream:
    """Returns the default stream of a device."""
    kind = int(torch._C._autograd.DeviceType.PrivateUse1.value)
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream and its device current; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """Makes the stream with the given stream_id, device_index and device_type current. Compiled code calls the
    function."""
    torch.accelerator.set_stream(
        torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    )


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes a stream current for a ``with`` block; None changes nothing."""
    with stream or contextlib.nullcontext():
        yield


def busy(milliseconds: float) -> None:
    """Keeps the current stream busy for the given time. The host does not wait."""
    native.library.busy(float(milliseconds))


#: What is planted in the events of the class below.
_FAULTS = (
    "events.unrecorded_not_ready",
    "events.elapsed_untimed_accepted",
    "events.index_set_before_record",
)


class Event:
    """The constructor of an event of the device. It returns a torch.Event, because methods of torch.Event and
    torch.Stream accept no subclass (torch/csrc/Event.cpp, torch 2.13).

    If ``interprocess`` is true, other processes can open the event. In this case, or while a planted fault of events
    is on, the result is of the subclass ``_OwnEvent``.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, *, interprocess: bool = False, **other: Any
    ) -> torch.Event:
        if interprocess:
            return _shared_by_name(enable_timing)
        if any(map(native.on, _FAULTS)):
            return _plain(enable_timing, **other)
        return torch.Event(native.NAME, enable_timing=enable_timing, **other)

    @classmethod
    def from_ipc_handle(cls, device: torch.types.Device, handle: bytes) -> torch.Event:
        """Returns the event of another process. Raises RuntimeError if the handle is invalid."""
        index_of(device)  # there is one memory for all of them
        made = _plain(False)
        made._shared = native.library.open_shared_event(os.fsdecode(handle), False)
        return made


class _OwnEvent(torch.Event):
    """An event whose methods are implemented by the device itself."""

    _shared: int = 0  # the address of what processes share, where they do
    _handle: bytes = b""

    def ipc_handle(self) -> bytes:
        """Returns the handle with which another process can open the event. Raises RuntimeError if the event was
        not created with interprocess=True."""
        if not self._handle:
            raise RuntimeError(
                "simulated device: the event has no handle: create it with interprocess=True"
            )
        return self._handle

    def record(self, stream: torch.Stream | None = None) -> None:
        """Makes the event complete when the work that is now queued on the stream has finished. The default is the
        current stream."""
        chosen = stream or torch.accelerator.current_stream(native.NAME)
        super().record(chosen)
        if self._shared:
            place = chosen.device_index, chosen.stream_id
            if chosen.device_index and native.on("events.ipc_recorded_on_index_0"):
                place = 0, 0  # the default stream there
            native.library.record_shared_event(self._shared, *place)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes a stream wait for the latest record of the event. The default is the current stream."""
        chosen = stream or torch.accelerator.current_stream(native.NAME)
        if self._shared:
            native.library.wait_shared_event(self._shared, chosen.device_index, chosen.stream_id)
        else:
            super().wait(chosen)

    def query(self) -> bool:
        """Returns True if all work before the latest record has finished, or if the event was never recorded."""
        if self._shared:
            return bool(native.library.shared_event_done(self._shared))
        if native.on("events.unrecorded_not_ready") and not self.event_id:
            return False
        return super().query()

    def synchronize(self) -> None:
        """Blocks the host until all work before the latest record has finished."""
        if self._shared:
            if not native.on("events.ipc_synchronize_returns_early"):
                native.library.synchronize_shared_event(self._shared)
        else:
            super().synchronize()

    def elapsed_time(self, other: torch.Event) -> float:
        """Returns the time from this event to the event ``other``, in milliseconds.

        Raises ValueError if an event was not recorded or was created without timing, and RuntimeError if an event has
        not completed or if the events were recorded on different devices.
        """
        return float(native.library.elapsed_time(self.event_id, other.event_id))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of the event. It has no index before the first record."""
        found = super().device
        if found.index is None and native.on("events.index_set_before_record"):
            return torch.device(native.NAME, 0)
        return found


def _plain(enable_timing: bool, **other: Any) -> _OwnEvent:
    made: Any = torch.Event.__new__
    return made(_OwnEvent, native.NAME, enable_timing=enable_timing, **other)  # type: ignore[no-any-return]


def _shared_by_name(enable_timing: bool) -> _OwnEvent:
    made = _plain(enable_timing)
    path = Path(tempfile.gettempdir()) / f"simulated-event-{os.getpid()}-{uuid.uuid4().hex}"
    made._shared = native.library.open_shared_event(str(path), True)
    made._handle = bytes(path)
    weakref.finalize(made, path.unlink, missing_ok=True)
    return made
