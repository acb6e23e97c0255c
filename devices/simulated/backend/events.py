"""Events of ``torch.simulated``, as in ``torch.cuda``: with times, and across processes."""

from __future__ import annotations

import os
import tempfile
import uuid
import weakref
from pathlib import Path
from typing import Any

import torch

from devices.simulated.backend import native
from devices.simulated.backend.indices import index_of

#: What is planted in the events of the class below.
_FAULTS = (
    "events.unrecorded_not_ready",
    "events.elapsed_untimed_accepted",
    "events.index_set_before_record",
)


class Event:
    """An event of this device: a torch.Event; ``interprocess`` ones can be opened by other processes.

    Not a class of its own where it need not be: methods of torch.Event and torch.Stream take no subclass
    (torch/csrc/Event.cpp, torch 2.13).
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
        """The event of another process. Raises RuntimeError where the handle is of none."""
        index_of(device)  # there is one memory for all of them
        made = _plain(False)
        made._shared = native.library.open_shared_event(os.fsdecode(handle), False)
        return made


class _OwnEvent(torch.Event):
    """An event whose methods are the device's."""

    _shared: int = 0  # the address of what processes share, where they do
    _handle: bytes = b""

    def ipc_handle(self) -> bytes:
        """By what another process opens this event. Raises RuntimeError where it is for this one alone."""
        if not self._handle:
            raise RuntimeError(
                "simulated device: make the event with interprocess=True to have a handle of it"
            )
        return self._handle

    def record(self, stream: torch.Stream | None = None) -> None:
        """Record the point that a stream, the current one by default, has reached."""
        chosen = stream or torch.accelerator.current_stream(native.NAME)
        super().record(chosen)
        if self._shared:
            native.library.record_shared_event(self._shared, chosen.device_index, chosen.stream_id)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let a stream, the current one by default, wait for the latest record."""
        chosen = stream or torch.accelerator.current_stream(native.NAME)
        if self._shared:
            native.library.wait_shared_event(self._shared, chosen.device_index, chosen.stream_id)
        else:
            super().wait(chosen)

    def query(self) -> bool:
        """Whether the latest record is done; True where there is none."""
        if self._shared:
            return bool(native.library.shared_event_done(self._shared))
        if native.on("events.unrecorded_not_ready") and not self.event_id:
            return False
        return super().query()

    def synchronize(self) -> None:
        """Wait for the latest record."""
        if self._shared:
            native.library.synchronize_shared_event(self._shared)
        else:
            super().synchronize()

    def elapsed_time(self, other: torch.Event) -> float:
        """Milliseconds from this event to another. Raises ValueError where one was not recorded or has no
        time, RuntimeError where one is not done."""
        return float(native.library.elapsed_time(self.event_id, other.event_id))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device; without an index before the first record."""
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
