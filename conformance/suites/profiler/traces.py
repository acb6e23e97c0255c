"""Cases about the trace that a profile exports, read as a viewer of traces reads it."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from conformance.checks.behaviour.queued_work import two
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.profiler.executions import ASYNCHRONOUS, program, warmed
from conformance.suites.profiler.host_events import names, ones
from conformance.suites.profiler.recording import (
    CLOCKS,
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
    found = slices(seen)
    listed = {event["name"] for event in found}
    missing = {"region", "aten::mm", "aten::add", "aten::sum", "aten::item"} - listed
    context.same(
        missing, set(), ("the trace does not have an op or region of the program"), Kind.COUNT
    )


@cases("profiler.activity")
def has_what_the_profile_lists(context: CaseContext) -> None:
    """In each of two profiles, the trace has every op and region of the profile once, in the same order and threads,
    and the times are equal to within 1 µs."""
    x = ones(context, 32, 32)
    warmed(context, program, x)
    for place in range(2):
        _judge_ops(context, x, f"profile {place + 1}")


def _judge_ops(context: CaseContext, x: torch.Tensor, profile: str) -> None:
    with Recording(context) as seen:
        with record_function("region"):
            for name in ("first", "second", "third"):
                labelled(name, program, x)
        context.settle()
    seen.named("region")
    ops = [e for e in seen.host if e.is_region or e.name.startswith("aten::")]
    there = slices(seen, OPS, "user_annotation")
    there = [e for e in there if e["cat"] == "user_annotation" or e["name"].startswith("aten::")]
    text = "the ops and regions in the trace are not those that the profile lists, in their order"
    context.same([e["name"] for e in there], names(ops), text, Kind.COUNT, at=profile)
    first = ops[0].begin, there[0]["ts"]
    threads = dict[int, Any]()
    for op, event in zip(ops, there, strict=True):
        at = f"{op.name}, {profile}"
        took, begin = (op.end - op.begin) / 1000, (op.begin - first[0]) / 1000
        text = "the duration of an op or region in the trace differs from that in the profile"
        close = abs(took - event["dur"]) <= 1
        context.check(close, text, expected=took, found=event["dur"], at=at)
        _judge_begin(context, begin, event["ts"] - first[1], at)
        text = "the ops and regions of one thread are on several threads of the trace"
        context.same(event["tid"], threads.setdefault(op.thread, event["tid"]), text, at=at)


def _judge_begin(context: CaseContext, expected: float, found: float, at: str) -> None:
    """Checks two times in µs, both counted from the first event of the host: in the profile and in the trace."""
    text = "an event begins at another time in the trace than in the profile"
    context.check(abs(expected - found) <= 1, text, expected=expected, found=found, at=at)


@cases("profiler.activity", **ASYNCHRONOUS)
def has_the_executions(context: CaseContext) -> None:
    """In each of two profiles, the trace has every kernel and copy of the profile once, with the same index, stream,
    times and op. They run on two streams, and also on another index, if the device has one."""
    streams = [context.current_stream(), *two(context)[:1]]
    several = context.has("multi_device") and len(context.indices) > 1
    tensors = [ones(context, 32, 32, index=index) for index in range(1 + several)]
    for x in tensors:
        warmed(context, program, x)
    for place in range(2):
        _judge_executions(context, streams, tensors, f"profile {place + 1}")


def _judge_executions(
    context: CaseContext, streams: list[Any], tensors: list[torch.Tensor], profile: str
) -> None:
    with Recording(context) as seen:
        with record_function("region"):
            for stream in streams:
                with stream:
                    program(tensors[0])
                    context.settle()
            for x in tensors[1:]:
                program(x)
                context.settle()
        context.settle()
    found = seen.launched(seen.named("region"))
    regions = [e["ts"] for e in slices(seen, "user_annotation") if e["name"] == "region"]
    text = "the trace does not have exactly one region for one record_function"
    context.same(len(regions), 1, text, Kind.COUNT, at=profile)
    there = [e for e in slices(seen, *ON_DEVICE) if e["args"].get("External id") is not None]
    text = "the kernels and copies in the trace are not those that the profile lists"
    listed = [(each.name, each.index, each.stream) for each in found]
    shown = [(e["name"], e["pid"], e["tid"]) for e in there]
    context.same(shown, listed, text, Kind.COUNT, at=profile)
    begin = seen.named("region").begin
    of_profile = {each.id: each.name for each in seen.host}
    of_trace = {e["args"].get("External id"): e["name"] for e in slices(seen, OPS)}
    for each, event in zip(found, there, strict=True):
        at = f"{each.name}, {profile}"
        text = "the duration of a kernel or copy in the trace differs from that in the profile"
        close = abs(each.took / 1000 - event["dur"]) <= 1
        context.check(close, text, expected=each.took / 1000, found=event["dur"], at=at)
        _judge_begin(context, (each.begin - begin) / 1000, event["ts"] - regions[0], at)
        text = "a kernel or copy has another op in the trace than in the profile"
        linked = of_trace.get(event["args"]["External id"], "none")
        context.same(linked, of_profile.get(each.op, "none"), text, at=at)


@cases("profiler.activity", **ASYNCHRONOUS)
def arrows(context: CaseContext) -> None:
    """In each of two profiles, every arrow of the trace that ends at a kernel begins at its launch on the host, inside
    of the op that launched it and not after the kernel. Every arrow has both ends, also if some work was launched by no
    op. The stream is held during the launches, so that the kernels run later."""
    (stream, _), x = two(context), ones(context, 32, 32)
    warmed(context, program, x)
    for place in range(2):
        _judge_arrows(context, stream, x, f"profile {place + 1}")


def _judge_arrows(context: CaseContext, stream: Any, x: torch.Tensor, profile: str) -> None:
    with Recording(context) as seen:
        with context.hold(stream, needed=False), stream:
            labelled("region", program, x)
            if context.descriptor.busy is not None:
                context.descriptor.busy(0.1)  # work that no op launches
        context.settle()
    seen.launched(seen.named("region"))
    flows = [e for e in seen.trace if e.get("cat") == "ac2g"]
    starts, ends = ([e for e in flows if e["ph"] == phase] for phase in "sf")
    if not flows:
        context.note("the trace has no arrows from launches to kernels")
        return
    ids = [e["id"] for e in ends]
    context.same(len({*ids}), len(ids), "two arrows of the trace have the same id", Kind.COUNT)
    text = "the begins and ends of the arrows of the trace do not have the same ids, each once"
    context.same(sorted(e["id"] for e in starts), sorted(ids), text, Kind.COUNT, at=profile)
    begins = {e["id"]: e for e in starts}
    early = [e["id"] for e in ends if e["ts"] < begins[e["id"]]["ts"] - CLOCKS / 1000]
    context.same(early, [], "an arrow of the trace ends before it begins", Kind.ORDER, at=profile)
    operations, executions = slices(seen, OPS), slices(seen, *ON_DEVICE)
    known = {e["args"]["External id"] for e in operations}
    for end in ends:
        there = _around(executions, end, ("pid", "tid"))
        text = "an arrow of the trace does not end at a kernel or copy"
        context.check(there, text, at=profile)
        linked = {e["args"].get("External id") for e in there} & known
        if not linked:  # work that no op launched
            continue
        ops = _around(operations, begins[end["id"]], ("tid",))
        text = "an arrow of the trace does not begin inside of an op"
        context.check(ops, text, at=profile)
        text = "an arrow of the trace leads to a kernel or copy of another op"
        found = f"{ops[-1]['name']} and {there[0]['name']}"
        holds = linked & {e["args"]["External id"] for e in ops}
        context.check(holds, text, found=found, at=profile)


def _around(
    events: list[dict[str, Any]], point: dict[str, Any], same: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns the slices in which a point of the trace lies, to within 1 µs, the innermost last. They have the same
    fields ``same`` as the point."""
    return [
        e
        for e in events
        if all(e[name] == point[name] for name in same)
        and e["ts"] - 1 <= point["ts"] <= e["ts"] + e["dur"] + 1
    ]


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


