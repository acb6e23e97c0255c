"""Mutants of profiles: what torch's profiler lists of the simulated device is changed before a case reads it.

An event of Kineto, a function event, an event of the exported trace, or a session is wrong in one respect. The name of a
mutant describes it completely: ``kineto kernels|no op|the last`` (the last kernel of each profile is linked to no op). Faults
of the device's own activity profiler, which change all of these at once, are mutants of its sources (``--family profiler``).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

import torch

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.suites import planned_cases
from conformance.suites.profiler import recording
from tests.mutation import sessions
from tests.mutation.baseline import is_cause
from tests.mutation.items import is_refused
from tests.mutation.kernels import PROBING, Result
from tests.mutation.profile_probe import probe
from tests.planting.calls import KernelCall
from tests.planting.places import replaced

MILLISECOND = 1_000_000
PROFILE: Any = torch.profiler.profile


@dataclass
class Run:
    """How often the condition of a mutant was met, how often it changed something then, and the profiles of the case that
    runs."""

    met: int = 0
    reached: int = 0
    profiles: list[Any] = field(default_factory=list)

    def number_of(self, profile: Any) -> int:
        """The number of a profile in its case, counted from 1. A session that is started again is another profile."""
        results = getattr(profile.profiler, "kineto_results", profile)
        if not any(each is results for each in self.profiles):
            self.profiles.append(results)
        return 1 + next(n for n, each in enumerate(self.profiles) if each is results)


@dataclass
class One:
    """An event as mutants see it. ``fields`` are its answers; ``before`` and ``after`` are the events of its subject."""

    fields: dict[str, Any]
    place: int  # among those of its subject
    last: bool
    profile: int
    before: dict[str, Any]
    after: dict[str, Any]
    first: dict[str, Any]


#: A change returns the other fields, None for an event that is not listed, or TWICE.
Change = Callable[[One], "dict[str, Any] | str | None"]
Condition = Callable[[One], bool]
TWICE = "twice"


def _took(one: One) -> int:
    return int(one.fields["end"] - one.fields["begin"])


def _shift(begin: int, end: int) -> Change:
    """Moves the two ends of an event by these ns."""
    return lambda one: {"begin": one.fields["begin"] + begin, "end": one.fields["end"] + end}


def _lasts(ns: Callable[[int], int]) -> Change:
    return lambda one: {"end": one.fields["begin"] + ns(_took(one))}


def _sets(**fields: Any) -> Change:
    return lambda one: fields


def _of(other: str, *names: str) -> Change:
    """Takes fields from the event before or after it, or from the first."""
    return lambda one: {name: getattr(one, other)[name] for name in names}


TIMES: dict[str, Change] = {
    "begins and ends 20 ms early": _shift(-20 * MILLISECOND, -20 * MILLISECOND),
    "begins and ends 20 ms late": _shift(20 * MILLISECOND, 20 * MILLISECOND),
    "an hour early": _shift(-3_600_000 * MILLISECOND, -3_600_000 * MILLISECOND),
    "since the start of the machine": lambda one: {
        "begin": one.fields["begin"] % 10**14,
        "end": one.fields["begin"] % 10**14 + _took(one),
    },
    "in µs": lambda one: {"begin": one.fields["begin"] // 1000, "end": one.fields["end"] // 1000},
    "ends 20 ms late": _shift(0, 20 * MILLISECOND),
    "begins 20 ms early": _shift(-20 * MILLISECOND, 0),
    "no duration": _lasts(lambda ns: 0),
    "a negative duration": _lasts(lambda ns: -ns - 1000),
    "a thousandth of the duration": _lasts(lambda ns: ns // 1000),
    "a thousand times the duration": _lasts(lambda ns: ns * 1000),
    "times are 0": _sets(begin=0, end=0),
    "times of the one before": _of("before", "begin", "end"),
    "times of the first": _of("first", "begin", "end"),
    "ends with the next": lambda one: {"end": max(one.fields["end"], one.after["end"])},
}
EXISTENCE: dict[str, Change] = {
    "is not listed": lambda one: None,
    "is listed twice": lambda one: TWICE,
}
DEVICE: dict[str, Change] = {
    "no name": _sets(name=""),
    "on index 0": _sets(index=0),
    "on the next index": lambda one: {"index": one.fields["index"] + 1},
    "on the other index": lambda one: {"index": 1 - one.fields["index"]},
    "on index -1": _sets(index=-1),
    "on stream 0": _sets(stream=0),
    "on the stream of the one before": _of("before", "stream"),
    "on the stream of the first": _of("first", "stream"),
    "on a stream of its own": lambda one: {"stream": 1000 + one.place},
    "no op": _sets(op=0),
    "the op of the one before": _of("before", "op"),
    "the op of the next": _of("after", "op"),
    "the op of the first": _of("first", "op"),
    "an op that is not listed": lambda one: {"op": one.fields["op"] + 10**6},
    "of the type CUDA": _sets(type=torch.profiler.DeviceType.CUDA),
    "of the type CPU": _sets(type=torch.profiler.DeviceType.CPU),
}
HOST: dict[str, Change] = {
    "no name": _sets(name=""),
    "the name of the one before": _of("before", "name"),
    "on thread 1": _sets(thread=1),
    "on a thread of its own": lambda one: {"thread": 1000 + one.place},
    "on the thread of the first": _of("first", "thread"),
    "the id of the one before": _of("before", "id"),
    "id 0": _sets(id=0),
}
SEQUENCE: dict[str, Change] = {
    "no number": _sets(sequence=-1),
    "the number of the one before": _of("before", "sequence"),
    "the next number": lambda one: {"sequence": one.fields["sequence"] + 1},
}
NODES: dict[str, Change] = {
    **SEQUENCE,
    "no thread of forward": _sets(forward=0),
    "its own thread for that of forward": lambda one: {"forward": one.fields["thread"] + 1},
}
ANYWHERE: dict[str, Condition] = {
    "always": lambda one: True,
    "the first": lambda one: one.place == 0,
    "the last": lambda one: one.last,
    "every third": lambda one: one.place % 3 == 2,
    "past the 20th": lambda one: one.place >= 20,
    "after the first profile": lambda one: one.profile > 1,
    "in the first profile": lambda one: one.profile == 1,
}
#: Of what a program makes thousands of.
MANY: dict[str, Condition] = {"past the 1000th": lambda one: one.place >= 1000}
ON_DEVICE: dict[str, Condition] = {
    "on index 1": lambda one: one.fields["index"] == 1,
    "not on the first stream": lambda one: one.fields["stream"] != one.first["stream"],
    "of a millisecond or more": lambda one: _took(one) >= MILLISECOND,
    "of less than a millisecond": lambda one: _took(one) < MILLISECOND,
    "of another op than the one before": lambda one: one.fields["op"] != one.before["op"],
}
ON_HOST: dict[str, Condition] = {
    "on another thread than the first": lambda one: one.fields["thread"] != one.first["thread"],
}


@dataclass(frozen=True)
class Subject:
    """Events that a mutant changes. ``has`` takes the fields of an event."""

    has: Callable[[dict[str, Any]], bool]
    changes: dict[str, Change]
    conditions: dict[str, Condition]


def _is_on_device(fields: dict[str, Any]) -> bool:
    return bool(fields["type"] != torch.profiler.DeviceType.CPU) and fields["name"] != "[memory]"


def _is_on_host(fields: dict[str, Any]) -> bool:
    return not _is_on_device(fields) and fields["op"] == 0 and fields["name"] != "[memory]"


#: Of the listed regions on the device only the time and the name are documented.
REGION_TIMES = {
    name: TIMES[name]
    for name in TIMES
    if not name.startswith(("a thousandth", "ends with the next", "begins 20 ms early"))
}

KINETO: dict[str, Subject] = {
    "kernels": Subject(
        lambda f: _is_on_device(f) and not f["region"] and f["name"] != "copy",
        TIMES | EXISTENCE | DEVICE,
        ANYWHERE | MANY | ON_DEVICE,
    ),
    "copies": Subject(
        lambda f: _is_on_device(f) and not f["region"] and f["name"] == "copy",
        TIMES | EXISTENCE | DEVICE,
        ANYWHERE | MANY | ON_DEVICE,
    ),
    "regions on the device": Subject(
        lambda f: _is_on_device(f) and f["region"], REGION_TIMES, ANYWHERE
    ),
    "ops": Subject(
        lambda f: _is_on_host(f) and f["name"].startswith("aten::"),
        TIMES | EXISTENCE | HOST,
        ANYWHERE | MANY | ON_HOST,
    ),
    "regions": Subject(
        lambda f: _is_on_host(f) and "::" not in f["name"] and f["region"],
        TIMES | EXISTENCE | HOST,
        ANYWHERE | ON_HOST,
    ),
    "ops of forward": Subject(
        lambda f: _is_on_host(f) and f["name"].startswith("aten::") and f["sequence"] >= 0,
        SEQUENCE,
        ANYWHERE,
    ),
    "nodes": Subject(
        lambda f: _is_on_host(f) and f["name"].startswith("autograd::engine"),
        NODES | EXISTENCE,
        ANYWHERE,
    ),
}


class Changed:
    """An event of Kineto some of whose methods answer otherwise."""

    def __init__(self, event: Any, fields: dict[str, Any]) -> None:
        self._event, self._fields = event, fields

    def __getattr__(self, name: str) -> Any:
        known = {
            "name": "name", "device_type": "type", "device_index": "index", "device_resource_id": "stream",
            "start_ns": "begin", "linked_correlation_id": "op", "correlation_id": "id", "start_thread_id": "thread",
            "sequence_nr": "sequence", "fwd_thread_id": "forward",
        }  # fmt: skip
        if name == "duration_ns":
            return lambda: self._fields["end"] - self._fields["begin"]
        if name in known:
            return lambda: self._fields[known[name]]
        return getattr(self._event, name)


def _fields_of(event: Any) -> dict[str, Any]:
    return {
        "name": event.name(), "type": event.device_type(), "index": event.device_index(),
        "stream": event.device_resource_id(), "begin": event.start_ns(), "end": event.start_ns() + event.duration_ns(),
        "op": event.linked_correlation_id(), "id": event.correlation_id(), "thread": event.start_thread_id(),
        "sequence": event.sequence_nr(), "forward": event.fwd_thread_id(), "region": bool(event.is_user_annotation()),
    }  # fmt: skip


def _altered(
    run: Run, found: Sequence[tuple[Any, dict[str, Any]]], subject: Subject, change: Change,
    condition: Condition, profile: int, made: Callable[[Any, dict[str, Any]], Any],
) -> list[Any]:  # fmt: skip
    """The events of a list, those of a subject changed under a condition."""
    mine = [number for number, (_, fields) in enumerate(found) if subject.has(fields)]
    mine.sort(key=lambda number: found[number][1]["begin"])
    places = {number: place for place, number in enumerate(mine)}
    listed = []
    for number, (event, fields) in enumerate(found):
        if number not in places:
            listed.append(event)
            continue
        place = places[number]
        near = [
            found[mine[each]][1] for each in (max(place - 1, 0), min(place + 1, len(mine) - 1), 0)
        ]
        one = One(fields, place, place == len(mine) - 1, profile, *near)
        holds = condition(one)
        run.met += holds
        new = change(one) if holds else {}
        if new is None or new == TWICE:
            run.reached += 1
            listed += [event, event] if new == TWICE else []
            continue
        assert isinstance(new, dict)
        if any(fields.get(name) != value for name, value in new.items()):
            run.reached += 1
            event = made(event, {**fields, **new})
        listed.append(event)
    return listed


@contextmanager
def _kineto(run: Run, subject: Subject, change: Change, condition: Condition) -> Iterator[None]:
    def effect(call: KernelCall) -> Any:
        found = [(event, _fields_of(event)) for event in call.honest()]
        number = run.number_of(call.first)
        return _altered(run, found, subject, change, condition, number, Changed)

    with replaced(recording, "kineto_events", effect):
        yield


# The exported trace


def _slices_in(*categories: str) -> Callable[[dict[str, Any]], bool]:
    return lambda f: f["event"].get("ph") == "X" and f["event"].get("cat") in categories


def _arrows(phase: str) -> Callable[[dict[str, Any]], bool]:
    return lambda f: f["event"].get("cat") == "ac2g" and f["event"].get("ph") == phase


def _memory(sign: int) -> Callable[[dict[str, Any]], bool]:
    """Memory events of the device: those that allocate (1), or that free (-1)."""
    return lambda f: (
        f["event"].get("name") == "[memory]"
        and f["event"]["args"]["Device Type"] != 0
        and f["event"]["args"]["Bytes"] * sign > 0
    )


def _without(*names: str) -> Change:
    return lambda one: {"event": {k: v for k, v in one.fields["event"].items() if k not in names}}


def _argument(name: str, value: Callable[[Any], Any]) -> Change:
    """Another argument of an event of the trace."""

    def change(one: One) -> dict[str, Any]:
        event = one.fields["event"]
        arguments = event.get("args", {})
        if name not in arguments:
            return {}
        return {"event": {**event, "args": {**arguments, name: value(arguments[name])}}}

    return change


def _argument_of(other: str, name: str) -> Change:
    """An argument of the event before it, or of the first."""
    return lambda one: _argument(name, lambda _: getattr(one, other)["event"]["args"].get(name))(
        one
    )


def _entry(name: str, value: Callable[[Any], Any]) -> Change:
    return lambda one: {
        "event": {**one.fields["event"], name: value(one.fields["event"].get(name))}
    }


_SLICES: dict[str, Change] = {
    **{n: TIMES[n] for n in TIMES if "duration" in n or n.startswith(("begins", "times are"))},
    **EXISTENCE,
    "no duration at all": _without("dur"),
    "no begin at all": _without("ts"),
    "no category": _without("cat"),
    "no thread": _without("tid"),
    "no arguments": _without("args"),
    "no name at all": _without("name"),
    "a begin that is text": _entry("ts", str),
    "a duration of NaN": _entry("dur", lambda _: float("nan")),
    "a duration that is infinite": _entry("dur", lambda _: float("inf")),
}
_OF_DEVICE: dict[str, Change] = {
    "on another index": _entry("pid", lambda pid: 1 - pid if isinstance(pid, int) else pid),
    "on another stream": _entry("tid", lambda tid: tid + 7 if isinstance(tid, int) else tid),
    "no op": _argument("External id", lambda _: 0),
    "an op that is not listed": _argument("External id", lambda number: number + 10**6),
    "the op of the one before": _argument_of("before", "External id"),
}
_OF_OPS: dict[str, Change] = {
    "an id of its own": _argument("External id", lambda number: number + 10**6),
    "on another thread": _entry("tid", lambda tid: tid + 7 if isinstance(tid, int) else tid),
    "the name of the one before": lambda one: {
        "event": {**one.fields["event"], "name": one.before["event"]["name"]}
    },
    "no shapes": _argument("Input Dims", lambda _: []),
    "shapes in another order": _argument("Input Dims", lambda shapes: shapes[::-1]),
    "no dtypes": _argument("Input type", lambda _: []),
    "other dtypes": _argument("Input type", lambda types: ["double" for _ in types]),
}
_OF_ARROWS: dict[str, Change] = {
    **EXISTENCE,
    "20 ms early": _entry("ts", lambda ts: ts - 20_000),
    "20 ms late": _entry("ts", lambda ts: ts + 20_000),
    "another id": _entry("id", lambda number: number + 10**6),
    "id 1": _entry("id", lambda _: 1),
    "on another thread": _entry("tid", lambda tid: tid + 7),
}
_OF_MEMORY: dict[str, Change] = {
    **EXISTENCE,
    "the other sign": _argument("Bytes", lambda count: -count),
    "half the bytes": _argument("Bytes", lambda count: count // 2),
    "twice the bytes": _argument("Bytes", lambda count: count * 2),
    "bytes in 12 bits": _argument("Bytes", lambda count: (abs(count) % 4096 or 1) * (count > 0) or -(abs(count) % 4096 or 1)),
    "bytes of the one before": _argument_of("before", "Bytes"),
    "4096 bytes more": _argument("Bytes", lambda count: count + (4096 if count > 0 else -4096)),
    "an address 512 higher": _argument("Addr", lambda address: address + 512),
    "the address of the one before": _argument_of("before", "Addr"),
    "address 0": _argument("Addr", lambda _: 0),
    "an address in 32 bits": _argument("Addr", lambda address: address % 2**32),
    "on index 0": _argument("Device Id", lambda _: 0),
    "on the other index": _argument("Device Id", lambda index: 1 - index),
    "on index -1": _argument("Device Id", lambda _: -1),
    "memory of the host": _argument("Device Type", lambda _: 0),
    "memory of CUDA": _argument("Device Type", lambda _: 1),
    "no total": _argument("Total Allocated", lambda _: 0),
    "the total before it": _argument_of("before", "Total Allocated"),
    "a total without its block": lambda one: _argument("Total Allocated", lambda total: total - one.fields["event"]["args"]["Bytes"])(one),
    "reserved bytes for the total": lambda one: _argument("Total Allocated", lambda _: one.fields["event"]["args"]["Total Reserved"])(one),
    "allocated bytes for reserved ones": lambda one: _argument("Total Reserved", lambda _: one.fields["event"]["args"]["Total Allocated"])(one),
    "nothing is reserved": _argument("Total Reserved", lambda _: 0),
    "reserved bytes of the first": _argument_of("first", "Total Reserved"),
}  # fmt: skip
_IN_TRACE = {
    n: ANYWHERE[n]
    for n in ("always", "the first", "the last", "every third", "after the first profile")
}
_OF_BLOCKS: dict[str, Condition] = {
    **_IN_TRACE,
    "on index 1": lambda one: one.fields["event"]["args"]["Device Id"] == 1,
    "of more than a MiB": lambda one: abs(one.fields["event"]["args"]["Bytes"]) > 2**20,
    "of more than 4096 bytes": lambda one: abs(one.fields["event"]["args"]["Bytes"]) > 4096,
    "of 4096 bytes or less": lambda one: abs(one.fields["event"]["args"]["Bytes"]) <= 4096,
    "not of the first block": lambda one: (
        one.fields["event"]["args"]["Addr"] != one.first["event"]["args"]["Addr"]
    ),
}
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_SHOWN = {n: _SLICES[n] for n in _SLICES if n not in ("no category", "no arguments")}

TRACE: dict[str, Subject] = {
    "executions": Subject(_slices_in(*_KERNELS), _SLICES | _OF_DEVICE, _IN_TRACE),
    "ops": Subject(_slices_in("cpu_op"), _SLICES | _OF_OPS, _IN_TRACE),
    "regions": Subject(_slices_in("user_annotation"), _SHOWN, _IN_TRACE),
    "begins of arrows": Subject(_arrows("s"), _OF_ARROWS, _IN_TRACE),
    "ends of arrows": Subject(_arrows("f"), {n: _OF_ARROWS[n] for n in _OF_ARROWS if n != "on another thread"}, _IN_TRACE),
    "allocations": Subject(_memory(1), _OF_MEMORY, _OF_BLOCKS),
    "frees": Subject(_memory(-1), _OF_MEMORY, _OF_BLOCKS),
}  # fmt: skip


def _begin(event: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event of a trace. Its times are in ns here."""
    begin, took = event.get("ts", 0), event.get("dur", 0)
    return {"event": event, "begin": round(1000 * begin), "end": round(1000 * (begin + took))}


