"""Mutants of a profile's session and of what its methods answer: the part of tests/mutation/profiles.py that changes no
single event of Kineto or of the trace.

The name of a mutant is ``subject|change|condition``: ``regions|never ends|inside of another``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from conformance.suites.profiler import recording
from conformance.suites.profiler import sessions as suite
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import replaced

PROFILE: Any = torch.profiler.profile
REGION: Any = torch.profiler.record_function
HOST = torch.profiler.DeviceType.CPU


class Run(Protocol):
    """What counts how often the condition of a mutant was met, and how often it changed something then."""

    met: int
    reached: int


def text_effect(change: Callable[[str, Any], str]) -> Effect:
    """An effect in front of export_chrome_trace: the file has another text, made from that of the profile. A compressed file stays as it is."""

    def effect(call: KernelCall) -> Any:
        answer, path = call.honest(), Path(call.args[1])
        if path.suffix != ".gz":
            text = path.read_text(encoding="utf-8")
            path.write_text(change(text, call.first), encoding="utf-8")
        return answer

    return effect


# The text of the exported trace

_TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "names without quotes": lambda text: text.replace(b'"name": "aten::', b'"name": aten::'),
    "a comma at the end of the list": lambda text: text[: text.rindex(b"]")] + b"," + text[text.rindex(b"]") :],
    "cut off": lambda text: text[: len(text) // 2],
    "the last bracket is missing": lambda text: text.rstrip()[:-1],
    "durations of nan": lambda text: text.replace(b'"dur": ', b'"dur": nan, "was": ', 1),
    "hexadecimal numbers": lambda text: text.replace(b'"tid": ', b'"tid": 0x', 1),
    "a line break in a text": lambda text: text.replace(b'"aten::', b'"aten\n::', 1),
    "twice in one file": lambda text: text + text,
    "no list of events": lambda text: text.replace(b'"traceEvents"', b'"events"'),
    "empty": lambda text: b"",
    "in Latin-1": lambda text: text.decode("utf-8").encode("latin-1", "replace"),
    "line breaks are not escaped": lambda text: text.replace(b"\\n", b"\n", 1),
    "backslashes are not escaped": lambda text: text.replace(b"\\\\", b"\\"),
    "names are cut after 4 bytes": lambda text: text.replace("Größe 大きさ".encode(), "Größe".encode()[:4]),
    "commas of another locale": lambda text: text.replace(b'"dur": 1.', b'"dur": 1,', 1).replace(b'"dur": 2.', b'"dur": 2,', 1),
}  # fmt: skip


def _exported(run: Run, change: str, when: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        answer, path = call.honest(), Path(call.args[1])
        if (path.suffix == ".gz") != (when == "compressed"):
            return answer
        run.met += 1
        if when == "compressed":
            import gzip

            data = path.read_bytes()
            new = {
                "not compressed": lambda: gzip.decompress(data),
                "compressed twice": lambda: gzip.compress(data),
                "cut off": lambda: data[:-9],
                "empty": lambda: b"",
                "of nothing": lambda: gzip.compress(b'{"traceEvents": []}'),
            }[change]()
        else:
            data = path.read_bytes()
            new = _TEXTS[change](data)
        run.reached += new != data
        path.write_bytes(new)
        return answer

    return effect


_COMPRESSED = ("not compressed", "compressed twice", "cut off", "empty", "of nothing")

# Schedules

_SCHEDULES: dict[str, Callable[[dict[str, int]], dict[str, int]]] = {
    "waits one step more": lambda given: {"wait": given["wait"] + 1},
    "warms up one step more": lambda given: {"warmup": given["warmup"] + 1},
    "does not warm up": lambda given: {"warmup": 0, "wait": given["wait"] + given["warmup"]},
    "records one step more": lambda given: {"active": given["active"] + 1},
    "records one step less": lambda given: {"active": max(given["active"] - 1, 1)},
    "records the warm-up": lambda given: {"warmup": 0, "active": given["active"] + given["warmup"]},
    "one cycle more": lambda given: {"repeat": given.get("repeat", 0) + (given.get("repeat", 0) > 0)},
    "one cycle": lambda given: {"repeat": 1},
    "never ends": lambda given: {"repeat": 0},
    "skips one step more": lambda given: {"skip_first": given.get("skip_first", 0) + 1},
    "skips nothing": lambda given: {"skip_first": 0},
}  # fmt: skip
#: Not a change that can be seen: a step of waiting records as little as one of warming up.
_SAME = "does not warm up"


def _scheduled(run: Run, change: str, when: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        given = {"wait": 0, "warmup": 0, "active": 0, "repeat": 0, "skip_first": 0, **call.kwargs}
        new = {**given, **_SCHEDULES[change](given)}
        run.met += 1
        run.reached += new != given
        return call.function(**new)

    return effect


# Bounds of a session


def _bounds(run: Run, change: str, when: str) -> tuple[Any, str, Effect]:
    """The function that is replaced, and the effect."""
    kept: list[Any] = []
    count = [0]

    def is_met() -> bool:
        count[0] += 1
        met = {"always": True, "the first time": count[0] == 1, "but the first time": count[0] > 1}
        run.met += met[when]
        return met[when]

    def earlier(call: KernelCall) -> Any:
        kept.extend(found := call.honest())
        if not is_met():
            return found
        run.reached += len(kept) > len(found)
        return [*kept]

    def of_the_one_before(call: KernelCall) -> Any:
        kept.append(found := call.honest())
        if not is_met() or len(kept) == 1:
            return found
        run.reached += 1
        return kept[-2]

    def nothing(call: KernelCall) -> Any:
        call.honest()
        run.reached += (met := is_met())
        return None if not met else []

    def waits(call: KernelCall) -> Any:
        answer = call.honest()
        if is_met():
            run.reached += 1
            time.sleep(4)
        return answer

    def swallows(call: KernelCall) -> Any:
        answer = call.honest()
        raised = len(call.args) > 1 and call.args[1] is not None
        run.met += raised
        run.reached += raised
        return True if raised else answer

    def left_out(call: KernelCall) -> Any:
        if not is_met():
            return NOT_MET
        run.reached += 1
        return None

    def twice(call: KernelCall) -> Any:
        answer = call.honest()
        if is_met():
            run.reached += 1
            answer = call.honest()
        return answer

    def no_handler(call: KernelCall) -> Any:
        has_handler = call.kwargs.get("on_trace_ready") is not None
        run.met, run.reached = run.met + has_handler, run.reached + has_handler
        return call.function(*call.args, **{**call.kwargs, "on_trace_ready": None})

    def handled_twice(call: KernelCall) -> Any:
        handler = call.kwargs.get("on_trace_ready")
        if handler is None:
            return NOT_MET
        run.met, run.reached = run.met + 1, run.reached + 1
        return call.function(
            *call.args, **{**call.kwargs, "on_trace_ready": lambda p: (handler(p), handler(p))}
        )

    def text_before(call: KernelCall) -> Any:
        answer, path = call.honest(), Path(call.args[1])
        kept.append(path.read_bytes())
        if is_met() and len(kept) > 1:
            run.reached += 1
            path.write_bytes(kept[-2])
        return answer

    return {
        "lists earlier sessions too": (recording, "kineto_events", earlier),
        "lists the events of the session before": (recording, "kineto_events", of_the_one_before),
        "lists no functions": (PROFILE, "events", nothing),
        "waits 4 s at its end": (PROFILE, "stop", waits),
        "swallows exceptions": (PROFILE, "__exit__", swallows),
        "a step is not counted": (PROFILE, "step", left_out),
        "a step counts twice": (PROFILE, "step", twice),
        "the handler is not called": (PROFILE, "__init__", no_handler),
        "the handler is called twice": (PROFILE, "__init__", handled_twice),
        "exports the trace of the profile before": (PROFILE, "export_chrome_trace", text_before),
    }[change]


_BOUNDS = {
    "lists earlier sessions too": ("always", "but the first time"),
    "lists the events of the session before": ("always", "but the first time"),
    "lists no functions": ("always", "but the first time"),
    "waits 4 s at its end": ("always",),
    "swallows exceptions": ("always",),
    "a step is not counted": ("always", "the first time", "but the first time"),
    "a step counts twice": ("always", "the first time", "but the first time"),
    "the handler is not called": ("always",),
    "the handler is called twice": ("always",),
    "exports the trace of the profile before": ("always",),
}

# Options

_OPTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no shapes": lambda given: {"record_shapes": False},
    "no memory": lambda given: {"profile_memory": False},
    "memory in any case": lambda given: {"profile_memory": True},
    "the host alone": lambda given: {"activities": {torch.profiler.ProfilerActivity.CPU}},
    "the device alone": lambda given: {"activities": {torch.profiler.ProfilerActivity.PrivateUse1}},
    "the host in any case": lambda given: {"activities": {*(given.get("activities") or ()), torch.profiler.ProfilerActivity.CPU}},
    "this thread alone": lambda given: {"experimental_config": None},
    "no schedule": lambda given: {"schedule": None},
}  # fmt: skip


def _opted(run: Run, change: str, when: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        defaults = {"record_shapes": False, "profile_memory": False, "activities": None, "experimental_config": None, "schedule": None}  # fmt: skip
        given = {**defaults, **call.kwargs}
        new = {**given, **_OPTIONS[change](given)}
        run.met += 1
        run.reached += new != given
        return call.function(*call.args, **{**call.kwargs, **new})

    return effect


# Regions

_REGIONS = ("opens nothing", "ends at once", "never ends", "has another name", "has no name")
_WHEN = (
    *("always", "the first", "the second", "inside of another", "on another thread"),
    *("past the 20th", "around an exception", "of a long name"),
)


@contextmanager
def _regions(run: Run, change: str, when: str) -> Iterator[None]:
    inside = threading.local()
    state = {"count": 0}
    opened = REGION.__enter__, REGION.__exit__
    first = threading.get_ident()

    def met(region: Any, raised: bool) -> bool:
        depth = getattr(inside, "depth", 0)
        holds = {
            "always": True, "the first": region._mutant == 1, "the second": region._mutant == 2,
            "inside of another": depth > 1, "on another thread": threading.get_ident() != first,
            "past the 20th": region._mutant > 20, "around an exception": raised, "of a long name": len(region.name) > 12,
        }[when]  # fmt: skip
        run.met += holds
        return holds

    def enter(region: Any) -> Any:
        state["count"] += 1
        region._mutant, inside.depth = state["count"], getattr(inside, "depth", 0) + 1
        name = region.name
        region._open = not (change == "opens nothing" and met(region, False))
        if change in ("has another name", "has no name") and met(region, False):
            run.reached += 1
            region.name = "another" if change == "has another name" else ""
        if region._open:
            opened[0](region)
        else:
            run.reached += 1
        region.name = name
        if change == "ends at once" and met(region, False):
            run.reached += 1
            opened[1](region, None, None, None)
            region._open = False
        return region

    def exit_(region: Any, *error: Any) -> Any:
        raised = bool(error and error[0])
        skipped = change == "never ends" and met(region, raised)
        inside.depth -= 1
        if skipped:
            run.reached += 1
            KEPT.append(region.record)  # else its destructor ends it
        elif region._open:
            return opened[1](region, *error)
        return None

    REGION.__enter__, REGION.__exit__ = enter, exit_
    try:
        yield
    finally:
        REGION.__enter__, REGION.__exit__ = opened


#: Regions that never end.
KEPT: list[Any] = []

# What methods answer


def _parents(event: Any) -> None:
    event.cpu_parent = event.cpu_parent and event.cpu_parent.cpu_parent


_FUNCTIONS: dict[str, Callable[[Any], None]] = {
    "no parent": lambda event: setattr(event, "cpu_parent", None),
    "the parent of its parent": _parents,
    "its own parent": lambda event: setattr(event, "cpu_parent", event),
    "twice as long": lambda event: setattr(event.time_range, "end", event.time_range.end + event.time_range.elapsed_us()),
    "20 ms longer": lambda event: setattr(event.time_range, "end", event.time_range.end + 20_000),
    "no duration": lambda event: setattr(event.time_range, "end", event.time_range.start),
    "no shapes": lambda event: setattr(event, "input_shapes", []),
    "shapes in another order": lambda event: setattr(event, "input_shapes", list(event.input_shapes or ())[::-1]),
    "no empty shapes": lambda event: setattr(event, "input_shapes", [each for each in event.input_shapes or () if each]),
    "no memory of the device": lambda event: setattr(event, "device_memory_usage", 0),
    "half the memory of the device": lambda event: setattr(event, "device_memory_usage", event.device_memory_usage // 2),
    "the other sign of memory": lambda event: setattr(event, "device_memory_usage", -event.device_memory_usage),
    "memory of the host": lambda event: event.__dict__.update(device_memory_usage=event.cpu_memory_usage, cpu_memory_usage=event.device_memory_usage),
    "no kernels": lambda event: setattr(event, "kernels", []),
    "the first kernel alone": lambda event: setattr(event, "kernels", event.kernels[:1]),
    "kernels twice": lambda event: setattr(event, "kernels", [*event.kernels, *event.kernels]),
    "another name": lambda event: setattr(event, "name", "another"),
}  # fmt: skip
_OF = {
    "always": lambda event, place: True,
    "regions": lambda event, place: "::" not in event.name,
    "ops": lambda event, place: event.name.startswith("aten::"),
    "every third": lambda event, place: place % 3 == 2,
    "the first": lambda event, place: place == 0,
}


def _function_events(run: Run, change: str, when: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        found = call.honest()
        mine = [event for event in found if event.device_type == HOST]
        for place, event in enumerate(mine):
            if _OF[when](event, place):
                run.met += 1
                before = _state_of(event)
                _FUNCTIONS[change](event)
                run.reached += before != _state_of(event)
        return found

    return effect


def _state_of(event: Any) -> tuple[Any, ...]:
    return (
        *(id(event.cpu_parent), event.time_range.start, event.time_range.end, str(event.input_shapes)),
        *(event.device_memory_usage, event.cpu_memory_usage, len(event.kernels), event.name),
    )  # fmt: skip


def _averaged(run: Run, change: str, when: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        found = call.honest()
        rows = [each for each in found if (each.key.startswith("aten::")) == (when == "ops")]
        run.met += len(rows)
        for each in rows:
            if change == "calls count once" and each.count > 1:
                each.count, run.reached = 1, run.reached + 1
            elif change == "one call more":
                each.count, run.reached = each.count + 1, run.reached + 1
            elif change == "no device time" and each.self_device_time_total:
                each.self_device_time_total, run.reached = 0, run.reached + 1
            elif change == "device time twice" and each.self_device_time_total:
                each.self_device_time_total *= 2
                run.reached += 1
            elif change == "no time" and each.self_cpu_time_total:
                each.self_cpu_time_total, run.reached = 0, run.reached + 1
        if change == "a row is missing" and rows:
            found.remove(rows[-1])
            run.reached += 1
        return found

    return effect


_AVERAGES = ("calls count once", "one call more", "a row is missing", "no device time", "device time twice")  # fmt: skip


def names() -> list[list[str]]:
    """The names of all mutants, a list for each subject."""
    return [
        [
            *(f"text|{change}|plain" for change in _TEXTS),
            *(f"text|{change}|compressed" for change in _COMPRESSED),
        ],
        [f"schedule|{change}|always" for change in _SCHEDULES if change != _SAME],
        [f"bounds|{change}|{when}" for change, each in _BOUNDS.items() for when in each],
        [f"options|{change}|always" for change in _OPTIONS],
        [
            f"region|{change}|{when}"
            for change in _REGIONS
            for when in _WHEN
            if (when == "around an exception") <= (change == "never ends")
        ],
        [f"events|{change}|{when}" for change in _FUNCTIONS for when in _OF],
        [f"averages|{change}|{when}" for change in _AVERAGES for when in ("ops", "others")],
    ]


@contextmanager
def planted(name: str, run: Run) -> Iterator[None]:
    """Put the mutant of this name in front of torch's profiler for a block."""
    subject, change, when = name.split("|")
    if subject == "region":
        with _regions(run, change, when):
            yield
        return
    places: dict[str, Callable[[], tuple[Any, str, Effect]]] = {
        "text": lambda: (PROFILE, "export_chrome_trace", _exported(run, change, when)),
        "schedule": lambda: (suite, "schedule", _scheduled(run, change, when)),
        "bounds": lambda: _bounds(run, change, when),
        "options": lambda: (PROFILE, "__init__", _opted(run, change, when)),
        "events": lambda: (PROFILE, "events", _function_events(run, change, when)),
        "averages": lambda: (PROFILE, "key_averages", _averaged(run, change, when)),
    }
    with replaced(*places[subject]()):
        yield
