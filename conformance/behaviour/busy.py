"""Keeping a stream occupied, with evidence that it is: a handshake where the device has one, else time."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch

from conformance.behaviour.judging import CheckFailed, NotInFlight, NotShown
from opinfo.device import Device

#: Seconds after which a gate opens by itself: a host that waits for what is held would wait for ever.
LIMIT = 10.0


class Hold:
    """Occupies a stream. See ``Context.hold``; the ways are the descriptor's ``gate`` and ``busy``."""

    def __init__(
        self, opened: Device, milliseconds: float, stream: Any, limit: float = LIMIT
    ) -> None:
        self._device = opened
        self._milliseconds = milliseconds
        self.stream = stream
        self._gate: Any = None
        self._limit = limit
        self._opener: threading.Timer | None = None
        self._opened_late = False

    def __enter__(self) -> Hold:
        descriptor = self._device.descriptor
        if descriptor.gate is None and descriptor.busy is None:
            raise NotShown(
                "the descriptor names neither `gate` nor `busy`: nothing keeps a stream occupied"
            )
        if self.stream is None:
            self.stream = torch.accelerator.current_stream(self._device.torch_device)
        before = torch.accelerator.current_stream(self.stream.device)
        with self.stream:
            if descriptor.gate is not None:
                self._gate = descriptor.gate()
                self._gate.close()
                self._opener = threading.Timer(self._limit, self._open_late)
                self._opener.daemon = True
                self._opener.start()
            elif descriptor.busy is not None:
                descriptor.busy(self._milliseconds)
        if torch.accelerator.current_stream(self.stream.device) != before:
            torch.accelerator.set_stream(before)  # a fault of `with stream`; judged elsewhere
        self.must_be_in_flight()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()
        if error is None:
            self._must_have_gone_on()

    @property
    def exact(self) -> bool:
        """Whether the stream stays occupied until it is released, however long that takes."""
        return self._gate is not None

    def must_be_in_flight(self) -> None:
        """Evidence that the stream is still occupied. Raises NotInFlight.

        A stream held by a gate is so by construction: a device whose ``query`` answers wrongly is
        judged for that elsewhere. Where the host was kept waiting until the gate opened by itself,
        raises CheckFailed.
        """
        self._must_have_gone_on()
        if self._gate is None and self.stream.query():
            raise NotInFlight(
                f"nothing was shown: {self._milliseconds:g} ms of work were over before anything "
                "was seen of them"
            )

    def release(self) -> None:
        """Let the stream's other work go on. Once is enough."""
        if self._opener is not None:
            self._opener.cancel()
            self._opener = None
        if self._gate is not None:
            self._gate.open()
            self._gate = None

    def _must_have_gone_on(self) -> None:
        if self._opened_late:
            raise CheckFailed(
                f"the host goes on while work is in flight: it was kept waiting for {self._limit:g} s"
            )

    def _open_late(self) -> None:
        gate = self._gate
        if gate is not None:
            self._opened_late = True
            gate.open()