def _written(original: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """An event of a trace with changed fields. Its times are those of the fields, if these are not the times of the
    original."""
    event: dict[str, Any] = dict(fields["event"])
    before = _begin(original)
    if before["begin"] != fields["begin"]:
        event["ts"] = fields["begin"] / 1000
    if "dur" in event and before["end"] - before["begin"] != fields["end"] - fields["begin"]:
        event["dur"] = (fields["end"] - fields["begin"]) / 1000
    return event


@contextmanager
def _trace(run: Run, subject: Subject, change: Change, condition: Condition) -> Iterator[None]:
    def altered(text: str, profile: Any) -> str:
        try:
            trace = json.loads(text)
        except json.JSONDecodeError:  # torch's own text, where the name of a region has quotes
            return text
        found = [(event, _begin(event)) for event in trace["traceEvents"]]
        number = run.number_of(profile)
        listed = _altered(run, found, subject, change, condition, number, _written)
        return json.dumps({**trace, "traceEvents": listed})

    with replaced(PROFILE, "export_chrome_trace", sessions.text_effect(altered)):
        yield


# All mutants


def names(seed: int, count: int) -> list[str]:
    """Of 16 names, 8 are changes of Kineto's events, 5 of the trace, and 3 of sessions. No name occurs twice."""
    rng = Random(seed)
    rows: dict[str, list[list[str]]] = {
        layer: [
            rng.sample(each, len(each))
            for each in (
                [f"{layer} {name}|{change}|{when}" for change in of.changes for when in of.conditions]
                for name, of in subjects.items()
            )
        ]
        for layer, subjects in (("kineto", KINETO), ("trace", TRACE))
    }  # fmt: skip
    rows["session"] = [
        [f"session {name}" for name in rng.sample(each, len(each))] for each in sessions.names()
    ]
    turns = "kineto trace kineto session kineto trace kineto kineto trace kineto session kineto trace kineto session trace"
    found: list[str] = []
    while len(found) < count and any(map(any, rows.values())):
        layer = turns.split()[len(found) % 16]
        left = [row for row in rows[layer] if row] or [r for each in rows.values() for r in each if r]  # fmt: skip
        # A subject with many changes is not drawn more often than the others.
        found.append(rng.choice(left).pop())
    return found


@contextmanager
def planted(name: str, sham: bool = False) -> Iterator[Run]:
    """Put the mutant of this name in front of torch's profiler for a block. With ``sham`` the events are read and written as with
    the mutant, and none is changed."""
    layer, rest = name.split(" ", 1)
    run = Run()
    if layer == "session" and sham:
        yield run
        return
    if layer == "session":
        with sessions.planted(rest, run):
            yield run
        return
    subject, change, condition = rest.split("|")
    of = {"kineto": KINETO, "trace": TRACE}[layer][subject]
    place = {"kineto": _kineto, "trace": _trace}[layer]
    when = (lambda one: False) if sham else of.conditions[condition]
    with place(run, of, of.changes[change], when):
        yield run


@cache
def cases() -> list[BehaviourCase]:
    """The cases of the profiler that are not refused without a mutant, in this process, which alone has the mutant."""
    return [case for case in cases_named() if not is_refused(case)]


def cases_named(*names: str) -> list[BehaviourCase]:
    """The profiler's cases of these names, or all, in this process."""
    return [
        replace(case, own_process=False)
        for case in planned_cases(contract.load(), more=False)
        if case.clause.startswith("profiler.") and (case.name in names or not names)
    ]


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Try a mutant with the cases of the profiler. A mutant that changes nothing in any of them is equivalent if a long program
    meets its condition and it changes nothing there either."""
    layer, rest = name.split(" ", 1)
    subject, _, kind = rest.partition("|")
    found = Result(f"p{number:04d}", "profiles", subject, layer, kind, "")
    tell(found)

    def red(mutated: bool, given: Sequence[BehaviourCase]) -> bool:
        last = False
        with planted(name, sham=not mutated) as again:
            for each in given:
                tell(found)
                again.profiles.clear()
                last = is_refused(each)
        return last

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        order = cases()
        with ExitStack() as stack:
            run = stack.enter_context(planted(name))
            for place, case in enumerate(order):
                found.trying = case.clause
                tell(found)
                run.profiles.clear()
                if not is_refused(case):
                    continue
                stack.close()
                # What a session remembers depends on the cases before.
                if not is_cause(red, case, order[:place] if layer == "session" else ()):
                    found.unsteady.append(case.id)
                elif found.credit([case.clause]):
                    found.note = case.name
                    break
                resumed = stack.enter_context(planted(name))
                resumed.met, resumed.reached = run.met, run.reached
                run = resumed
    found.reached = run.reached
    if not found.result and run.reached:
        found.result = "survived"
    elif not found.result:
        found.trying = PROBING
        tell(found)
        probed = met_by_probe(name)
        idle = probed.met > 0 and not probed.reached
        found.result = "equivalent" if idle else "not_reached"
        found.note = "" if probed.met else "no event of the long program meets its condition"
    return found


@cache
def _check_probe() -> None:
    """Runs the long program without a mutant: an exception is a mistake of this tool."""
    probe()


def met_by_probe(name: str) -> Run:
    """How often a long program meets a mutant that no case meets, and how often that changes something."""
    _check_probe()
    with planted(name) as run, suppress(Exception):
        probe()
    return run
