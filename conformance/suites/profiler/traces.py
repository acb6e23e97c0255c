"""Cases about the trace that a profile exports, read as a viewer of traces reads it."""

from __future__ import annotations

import gzip
import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from conformance.checks.behaviour.queued_work import two
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.profiler.executions import ASYNCHRONOUS, program, warmed
from conformance.suites.profiler.host_events import ones
from conformance.suites.profiler.recording import (
    Recording,
    events_of,
    labelled,
    loaded,
    read_json,
)
from devices.failure import Kind

cases = Cases(Kind.STATE)

#: Categories of what runs on the device, and of ops.
_GZIP = b"\x1f\x8b"  # with which such a file begins (RFC 1952)
ON_DEVICE, OPS = ("kernel", "gpu_memcpy", "gpu_memset"), "cpu_op"


def slices(seen: Recording, *categories: str) -> list[dict[str, Any]]:
    """Returns the events of a recording's trace that have a duration and one of these categories, in the order in
    which they begin."""
    found = [e for e in seen.trace if e.get("ph") == "X" and (e.get("cat") in categories or not categories)]  # fmt: skip
    return sorted(found, key=lambda event: (event.get("ts", 0), -event.get("dur", 0)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@cases("profiler.activity")
def loads(context: CaseContext) -> None:
    """The exported trace is valid JSON. Each event has a phase and a name. Each event with a duration has a category, a
    process, a thread, a begin, and a duration that is not negative."""
    x = ones(context, 8, 8)
    options = {
        "record_shapes": True,
        "profile_memory": True,
        "with_flops": True,
        "with_stack": True,
    }
    with Recording(context, **options) as seen:
        with record_function("region"):
            x.mm(x).add(1).sum().item()
        context.settle()
    unnamed = [e for e in seen.trace if not (isinstance(e.get("ph"), str) and "name" in e)]
    context.same(unnamed[:1], [], "an event of the trace lacks its phase or name")
    found = slices(seen)
    text = (
        "an event with a duration in the trace lacks its category, process, thread, begin "
        "or duration"
    )
    lacking = [e for e in found if not {"cat", "pid", "tid", "ts", "dur"} <= e.keys()]
    context.same(lacking[:1], [], text)
    text = "an event with a duration in the trace has no begin, or a negative duration"
    wrong = [e for e in found if not (_is_number(e["ts"]) and _is_number(e["dur"]) and e["ts"] > 0 and e["dur"] >= 0)]  # fmt: skip
    context.same(wrong[:1], [], text)
    listed = {event["name"] for event in found}
    missing = {"region", "aten::mm", "aten::add", "aten::sum", "aten::item"} - listed
    context.same(
        missing, set(), ("the trace does not have an op or region of the program"), Kind.COUNT
    )


@cases("profiler.activity")
def has_what_the_profile_lists(context: CaseContext) -> None:
    """In each of two profiles, the trace has every op of the profile once, and the durations are equal to within 1
    µs."""
    x = ones(context, 32, 32)
    warmed(context, program, x)
    for _ in range(2):
        _judge_ops(context, x)


def _judge_ops(context: CaseContext, x: torch.Tensor) -> None:
    with Recording(context) as seen:
        labelled("region", program, x)
        context.settle()
    ops = [event for event in seen.host if event.name.startswith("aten::")]
    there = slices(seen, OPS)
    text = "the ops in the trace are not those that the profile lists"
    context.same(
        Counter(e["name"] for e in there), Counter(op.name for op in ops), text, Kind.COUNT
    )
    text = "the duration of an op in the trace differs from that in the profile"
    took = sorted((op.name, (op.end - op.begin) / 1000) for op in ops)
    shown = sorted((event["name"], event["dur"]) for event in there)
    for (name, microseconds), (_, listed) in zip(took, shown, strict=True):
        close = abs(microseconds - listed) <= 1
        context.check(close, text, expected=microseconds, found=listed, at=name)


@cases("profiler.activity", **ASYNCHRONOUS)
def has_the_executions(context: CaseContext) -> None:
    """In each of two profiles, the trace has every kernel and copy of the profile once, on the same index and stream,
    with the same duration to within 1 µs, and with the id of the op that launched it."""
    x = ones(context, 32, 32)
    warmed(context, program, x)
    for _ in range(2):
        _judge_executions(context, x)


def _judge_executions(context: CaseContext, x: torch.Tensor) -> None:
    with Recording(context) as seen:
        labelled("region", program, x)
        context.settle()
    found = seen.launched(seen.named("region"))
    there = [e for e in slices(seen, *ON_DEVICE) if e["args"].get("External id") is not None]
    text = "the kernels and copies in the trace are not those that the profile lists"
    listed = Counter((each.name, each.index, each.stream) for each in found)
    shown = Counter((e["name"], e["pid"], e["tid"]) for e in there)
    context.same(shown, listed, text, Kind.COUNT)
    text = "the duration of a kernel or copy in the trace differs from that in the profile"
    for each, event in zip(found, there, strict=True):
        close = abs(each.took / 1000 - event["dur"]) <= 1
        context.check(close, text, expected=each.took / 1000, found=event["dur"], at=each.name)
    ops = {e["args"]["External id"]: e["name"] for e in slices(seen, OPS)}
    unknown = [e["name"] for e in there if e["args"]["External id"] not in ops]
    context.same(unknown, [], "a kernel or copy in the trace has an id that no op has")


@cases("profiler.activity", **ASYNCHRONOUS)
def arrows(context: CaseContext) -> None:
    """Each arrow of the trace that ends at a kernel begins at its launch on the host, inside of an op and not after the
    kernel. The stream is held during the launches, so that the kernels run later."""
    (stream, _), x = two(context), ones(context, 32, 32)
    warmed(context, program, x)
    with Recording(context) as seen:
        with context.hold(stream, needed=False), stream:
            labelled("region", program, x)
        context.settle()
    seen.launched(seen.named("region"))
    flows = [e for e in seen.trace if e.get("cat") == "ac2g"]
    starts = {e["id"]: e for e in flows if e["ph"] == "s"}
    ends = [e for e in flows if e["ph"] == "f"]
    if not ends:
        context.note("the trace has no arrows from launches to kernels")
        context.same([*starts], [], "an arrow of the trace has a begin but no end")
    text = "two arrows of the trace have the same id"
    context.same(len({e["id"] for e in ends}), len(ends), text, Kind.COUNT)
    text = "an arrow of the trace that ends at a kernel has no begin"
    context.same([e["id"] for e in ends if e["id"] not in starts], [], text)
    early = [e["id"] for e in ends if e["ts"] < starts[e["id"]]["ts"] - 1000]
    context.same(early, [], "an arrow of the trace ends before it begins", Kind.ORDER)
    regions = slices(seen, OPS)
    text = "an arrow of the trace does not begin inside of an op"
    outside = [
        e["id"]
        for e in (starts[end["id"]] for end in ends)
        if not any(
            o["ts"] <= e["ts"] <= o["ts"] + o["dur"] and o["tid"] == e["tid"] for o in regions
        )
    ]
    context.same(outside, [], text)


@cases("profiler.activity")
def compressed(context: CaseContext) -> None:
    """A trace that is exported to a ``.json.gz`` file is compressed, and contains the same kind of JSON."""
    x = ones(context, 4)
    with Recording(context) as seen:
        labelled("region", x.add, 1)
        context.settle()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        seen.profile.export_chrome_trace(str(path))
        data = path.read_bytes()
    context.check(data[:2] == _GZIP, "the exported .json.gz file is not compressed")
    text = gzip.decompress(data).decode("utf-8")
    listed = {event.get("name") for event in events_of(context, loaded(context, text))}
    context.check("region" in listed, "the compressed trace does not have a region of the program")


@cases(
    "profiler.activity",
    over={
        "name_with_quotes": ('a "quoted" name',),
        "name_with_backslashes": ("C:\\temp\\new",),
        "name_of_two_lines": ("two\nlines\tand a tab",),
        "name_in_another_script": ("Größe 大きさ",),
        "name_like_json": ('{"ph": "X"}, [1',),
    },
)
def names_of_regions(context: CaseContext, name: str) -> None:
    """A trace is valid JSON whatever the name of a region is, and has exactly one region for one record_function.

    If torch on the CPU does not export valid JSON for a name, other devices are not judged by this name: only the rest
    of the trace is checked.
    """
    text = _with_region(Recording(context), name, ones(context, 4))
    if context.kind != "cpu":
        host = Recording(context, activities={ProfilerActivity.CPU})
        _, wrong = read_json(_with_region(host, name, torch.ones(4)))
        if wrong:
            context.note(
                f"torch does not export valid JSON for the name {name!r} on the CPU either"
            )
            text = text.replace(name, "region")
    events = events_of(context, loaded(context, text))
    found = [event for event in events if event.get("cat") == "user_annotation"]
    text = "the trace does not have exactly one region for one record_function"
    context.same(len(found), 1, text, Kind.COUNT)


def _with_region(seen: Recording, name: str, x: torch.Tensor) -> str:
    """Profiles an op inside of a region with this name, and returns the exported trace as a string."""
    with seen:
        labelled(name, x.add, 1)
        seen.context.settle()
    return seen.exported()


@cases("profiler.activity")
def shapes_and_dtypes(context: CaseContext) -> None:
    """With ``record_shapes``, the ops of a trace have the shapes and dtypes of their inputs."""
    x, y = ones(context, 3, 4), ones(context, 4, 5)
    with Recording(context, record_shapes=True) as seen:
        x.mm(y)
        context.settle()
    [event, *_] = [e for e in slices(seen, OPS) if e["name"] == "aten::mm"] or [{"args": {}}]
    text = "the shapes of an op in the trace are not those of its inputs"
    context.same(event["args"].get("Input Dims"), [[3, 4], [4, 5]], text, Kind.SHAPE)
    text = "the dtypes of an op in the trace are not those of its inputs"
    context.same(event["args"].get("Input type"), ["float", "float"], text, Kind.DTYPE)
