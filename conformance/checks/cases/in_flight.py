"""Work in flight: a stream that is held, with evidence that it is; calls in threads that may have to wait for it.

What must come to be is waited for, in time in which the process could run. What must not is watched until everything that
nothing holds up has had its turn. So no verdict depends on how busy the machine is: a healthy device does what it must do
long before a limit, and never does what it must not do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.endings import CheckFailed, NotInFlight
from conformance.checks.clock import Clock, comes_to_be
from devices.failure import Kind
from opinfo.device import Device

#: Makes a check: whether something holds, and what must hold.
Check = Callable[[object, str], None]

#: Seconds after which a gate opens by itself: otherwise a host that waits for the held work would wait forever.
LIMIT = 10.0
#: Seconds within which work that nothing holds must end.
SOON = 1.0
#: Seconds for calls that nothing holds.
CALL = 60.0
NOTHING_HELD = (
    "what happens while work is in flight: the descriptor names neither `gate` nor `busy`, and nothing else keeps a stream "
    "occupied"
)


class Hold:
    """Occupies a stream. See ``Context.hold``; the ways are the descriptor's ``gate`` and ``busy``."""

    def __init__(
        self, opened: Device, milliseconds: float, stream: Any, limit: float, check: Check
    ) -> None:
        """Without a gate the stream is occupied for this time, which ``release`` does not shorten."""
        self._device, self._milliseconds, self._limit = opened, milliseconds, limit
        self._check, self.stream = check, stream
        self.holds = opened.descriptor.gate is not None or opened.descriptor.busy is not None
        self._gate: Any = None
        self._open = threading.Event()
        self._opened_late = self._released = False

    def __enter__(self) -> Hold:
        if not self.holds:
            return self
        descriptor = self._device.descriptor
        if self.stream is None:
            self.stream = torch.accelerator.current_stream(self._device.torch_device)
        before = torch.accelerator.current_stream(self.stream.device)
        # Entering a stream that is the current one of another index leaves the index as it is (torch 2.13).
        with torch.accelerator.device_index(self.stream.device.index), self.stream:
            if descriptor.gate is not None:
                self._gate = descriptor.gate()
                self._gate.close()
                threading.Thread(target=self._open_late, args=(self._gate,), daemon=True).start()
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
        by_time = self.holds and self._gate is None and not self._released
        if by_time and self.stream.query():
            raise NotInFlight(
                f"expected query to be False during {self._milliseconds:g} ms of work by the descriptor's "
                "`busy`, found True: either `busy` does not keep the stream busy, or query is wrong"
            )

    def release(self) -> None:
        """Let the stream continue. Calling it again has no effect."""
        self._released = True
        self._open.set()
        if self._gate is not None:
            self._gate.open()
            self._gate = None

    def check(self, seen: Callable[[], object], text: str) -> None:
        """A check of what is seen while the stream is held; nothing where none is."""
        if self.holds:
            found = seen()
            self.must_be_in_flight()
            self._check(found, text)

    def pending(self, text: str, *what: Any) -> None:
        """A check that none of these streams and events says that it is done."""
        self.check(lambda: not any(each.query() for each in what), text)

    def waits(self, what: Any, text: str) -> None:
        """A check that a stream's or an event's work is not done while what it waits for is held; nothing where none
        is."""
        if self.holds:
            early = comes_to_be(what.query)
            self.must_be_in_flight()
            self._check(not early, text)

    def call(self, function: Callable[[], Any], seconds: float = 0.0) -> WaitingCall:
        """Make a call that may have to wait for the stream. Whether it returns ``early``, although the stream is held,
        is in the answer; then the stream continues, and the call ends. One that must not wait has ``seconds``."""
        with WaitingCall(function) as call:
            call.early = call.ended(seconds) if seconds else call.is_early()
            self.must_be_in_flight()
            self.release()
        return call

    def keeps_waiting(self, function: Callable[[], Any], text: str) -> None:
        """A check that a call does not return before the stream continues; without a hold it is only made."""
        call = self.call(function)
        if self.holds:
            self._check(not call.early, text)

    def _open_late(self, gate: Any) -> None:
        if not Clock().wait(self._open.wait, self._limit):
            self._opened_late = True
            gate.open()


def ends(what: Any, seconds: float = SOON) -> bool:
    """Whether a stream's or an event's work is done within that time, by its ``query``."""

    def is_done(waiting: float) -> bool:
        end = time.monotonic() + waiting
        while not what.query():
            if time.monotonic() > end:
                return False
            time.sleep(0.0002)  # leaves the processor to the work
        return True

    return is_done(0.0) or Clock().wait(is_done, seconds)


class WaitingCall:
    """A call in its own thread, which may have to wait for what the calling thread holds::

    with WaitingCall(stream.synchronize) as call:
        early = call.is_early()
        hold.release()
    # the call has ended here; what it raised is raised here
    """

    def __init__(self, function: Callable[[], Any], limit: float = CALL) -> None:
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

    def is_early(self) -> bool:
        """Whether the call ends as soon as it has had its turn: it does not wait."""
        return comes_to_be(lambda: not self.thread.is_alive())

    def ended(self, seconds: float) -> bool:
        """Whether the call has ended within that time."""

        def has_ended(waiting: float) -> bool:
            self.thread.join(waiting)
            return not self.thread.is_alive()

        return has_ended(0.0) or Clock().wait(has_ended, seconds)

    def join(self) -> None:
        """Wait for the end of the call. Raises what the call raised, or CheckFailed if it does not end."""
        if not self.ended(self._limit):
            raise _still_running("a call ends", self._limit)
        if self.error is not None:
            raise self.error


def value_behind(hold: Hold, function: Callable[[], Any]) -> Any:
    """What a call gives that may have to wait for held work, which is released when the call has had its turn."""
    with hold, WaitingCall(function) as call:
        call.is_early()  # it returns now, or waits for the stream
        hold.must_be_in_flight()
        hold.release()
        call.join()
    return call.value


def together(*functions: Callable[[], Any], seconds: float = CALL) -> list[Any]:
    """Start all functions at one barrier, each in its own thread. Returns their results in order.

    Raises what the first of them raised, or CheckFailed if one has not ended after ``seconds``
    (it keeps running, because a thread cannot be stopped from outside).
    """
    barrier = threading.Barrier(len(functions))

    def begin_together(function: Callable[[], Any]) -> Any:
        barrier.wait()
        return function()

    calls = [WaitingCall(partial(begin_together, each), seconds) for each in functions]
    for call in calls:
        call.thread.start()
    clock = Clock()
    hanging = sum(not call.ended(max(seconds - clock.now(), 0.0)) for call in calls)
    for call in calls:
        if call.error is not None:
            raise call.error
    if hanging:
        raise _still_running("every thread ends", seconds, f"{hanging} of {len(calls)} threads")
    return [call.value for call in calls]


def _still_running(subject: str, seconds: float, what: str = "it") -> CheckFailed:
    return CheckFailed.of(Kind.ENDED, subject, found=f"{what} had not ended after {seconds:g} s")
