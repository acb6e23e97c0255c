"""Tries a candidate for ``busy`` on a device: executes its drafted source and measures what it does. Runs in the
process that probes the device, which has a time limit."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from conformance.onboarding.primitives import (
    ASKED,
    TIMES,
    BusyTry,
    Trial,
    is_asynchronous,
    measured,
    shortcoming,
    source,
)
from opinfo.device import Device

#: Milliseconds of work beside which work on another stream must end, and how often.
_BESIDE, _TRIES = 200.0, 3
#: Seconds to wait at most until query() is True, beside the time asked for.
_LIMIT: Final = 8.0

Busy = Callable[[float], None]


def drafted(candidate: str, torch_type: str) -> Busy:
    """Executes the drafted source of a candidate and returns its function ``_busy``."""
    names: dict[str, Any] = {
        "functools": functools,
        "math": math,
        "time": time,
        "Callable": Callable,
        "Any": Any,
    }
    code = f"from __future__ import annotations\n{source(candidate, torch_type)}"
    exec(compile(code, f"<busy: {candidate}>", "exec"), names)
    return names["_busy"]  # type: ignore[no-any-return]


def has_streams(device: Device) -> bool:
    """Returns True if the device is the current accelerator of torch and has two different streams."""
    try:
        current = torch.accelerator.current_accelerator()
        if current is None or current.type != device.torch_device.type:
            return False
        made = [torch.Stream(device=device.torch_device) for _ in range(2)]
        return made[0].stream_id != made[1].stream_id
    except Exception:  # of any type; the question about the capability `streams` tells the vendor
        return False


def try_candidate(device: Device, candidate: str) -> BusyTry | None:
    """Tries a candidate and returns what was found; None if the device does not have what the candidate calls."""
    kind = device.torch_device.type
    if candidate == "sleep" and not callable(
        getattr(torch.get_device_module(kind), "_sleep", None)
    ):
        return None
    return try_busy(device, drafted(candidate, kind), candidate)


def try_busy(device: Device, busy: Busy, candidate: str) -> BusyTry:
    """Measures whether ``busy`` does what the suite expects: it returns at once, keeps the current stream busy for at least as
    long as asked, on each index, lets other streams continue, and allocates no memory when it is called again."""
    index = torch.accelerator.current_device_index()
    streams = [torch.accelerator.current_stream(device.torch_device)]
    streams += [torch.Stream(device=device.torch_device) for _ in range(TIMES - 1)]
    small = device.to_device(torch.zeros(8))
    busy(0.0)  # prepares it
    trials: list[Trial] = []
    for asked in ASKED:
        trials += [_timed(device, busy, asked, stream, small) for stream in streams]
        if text := shortcoming(trials):
            return BusyTry(candidate, False, text, asynchronous=is_asynchronous(trials))
    for text in _shortcomings(device, busy, streams, index):
        if text:
            return BusyTry(candidate, False, text)
    return BusyTry(candidate, True, measured(trials))


def _shortcomings(device: Device, busy: Busy, streams: list[Any], index: int) -> Iterator[str]:
    """Yields for each further requirement a sentence that says how ``busy`` falls short of it, or an empty string."""
    yield _alone(device, busy, streams)
    yield _allocates(device, busy)
    if torch.accelerator.device_count() > 1:
        last = torch.accelerator.device_count() - 1
        other = torch.device(device.torch_device.type, last)
        with torch.accelerator.device_index(last):
            there = torch.zeros(8, device=other)
            busy(0.0)
            some = [
                _timed(device, busy, ASKED[1], torch.Stream(device=other), there)
                for _ in range(TIMES)
            ]
        text = shortcoming(some)
        yield text and f"on index {last}, {text}"
    if torch.accelerator.current_device_index() != index:
        yield "it changes the current device index"


def _timed(device: Device, busy: Busy, asked: float, stream: Any, small: torch.Tensor) -> Trial:
    """Calls ``busy`` on an idle stream and measures when the call returned and when the work ended."""
    with stream:
        device.from_device(small)
        stream.synchronize()
        began = time.perf_counter()
        busy(asked)
        returned = time.perf_counter() - began
        until = time.perf_counter() + asked / 1000 + _LIMIT
        while not stream.query() and time.perf_counter() < until:
            time.sleep(0.0005)  # leaves the processor to the work
        pending = time.perf_counter() - began if stream.query() else math.inf
        device.from_device(small)  # waits for the work, whatever query() says
        lasted = time.perf_counter() - began
    return Trial(asked, 1000 * returned, 1000 * pending, 1000 * lasted)


def _alone(device: Device, busy: Busy, streams: list[Any]) -> str:
    """Returns a sentence if work on another stream did not end while ``busy`` kept a stream busy."""
    one, other = streams[1:3]
    for _ in range(_TRIES):
        with other:
            beside = torch.zeros(8, device=device.torch_device)
        torch.accelerator.synchronize(device.torch_device)
        with one:
            busy(_BESIDE)
        with other:
            beside.add_(1)
        until = time.perf_counter() + _BESIDE / 1000 + _LIMIT
        while not (ended := other.query()) and time.perf_counter() < until and not one.query():
            time.sleep(0.0005)
        beaten = ended and not one.query()
        torch.accelerator.synchronize(device.torch_device)
        if not beaten:
            return (
                "work on another stream did not end meanwhile: either the device runs one stream at a time, or this work takes "
                "all of the device"
            )
    return ""


def _allocates(device: Device, busy: Busy) -> str:
    """Returns a sentence if the statistics of the allocator change when ``busy`` is called on a new stream, because the
    cases about memory would count that."""
    try:
        before = dict(torch.accelerator.memory.memory_stats(device.torch_device))
    except Exception:  # of any type: without statistics, no case compares them
        return ""
    stream = torch.Stream(device=device.torch_device)
    with stream:
        busy(ASKED[0])
        stream.synchronize()
    after = dict(torch.accelerator.memory.memory_stats(device.torch_device))
    changed = sorted(name for name in after if after[name] != before.get(name))
    if changed:
        return f"each call changes the statistics of the allocator, such as {changed[0]}, which the cases about memory compare"
    return ""
