"""Drafts of ``busy``, the function of a descriptor that keeps a stream busy: their source, and whether what was measured
is good enough for the suite.

``conform init`` writes the source of a candidate, executes exactly this source in the process that probes the device
(occupying.py), and puts it into the descriptor if it works. torch has no function that blocks a stream until the host
releases it, so no ``gate`` can be drafted.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from jinja2 import Environment, StrictUndefined

_TEMPLATE: Final = Path(__file__).with_name("busy.py.jinja")

#: The candidates, in the order in which they are tried, each with the work that it queues. First those that leave most of
#: the device to other streams: a kernel that only waits, and running products of two columns, which most devices compute
#: with two threads.
CANDIDATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sleep": "torch.{torch_type}._sleep",
        "running_product": "running products of two columns (torch.cumprod)",
        "matrix_product": "products of square matrices (torch.mm)",
    }
)
#: The times in milliseconds for which each candidate is asked to keep a stream busy, and how often.
ASKED: Final = (20.0, 60.0, 240.0)
TIMES: Final = 3
#: The longest acceptable time, as a multiple of the time asked for and as milliseconds on top.
_LONGEST, _ON_TOP = 10.0, 100.0


class Trial(msgspec.Struct, frozen=True):
    """One call of a candidate, on an idle stream. All times are in milliseconds, and all but ``asked`` count from the
    start of the call."""

    asked: float
    returned: float  # when the call returned
    pending: (
        float  # when query() of the stream was first True; inf: it was still False seconds later
    )
    lasted: float  # when a copy to the host, queued behind the work, returned


class BusyTry(msgspec.Struct, frozen=True):
    """The result of trying one candidate.

    ``found`` is one line that says what was measured. ``asynchronous`` is False if the call returned only when its work
    had ended. A candidate that ``works`` is written into the descriptor.
    """

    candidate: str
    works: bool
    found: str
    asynchronous: bool = True

    def work(self, torch_type: str) -> str:
        """The work that the candidate queues, for messages."""
        return CANDIDATES[self.candidate].format(torch_type=torch_type)


def source(candidate: str, torch_type: str) -> str:
    """Returns the Python source of a candidate: the definition of ``_busy`` and its helper. It needs the modules functools,
    math and time, and ``Callable`` of collections.abc."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["quoted"] = json.dumps
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    return template.render(candidate=candidate, torch_type=torch_type)


def is_asynchronous(trials: Sequence[Trial]) -> bool:
    """Returns True if the calls of a candidate returned before half of the time had passed in which its work ended. The
    median counts, because a busy machine may suspend the calling thread."""
    return statistics.median(each.returned / each.lasted for each in trials) < 0.5


def shortcoming(trials: Sequence[Trial]) -> str:
    """Returns a sentence that says why the suite cannot rely on a candidate; an empty string if it can.

    The work must last at least as long as asked in each trial, and query() of the stream must not be True before. The
    call must return in the first half of the time asked for in most trials. The shortest trial shows whether the work
    takes much too long, because other programs may prolong the others.
    """
    if not is_asynchronous(trials):
        each = max(trials, key=lambda each: each.asked)
        return f"the call returned only when its work had ended ({each.returned:.0f} of {each.lasted:.0f} ms)"
    for asked, some in _by_time(trials).items():
        shortest = min(some, key=lambda each: each.lasted)
        if shortest.lasted < asked:
            return f"it is not always long enough: {asked:g} ms were asked for, and the work ended after {shortest.lasted:.1f} ms"
        if any(each.pending == math.inf for each in some):
            return f"{asked:g} ms were asked for, and query() of the stream was still False seconds later"
        early = min(some, key=lambda each: each.pending)
        if early.pending < asked:
            return (
                f"{asked:g} ms were asked for, and query() of the stream was True after {early.pending:.1f} ms, although the "
                f"work ended after {early.lasted:.1f} ms: either query() is wrong, or work begins only when it is waited for"
            )
        if shortest.lasted > _LONGEST * asked + _ON_TOP:
            return f"it takes too long: {asked:g} ms were asked for, and the work took {shortest.lasted:.0f} ms or more"
        late = statistics.median(each.returned for each in some)
        if late > asked / 2:
            return f"{asked:g} ms were asked for, and the call returned only after {late:.0f} ms"
    return ""


def measured(trials: Iterable[Trial]) -> str:
    """Returns a line with the measured times of a candidate."""
    trials = list(trials)
    parts = []
    for asked, some in _by_time(trials).items():
        shortest, longest = (kind(round(each.lasted) for each in some) for kind in (min, max))
        span = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        parts.append(f"{span} ms where {asked:g} ms were asked for")
    late = max(each.returned for each in trials)
    return f"a stream was busy for {', '.join(parts)}; the calls returned within {late:.1f} ms"


def _by_time(trials: Iterable[Trial]) -> dict[float, list[Trial]]:
    groups: dict[float, list[Trial]] = defaultdict(list)
    for each in trials:
        groups[each.asked].append(each)
    return groups


def why_none(tries: Sequence[BusyTry], torch_type: str, streams: bool) -> str:
    """Returns a sentence that says why ``conform init`` drafts no ``busy``. ``streams`` says whether the device has
    streams."""
    if not streams:
        return "the device has no streams that work, so there is nothing to keep busy"
    if not tries:
        return "no draft could be tried"
    if not any(each.asynchronous for each in tries):
        return "calls return only when their work has ended, so no work is in flight"
    return "; ".join(f"{each.work(torch_type)}: {each.found}" for each in tries)


def nearest(tries: Sequence[BusyTry]) -> BusyTry | None:
    """Returns the candidate to offer as a comment where none works: the last one that is asynchronous; None if all are
    synchronous."""
    return next((each for each in reversed(tries) if each.asynchronous), None)