#: The shapes and dtypes of the inputs of each op that ``shapes_and_dtypes`` calls, as a trace lists them.
_INPUTS = {
    "aten::mm": ([[3, 4], [4, 5]], ["float", "float"]),
    "aten::mul": ([[3, 4], [4]], ["float", "bool"]),
    "aten::eq": ([[2, 1, 3], [3]], ["long int", "long int"]),
}


@cases("profiler.activity")
def shapes_and_dtypes(context: CaseContext) -> None:
    """With ``record_shapes``, the ops of a trace have the shapes and dtypes of their inputs, in each of two
    profiles."""
    x, y = ones(context, 3, 4), ones(context, 4, 5)
    row = ones(context, 4, dtype=torch.bool)
    whole, line = ones(context, 2, 1, 3, dtype=torch.int64), ones(context, 3, dtype=torch.int64)
    for place in range(2):
        with Recording(context, record_shapes=True) as seen:
            x.mm(y)
            x.mul(row)
            whole.eq(line)
            context.settle()
        found = slices(seen, OPS)
        for name, (sizes, dtypes) in _INPUTS.items():
            at = f"{name}, profile {place + 1}"
            [event, *_] = [e for e in found if e["name"] == name] or [{}]
            listed = event.get("args", {})
            text = "the shapes of an op in the trace are not those of its inputs"
            context.same(listed.get("Input Dims"), sizes, text, Kind.SHAPE, at=at)
            text = "the dtypes of an op in the trace are not those of its inputs"
            context.same(listed.get("Input type"), dtypes, text, Kind.DTYPE, at=at)
