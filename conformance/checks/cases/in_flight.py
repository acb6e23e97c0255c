"""Work in flight: a stream that is held, with evidence that it is; calls in threads that may have to wait for it.

A limit only decides how long a faulty device is watched. A healthy device does what it must do long before, and
never does what it must not do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.endings import CheckFailed, NotDeclared, NotInFlight
from devices.failure import Kind
from opinfo.device import Device

#: Seconds after which a gate opens by itself: otherwise a host that waits for the held work would wait forever.
LIMIT = 10.0
#: Seconds within which work that nothing holds must end.
SOON = 1.0
#: Seconds for which work that must not end yet is watched.
GLANCE = 0.01


class Hold:
    """Occupies a stream. See ``Context.hold``; the ways are the descriptor's ``gate`` and ``busy``."""

    def __init__(self, opened: Device, milliseconds: float, stream: Any, limit: float) -> None:
        self._device, self._milliseconds, self._limit = opened, milliseconds, limit
        self.stream = stream
        self._gate: Any = None
        self._opener: threading.Timer | None = None
        self._opened_late = self._released = False

    def __enter__(self) -> Hold:
        descriptor = self._device.descriptor
        if descriptor.gate is None and descriptor.busy is None:
            raise NotDeclared(
                "the descriptor names neither `gate` nor `busy`, and nothing else keeps a stream occupied"
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

    def __exit__(self, kind: object, error: object, at: object) -> None:
        try:
            if error is None:
                self.must_be_in_flight()
        finally:
            self.release()

    def must_be_in_flight(self) -> None:
        """Evidence that the stream is still occupied, or was until it was released. Raises NotInFlight.

        A stream held by a gate is so by construction: a device whose ``query`` answers wrongly is
        judged for that elsewhere. Where the host was kept waiting until the gate opened by itself,
        raises CheckFailed.
        """
        if self._opened_late:
            subject = "the host continues while work is in flight"
            blocked = f"it was blocked for {self._limit:g} s"
            raise CheckFailed.of(Kind.STATE, subject, found=blocked)
        if self._gate is None and not self._released and self.stream.query():
            raise NotInFlight(
                f"nothing was shown: {self._milliseconds:g} ms of work finished before they "
                "could be observed"
            )

    def release(self) -> None:
        """Let the stream continue. Calling it again has no effect."""
        self._released = True
        if self._opener is not None:
            self._opener.cancel()
            self._opener = None
        if self._gate is not None:
            self._gate.open()
            self._gate = None

    def call(self, function: Callable[[], Any], seconds: float = GLANCE) -> WaitingCall:
        """Make a call that may have to wait for the stream. Whether it returns ``early``, within that time, is
        in the answer; then the stream continues, and the call ends."""
        with WaitingCall(function) as call:
            call.early = call.ended(seconds)
            self.must_be_in_flight()
            self.release()
        return call

    def _open_late(self) -> None:
        gate = self._gate
        if gate is not None:
            self._opened_late = True
            gate.open()


def ends(what: Any, seconds: float = SOON) -> bool:
    """Whether a stream's or an event's work is done within that time, by its ``query``."""
    end = time.monotonic() + seconds
    while not what.query():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)  # leaves the processor to the work
    return True


def ends_early(what: Any, hold: Hold, seconds: float = GLANCE) -> bool:
    """Whether a stream's or an event's work is done while what it waits for is held."""
    early = ends(what, seconds)
    hold.must_be_in_flight()
    return early


class WaitingCall:
    """A call in its own thread, which may have to wait for what the calling thread holds::

    with WaitingCall(stream.synchronize) as call:
        early = call.ended(GLANCE)
        hold.release()
    # the call has ended here; what it raised is raised here
    """

    def __init__(self, function: Callable[[], Any], limit: float = 60.0) -> None:
        self._function = function
        self._limit = limit
        self.error: BaseException | None = None
        self.value: Any = None
        self.early = False  # it returned while what it may have to wait for was held
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # raised where the call was made
            self.error = error

    def __enter__(self) -> WaitingCall:
        self.thread.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if error is None:
            self.join()

    def ended(self, seconds: float) -> bool:
        """Whether the call has ended within that time."""
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the call. Raises what the call raised, or CheckFailed if it does not end."""
        if not self.ended(self._limit):
            raise _still_running("a call ends", self._limit)
        if self.error is not None:
            raise self.error


def value_behind(hold: Hold, function: Callable[[], Any]) -> Any:
    """What a call gives that may have to wait for held work, which is released a glance later."""
    with hold, WaitingCall(function) as call:
        call.ended(GLANCE)  # it returns now, or waits for the stream
        hold.must_be_in_flight()
        hold.release()
        call.join()
    return call.value


def together(*functions: Callable[[], Any], seconds: float = 60.0) -> list[Any]:
    """Start all functions at one barrier, each in its own thread. Returns their results in order.

    Raises what the first of them raised, or CheckFailed if one has not ended after ``seconds``
    (it keeps running, because a thread cannot be stopped from outside).
    """
    barrier = threading.Barrier(len(functions))

    def begin_together(function: Callable[[], Any]) -> Any:
        barrier.wait(timeout=seconds)
        return function()

    calls = [WaitingCall(partial(begin_together, each), seconds) for each in functions]
    for call in calls:
        call.thread.start()
    end = time.monotonic() + seconds
    hanging = sum(not call.ended(max(end - time.monotonic(), 0.0)) for call in calls)
    for call in calls:
        if call.error is not None:
            raise call.error
    if hanging:
        raise _still_running("every thread ends", seconds, f"{hanging} of {len(calls)} threads")
    return [call.value for call in calls]


def _still_running(subject: str, seconds: float, what: str = "it") -> CheckFailed:
    return CheckFailed.of(Kind.ENDED, subject, found=f"{what} had not ended after {seconds:g} s")
