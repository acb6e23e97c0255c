"""Profiles a block of code and returns the profile as data: host events, kernels and copies on the device, memory
events and the exported trace."""

from __future__ import annotations

import copy
import json
import math
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile, supported_activities

from conformance.checks.cases.context import CaseContext
from conformance.checks.clock import Clock
from devices.failure import Kind
from opinfo.torch_private import every_thread, kineto_events, quiet_kineto

#: The largest difference in ns between the clock of the host and that of the device. Both are read for one trace, and
#: backends convert one into the other.
CLOCKS = 1_000_000
#: The largest difference in ns between two numbers for one time: traces are rounded to a µs.
ROUNDING = 1_000
#: Seconds that stopping a profile may take beside the work that is queued. It includes the processing of what was recorded.
STOP = 3.0


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An op, or a region of record_function, as a profile lists it on the host. Times are in ns since the epoch."""

    name: str
    id: int  # the correlation id
    thread: int
    begin: int
    end: int
    sequence: int  # number of the autograd node that the op makes or runs; -1: none
    forward_thread: int
    is_region: bool = False

    def contains(self, other: HostEvent) -> bool:
        return self.thread == other.thread and self.begin <= other.begin and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Execution:
    """A kernel or a copy on the device, as a profile lists it. Times are in ns since the epoch."""

    name: str
    type: str  # of the device, such as "CUDA"
    index: int
    stream: int  # the number that the profile gives the stream
    begin: int
    end: int
    op: int  # correlation id of the op that launched it; 0: none

    @property
    def took(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """Memory that was allocated (bytes > 0) or freed (bytes < 0), as the exported trace lists it."""

    time: float
    address: int
    bytes: int
    index: int
    allocated: int  # bytes, in total, after the event
    reserved: int


def own_activity(kind: str) -> ProfilerActivity:
    """Returns the profiler activity of a device type: ``CUDA`` for "cuda", ``PrivateUse1`` for a device type that is
    not built into torch."""
    found: ProfilerActivity = getattr(ProfilerActivity, kind.upper(), ProfilerActivity.PrivateUse1)
    return found


def type_of(kind: str) -> Any:
    """Returns the DeviceType that a profile gives to the events of a device type."""
    return getattr(DeviceType, kind.upper(), DeviceType.PrivateUse1)


_Recording = TypeVar("_Recording", bound="Recording")


class Recording:
    """A context manager that profiles its block. After the block, its attributes have the events of the profile.

    The profile records the host's activity, and also the device's if torch supports it. ``options`` are those of
    torch.profiler.profile.
    """

    def __init__(self, context: CaseContext, **options: Any) -> None:
        quiet_kineto()
        self.context = context
        self.stopping = 0.0  # seconds that stop() took
        self._began = time.perf_counter()
        self._lasted: float | None = None  # seconds from the start to the end; None: not known
        self._ended: int | None = None  # ns since the epoch, after stopping; None: not known
        own = {own_activity(context.kind)} & supported_activities()
        options.setdefault("activities", {ProfilerActivity.CPU} | own)
        self.profile = profile(**options)

    def __enter__(self: _Recording) -> _Recording:
        with _without_warning():
            self.profile.__enter__()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._lasted = time.perf_counter() - self._began
        self.profile.__exit__(*error)
        self._ended = time.time_ns()

    def start(self) -> None:
        """Starts the profile without a ``with`` block. After ``stop()``, the profile can be started again."""
        self._ended = None
        with _without_warning():
            self.profile.start()
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stops the profile, measures how long that takes, and discards the events of the session before, so that they
        are read anew."""
        self._lasted = time.perf_counter() - self._began
        clock = Clock()
        self.profile.stop()
        self.stopping = clock.now()
        self._ended = time.time_ns()
        self.read_again()

    def step(self) -> None:
        """Begins the next step of the profile's schedule."""
        with _without_warning():
            self.profile.step()

    def as_it_is(self) -> Recording:
        """Returns a copy of the recording with the events that the profile lists now. The copy keeps these events
        when the profile records again."""
        self.read_again()
        made = copy.copy(self)
        made.host, made._on_device = self.host, self._on_device
        return made

    def read_again(self) -> None:
        """Discards the events that were read from an earlier session, so that the next access reads them anew."""
        for name in ("host", "trace", "_on_device", "judged"):
            self.__dict__.pop(name, None)

    # -- host

    @cached_property
    def host(self) -> list[HostEvent]:
        """The ops and regions on the host, in the order in which they began; if two began at the same time, the longer
        one comes first."""
        found = [
            HostEvent(
                event.name(),
                event.correlation_id(),
                event.start_thread_id(),
                event.start_ns(),
                event.start_ns() + event.duration_ns(),
                event.sequence_nr(),
                event.fwd_thread_id(),
                bool(event.is_user_annotation()),
            )
            for event in kineto_events(self.profile)
            if event.device_type() == DeviceType.CPU
            and event.linked_correlation_id() == 0
            and event.name() != "[memory]"
        ]
        return sorted(found, key=lambda each: (each.begin, -each.end))

    def all_named(self, name: str) -> list[HostEvent]:
        return [event for event in self.host if event.name == name]

    def named(self, name: str) -> HostEvent:
        """Returns the host event with this name. Checks that there is exactly one."""
        found = self.judged.all_named(name)
        text = "an op or region that ran once is not listed exactly once"
        self.context.same(len(found), 1, text, Kind.COUNT, at=name)
        return found[0]

    @cached_property
    def judged(self: _Recording) -> _Recording:
        """This recording, after the checks that every profile must pass."""
        self._check_times()
        self._check_span()
        self._check_ids()
        self._check_executions()
        self._check_regions()
        return self

    def _check_times(self) -> None:
        """Checks that no event of the host ends before it begins."""
        text = "the duration of an event in a profile is negative"
        for each in self.host:
            took = each.end - each.begin
            if took < 0:
                self.context.check(
                    False, text, expected="0 ns or more", found=f"{took} ns", at=each.name
                )

    def _check_executions(self) -> None:
        """Check the name, type, index, duration and times of every kernel and copy in the profile, on all streams and
        indices. A kernel must begin after its op, if the profile lists the op, end before the profile ends, and not
        overlap the next kernel on its stream."""
        context, ops = self.context, {each.id: each for each in self.host}
        for each in self.executions:
            context.check(each.name, "a kernel or copy has no name")
            text = "the device type of a kernel or copy is not that of the device"
            kind = type_of(context.kind).name
            context.same(each.type, kind, text, Kind.DEVICE, at=each.name)
            text = "a kernel or copy is listed on an index that the device does not have"
            expected = [*context.indices]
            context.check(each.index in expected, text, expected=expected, found=each.index, kind=Kind.DEVICE, at=each.name)  # fmt: skip
            text = "the duration of a kernel or copy is not positive"
            context.check(
                each.took > 0, text, expected="more than 0 ns", found=each.took, at=each.name
            )
            if (op := ops.get(each.op)) is not None:
                early = op.begin - each.begin
                text = "a kernel or copy began before the op that launched it"
                context.check(early <= CLOCKS, text, found=f"{early} ns before", kind=Kind.ORDER, at=each.name)  # fmt: skip
            if self._ended is not None:
                late = each.end - self._ended
                text = "a kernel or copy ended after the profile"
                context.check(late <= CLOCKS, text, found=f"{late} ns after", kind=Kind.ORDER, at=each.name)  # fmt: skip
        text = "two kernels of one stream overlap"
        context.same(overlapping(self.executions)[:1], [], text, Kind.ORDER)

    def _check_span(self) -> None:
        """Checks that the ops and regions inside of the block together did not last longer than the block. (Regions of
        profiler steps are left out, because torch opens the first one before the block begins.)"""
        mine = [e for e in self.host if _is_called(e) and not e.name.startswith("ProfilerStep#")]
        if mine and self._lasted is not None:
            took = (max(each.end for each in mine) - min(each.begin for each in mine)) / 1e6
            most = 1e3 * self._lasted + CLOCKS / 1e6
            text = "the ops and regions of a profile last longer than the profiled block"
            expected, found = f"at most {most:.3f} ms", f"{took:.3f} ms"
            self.context.check(took <= most, text, expected=expected, found=found)

    def _check_ids(self) -> None:
        """Checks that all ops and regions have different ids. A profile uses these ids to link kernels to ops."""
        ids = [each.id for each in self.host if _is_called(each)]
        text = "an op or region has no id, or the same id as another one"
        wrong = [number for number, times in Counter(ids).items() if times > 1 or number == 0]
        self.context.same(wrong[:1], [], text)

    def inside(self, outer: HostEvent) -> list[HostEvent]:
        """Returns the host events inside of another event, on the same thread."""
        return [event for event in self.host if event is not outer and outer.contains(event)]

    def ops_inside(self, outer: HostEvent) -> list[HostEvent]:
        """Returns the ops that are called directly in a region, without the ops that these ops call."""
        found: list[HostEvent] = []
        for event in self.inside(outer):
            if event.name.startswith("aten::") and not (found and found[-1].contains(event)):
                found.append(event)
        return found

    @property
    def host_functions(self) -> list[Any]:
        """The events of the host as ``profile.events()`` returns them; that list also has events of the device."""
        return [e for e in self.profile.events() if e.device_type == DeviceType.CPU]

    # -- device

    @cached_property
    def _on_device(self) -> list[tuple[bool, Execution]]:
        """The events on the device, each with a flag that is True for a region."""
        found = [
            (
                bool(event.is_user_annotation()),
                Execution(
                    event.name(),
                    event.device_type().name,
                    event.device_index(),
                    event.device_resource_id(),
                    event.start_ns(),
                    event.start_ns() + event.duration_ns(),
                    event.linked_correlation_id(),
                ),
            )
            for event in kineto_events(self.profile)
            if event.device_type() != DeviceType.CPU and event.name() != "[memory]"
        ]
        return sorted(found, key=lambda each: each[1].begin)

    @property
    def executions(self) -> list[Execution]:
        """The kernels and copies that ran on the device, in the order in which they began."""
        return [execution for is_region, execution in self._on_device if not is_region]

    @property
    def regions(self) -> list[Execution]:
        """The regions of record_function that the profile lists on the device."""
        return [execution for is_region, execution in self._on_device if is_region]

    def of(self, op: HostEvent) -> list[Execution]:
        """Returns the kernels and copies that an op, or an op inside of it, launched."""
        ids = {op.id, *(each.id for each in self.inside(op))}
        return [execution for execution in self.executions if execution.op in ids]

    def _of_itself(self, block: HostEvent) -> list[Execution]:
        """Returns the kernels and copies that a region launched itself, without those of the regions inside of it."""
        regions = [each for each in self.inside(block) if each.is_region]
        others = {execution for each in regions for execution in self.of(each)}
        return [execution for execution in self.of(block) if execution not in others]

    def launched(self, op: HostEvent, at: str = "") -> list[Execution]:
        """Returns the kernels and copies of an op. Checks that there is at least one, and that all have the device type
        of the device."""
        found, context = self.of(op), self.context
        text = "the profile lists no kernel or copy for an op"
        listed = f"{len(self.executions)} executions, none of them of {op.name}"
        context.check(found, text, found=listed, kind=Kind.COUNT, at=at or op.name)
        wrong = {each.type for each in found} - {type_of(context.kind).name}
        text = "the device type of a kernel or copy is not that of the device"
        expected = type_of(context.kind).name
        context.check(not wrong, text, expected=expected, found=wrong, kind=Kind.DEVICE, at=at)
        return found

    def _check_regions(self) -> None:
        """Checks each region that is listed on the device: it begins with one kernel or copy of its stream and ends
        with another, and covers everything that its block launched on this stream. Kernels of a region inside of the
        block may be left out, because some tracers count them only for the inner region."""
        streams: dict[tuple[int, int], list[Execution]] = {}
        for each in self.executions:
            streams.setdefault((each.index, each.stream), []).append(each)
        for region in self.regions:
            here = streams.get((region.index, region.stream), [])
            text = (
                "a region on the device does not begin or end with a kernel or copy of its stream"
            )
            holds = any(abs(region.begin - each.begin) <= CLOCKS for each in here) and any(
                abs(region.end - each.end) <= CLOCKS for each in here
            )
            self.context.check(holds, text, kind=Kind.ORDER, at=region.name)
            blocks = self.all_named(region.name)
            mine = [e for e in self._of_itself(blocks[0]) if e in here] if len(blocks) == 1 else []
            text = "a region on the device does not cover all kernels and copies of its block"
            covers = all(
                region.begin <= each.begin + ROUNDING and each.end <= region.end + ROUNDING
                for each in mine
            )
            self.context.check(covers, text, kind=Kind.ORDER, at=region.name)
            took = region.took
            text = "the duration of a region on the device is not positive"
            self.context.check(
                took > 0, text, expected="more than 0 ns", found=took, at=region.name
            )

    # -- the trace

    def exported(self) -> str:
        """Exports the trace and returns it as a string. Torch exports the trace of a session only once."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self.profile.export_chrome_trace(str(path))
            return path.read_text(encoding="utf-8")

    @cached_property
    def trace(self) -> list[dict[str, Any]]:
        """The events of the exported trace, after the checks that every trace must pass."""
        found = events_of(self.context, loaded(self.context, self.exported()))
        check_trace(self.context, found)
        return found

    def memory(self, kind: str, index: int | None = None) -> list[MemoryEvent]:
        """Returns the memory events of a device type in the exported trace, in the order of their times."""
        wanted = int(type_of(kind).value)
        found = [
            MemoryEvent(
                float(event["ts"]),
                int(event["args"]["Addr"]),
                int(event["args"]["Bytes"]),
                int(event["args"]["Device Id"]),
                int(event["args"]["Total Allocated"]),
                int(event["args"]["Total Reserved"]),
            )
            for event in self.trace
            if event.get("name") == "[memory]" and event["args"]["Device Type"] == wanted
        ]
        return [each for each in found if index is None or each.index == index]


def _is_called(event: HostEvent) -> bool:
    """Returns True for an op or region, and False for an event of the device's runtime that is listed on the host."""
    return event.is_region or event.name.startswith("aten::")


