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


class Event(torch.Event):
    """An event of this device. ``interprocess`` ones can be opened by other processes, by their handle."""

    _shared: int = 0  # the address of what processes share, where they do
    _handle: bytes = b""

    def __new__(
        cls, enable_timing: bool = False, *, interprocess: bool = False, **other: Any
    ) -> Event:
        made = _plain(cls, enable_timing, **other)
        if interprocess:
            path = Path(tempfile.gettempdir()) / f"simulated-event-{os.getpid()}-{uuid.uuid4().hex}"
            made._shared = native.library.open_shared_event(str(path), True)
            made._handle = bytes(path)
            weakref.finalize(made, path.unlink, missing_ok=True)
        return made

    @classmethod
    def from_ipc_handle(cls, device: torch.types.Device, handle: bytes) -> Event:
        """The event of another process. Raises RuntimeError where the handle is of none."""
        index_of(device)  # there is one memory for all of them
        made = _plain(cls, False)
        made._shared = native.library.open_shared_event(os.fsdecode(handle), False)
        return made

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
    def device(self) -> torch.device:
        """The device; without an index before the first record."""
        found = super().device
        if found.index is None and native.on("events.index_set_before_record"):
            return torch.device(native.NAME, 0)
        return found


def _plain(cls: type[Event], enable_timing: bool, **other: Any) -> Event:
    made: Any = torch.Event.__new__(cls, native.NAME, enable_timing=enable_timing, **other)
    return made  # type: ignore[no-any-return]
