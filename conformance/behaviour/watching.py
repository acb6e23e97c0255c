"""Watching a device for a while. A limit decides how long a faulty device is watched, and nothing else: what
a healthy device must do by then is done long before, and what it must not do never happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from conformance.behaviour.busy import Hold
from conformance.behaviour.judging import CheckFailed

#: Seconds in which work must end that nothing holds up.
SOON = 1.0
#: Seconds for which work is watched that must not end yet.
GLANCE = 0.01


def ends(what: Any, seconds: float = SOON) -> bool:
    """Whether a stream's or an event's work is done within that time, by its ``query``."""
    end = time.monotonic() + seconds
    while not what.query():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)  # leaves the processor to the work
    return True


def ends_early(what: Any, hold: Hold, seconds: float = GLANCE) -> bool:
    """Whether a stream's or an event's work is done while what it stands behind is held."""
    early = ends(what, seconds)
    hold.must_be_in_flight()
    return early


class Aside:
    """A call in a thread of its own, which may have to wait for what the calling thread holds::

    with Aside(stream.synchronize) as call:
        early = call.ended(GLANCE)
        hold.release()
    # the call has ended here; what it raised is raised here
    """

    def __init__(self, function: Callable[[], Any], limit: float = 60.0) -> None:
        self._function = function
        self._limit = limit
        self._error: BaseException | None = None
        self.value: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # raised where the call was made
            self._error = error

    def __enter__(self) -> Aside:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            self.join()

    def ended(self, seconds: float) -> bool:
        """Whether the call has ended within that time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the call. Raises what it raised, and CheckFailed where it does not end."""
        if not self.ended(self._limit):
            raise CheckFailed(f"a call had not ended after {self._limit:g} s")
        if self._error is not None:
            raise self._error
