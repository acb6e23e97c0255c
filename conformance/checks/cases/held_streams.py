"""Keeps work in flight (queued and not yet finished): occupies a stream, verifies that the stream is still occupied,
and makes calls, each in its own thread, that may have to wait for the stream.

A check that something happens has a time limit, which counts only time in which the process could run. A check that
something does not happen waits until every other thread of the process has had a chance to run. So no verdict depends
on how busy the machine is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.exceptions import CheckFailed, NotInFlight
from conformance.checks.clock import Clock, comes_to_be
from devices.failure import Kind
from opinfo.device import Device

#: Makes a check: a condition, and a sentence that says what is wrong if it is false.
Check = Callable[[object, str], None]

#: Seconds after which a gate opens by itself. Otherwise a host that waits for the held work would wait
#: forever.
LIMIT = 10.0
#: Seconds within which work must end if nothing holds it up.
SOON = 1.0
#: Seconds within which a call must return if nothing holds it up.
CALL = 60.0
NOTHING_HELD = "work in flight was not checked: the descriptor declares neither `gate` nor `busy`, so no stream can be kept occupied"


#: The device types and indices on which ``busy`` has been called in this process.
_PREPARED: set[tuple[str, int]] = set()


def prepare_busy(opened: Device) -> None:
    """Calls the descriptor's ``busy`` on each device index and waits for the work, once in a process. The first call may
    measure how long the work takes, and allocate memory that ``busy`` keeps. Inside of a case this memory would change the
    counters that the case compares."""
    descriptor, kind = opened.descriptor, opened.torch_device.type
    if descriptor.busy is None:
        return
    for index in range(descriptor.device_count()):
        if (kind, index) not in _PREPARED:
            _PREPARED.add((kind, index))
            # An exception is suppressed here: the cases that call `busy` report it.
            with suppress(Exception), torch.accelerator.device_index(index):
                descriptor.busy(0.0)
                torch.accelerator.current_stream().synchronize()


class Hold:
    """A context manager that keeps a stream occupied, by the descriptor's ``gate`` or ``busy``. See
    ``CaseContext.hold``."""

    def __init__(
        self, opened: Device, milliseconds: float, stream: Any, limit: float, check: Check
    ) -> None:
        """Prepares to occupy a stream. Without a gate, the stream will be occupied for ``milliseconds``, even if
        ``release`` is called earlier."""
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
        # Entering a stream of another index, if it is that index's current stream, does not change the device
        # index (torch 2.13).
        with torch.accelerator.device_index(self.stream.device.index), self.stream:
            if descriptor.gate is not None:
                self._gate = descriptor.gate()
                self._gate.close()
                threading.Thread(target=self._open_late, args=(self._gate,), daemon=True).start()
            elif descriptor.busy is not None:
                descriptor.busy(self._milliseconds)
        if torch.accelerator.current_stream(self.stream.device) != before:
            torch.accelerator.set_stream(before)  # `with stream` is judged elsewhere
        self.must_be_in_flight()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        try:
            if error is None:
                self.must_be_in_flight()
        finally:
            self.release()

    def must_be_in_flight(self) -> None:
        """Verifies that the stream is still occupied, or that it was occupied until its release. Raises NotInFlight
        otherwise.

        If a gate holds the stream, ``query`` is not called, because other clauses judge whether ``query`` is right.
        Raises CheckFailed if the gate opened by itself because the host was blocked.
        """
        if self._opened_late:
            subject = "the host was blocked by work in flight"
            blocked = f"the host was blocked for {self._limit:g} s"
            expected = "the host to continue at once"
            raise CheckFailed.of(Kind.STATE, subject, expected=expected, found=blocked)
        by_time = self.holds and self._gate is None and not self._released
        if by_time and self.stream.query():
            raise NotInFlight(
                f"expected query to be False during {self._milliseconds:g} ms of work by the descriptor's "
                "`busy`, found True: either `busy` does not keep the stream busy, or query is wrong"
            )

    def release(self) -> None:
        """Lets the stream continue. A second call has no effect."""
        self._released = True
        self._open.set()
        if self._gate is not None:
            self._gate.open()
            self._gate = None

    def check(self, seen: Callable[[], object], text: str) -> None:
        """Checks that ``seen()`` returns a true value while the stream is held. Does nothing if no stream is held."""
        if self.holds:
            found = seen()
            self.must_be_in_flight()
            self._check(found, text)

    def pending(self, text: str, *what: Any) -> None:
        """Checks that ``query`` is False for all of the given streams and events while the stream is held."""
        self.check(lambda: not any(each.query() for each in what), text)

    def waits(self, what: Any, text: str) -> None:
        """Checks that the work of a stream or an event does not finish while the held stream is occupied. Does nothing
        if no stream is held."""
        if self.holds:
            early = comes_to_be(what.query)
            self.must_be_in_flight()
            self._check(not early, text)

    def give_others_a_turn(self) -> None:
        """Waits until all work has run that does not wait for the held stream, so that work which wrongly runs elsewhere has
        run before the release. Does nothing if no stream is held."""
        if self.holds:
            comes_to_be(lambda: False)
            self.must_be_in_flight()

    def call(self, function: Callable[[], Any], seconds: float = 0.0) -> WaitingCall:
        """Makes a call that may have to wait for the held stream, then unblocks the stream and lets the call finish.
        The result's ``early`` is True if the call returned while the stream was held. With ``seconds``, the call gets
        that much time to return early."""
        with WaitingCall(function) as call:
            call.early = call.ended(seconds) if seconds else call.is_early()
            self.must_be_in_flight()
            self.release()
        return call

    def keeps_waiting(self, function: Callable[[], Any], text: str) -> None:
        """Checks that a call does not return before the stream is unblocked. If no stream is held, the call is made
        without a check."""
        call = self.call(function)
        if self.holds:
            self._check(not call.early, text)

    def _open_late(self, gate: Any) -> None:
        if not Clock().wait(self._open.wait, self._limit):
            self._opened_late = True
            gate.open()


def ends(what: Any, seconds: float = SOON) -> bool:
    """Returns True if ``query`` of a stream or an event becomes True within ``seconds``."""

    def is_done(waiting: float) -> bool:
        end = time.monotonic() + waiting
        while not what.query():
            if time.monotonic() > end:
                return False
            time.sleep(0.0002)  # leaves the processor to the work
        return True

    return is_done(0.0) or Clock().wait(is_done, seconds)


class WaitingCall:
    """A call that runs in its own thread, because it may have to wait for work that the calling thread holds up::

    with WaitingCall(stream.synchronize) as call:
        early = call.is_early()
        hold.release()
    # the call has returned here; an exception of the call is raised here
    """

    def __init__(self, function: Callable[[], Any], limit: float = CALL) -> None:
        self._function = function
        self._limit = limit
        self.error: BaseException | None = None
        self.value: Any = None
        self.early = False  # True if it returned while the stream was held
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # raised again by join()
            self.error = error

    def __enter__(self) -> WaitingCall:
        self.thread.start()
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if error is None:
            self.join()

    def is_early(self) -> bool:
        """Returns True if the call returns without waiting for the work: it has ended by the time its thread has had a
        chance to run."""
        return comes_to_be(lambda: not self.thread.is_alive())

    def ended(self, seconds: float) -> bool:
        """Returns True if the call ends within ``seconds``."""

        def has_ended(waiting: float) -> bool:
            self.thread.join(waiting)
            return not self.thread.is_alive()

        return has_ended(0.0) or Clock().wait(has_ended, seconds)

    def join(self) -> None:
        """Waits for the end of the call. Raises the exception of the call, or CheckFailed if the call does not end."""
        if not self.ended(self._limit):
            raise _still_running("a call did not end", self._limit)
        if self.error is not None:
            raise self.error


def value_behind(hold: Hold, function: Callable[[], Any]) -> Any:
    """Returns the result of a call that may have to wait for a held stream. The stream is unblocked after the thread of
    the call has had a chance to run."""
    with hold, WaitingCall(function) as call:
        call.is_early()  # the call returns now or waits for the stream
        hold.must_be_in_flight()
        hold.release()
        call.join()
    return call.value


def together(*functions: Callable[[], Any], seconds: float = CALL) -> list[Any]:
    """Calls all functions at the same time, each in its own thread; a barrier holds the threads until all have started.
    Returns the results in the order of the functions.

    If functions raise, the exception of the first of them is raised. Raises CheckFailed if a function is still running
    after ``seconds``; its thread goes on, because a thread cannot be stopped from outside.
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
        raise _still_running("a thread did not end", seconds, f"{hanging} of {len(calls)} threads")
    return [call.value for call in calls]


def _still_running(subject: str, seconds: float, what: str = "the call") -> CheckFailed:
    return CheckFailed.of(Kind.ENDED, subject, found=f"{what} had not ended after {seconds:g} s")