@contextmanager
def _without_warning() -> Iterator[None]:
    """Suppresses torch's warning that a second session discards the events of the first. This is documented
    behaviour."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        yield


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not allowed in JSON")


def read_json(text: str) -> tuple[Any, str]:
    """Parses a string as JSON. Returns the data and an empty string, or None and what is wrong with the string."""
    try:
        return json.loads(text, parse_constant=_refuse_constant), ""
    except ValueError as error:
        return None, f"{error}{_text_around(text, getattr(error, 'pos', None))}"


def loaded(context: CaseContext, text: str) -> Any:
    """Returns the data of a JSON string. Checks that the string is valid JSON, which has no NaN or infinities."""
    found, wrong = read_json(text)
    context.check(not wrong, "the exported trace is not valid JSON", found=wrong)
    return found


def _text_around(text: str, position: int | None) -> str:
    """Returns up to 30 characters of the text around the position of an error; an empty string if the position is
    None."""
    return "" if position is None else f": {text[max(position - 15, 0) : position + 15]!r}"


def events_of(context: CaseContext, trace: Any) -> list[dict[str, Any]]:
    """Returns the events of a trace. Checks that the trace is an object with a list ``traceEvents``, as Chrome's trace
    format requires."""
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    context.check(isinstance(events, list), "the trace has no list traceEvents", found=type(events))
    return list(events or ())


def check_trace(context: CaseContext, events: Sequence[dict[str, Any]]) -> None:
    """Checks that each event of a trace has a phase and a name, and that each event with a duration has a category, a
    process, a thread, a begin, and a duration that is not negative."""
    unnamed = [e for e in events if not (isinstance(e.get("ph"), str) and "name" in e)]
    context.same(unnamed[:1], [], "an event of the trace lacks its phase or name")
    slices = [e for e in events if e.get("ph") == "X"]
    text = (
        "an event with a duration in the trace lacks its category, process, thread, begin "
        "or duration"
    )
    lacking = [e for e in slices if not {"cat", "pid", "tid", "ts", "dur"} <= e.keys()]
    context.same(lacking[:1], [], text)
    text = "an event with a duration in the trace has no begin, or a negative duration"
    wrong = [e for e in slices if not (_is_number(e["ts"]) and _is_number(e["dur"]) and e["ts"] > 0 and e["dur"] >= 0)]  # fmt: skip
    context.same(wrong[:1], [], text)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def in_every_thread(**options: Any) -> dict[str, Any]:
    """Returns ``options`` with the setting that makes a profile record the ops of all threads."""
    return {"experimental_config": every_thread(), **options}


def labelled(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function inside of a record_function region with this name, and returns its result."""
    with torch.profiler.record_function(name):
        return function(*arguments)


def overlapping(executions: Iterable[Execution]) -> list[tuple[Execution, Execution]]:
    """Returns the pairs of consecutive executions on a stream that overlap by more than 1 µs, to which traces are
    rounded."""
    last: dict[tuple[int, int], Execution] = {}
    found = []
    for each in sorted(executions, key=lambda execution: execution.begin):
        before = last.get((each.index, each.stream))
        if before is not None and each.begin < before.end - ROUNDING:
            found.append((before, each))
        last[each.index, each.stream] = each
    return found
