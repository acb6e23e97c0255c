"""Cases about the kernels and copies that a profile lists on the device, with their op, index, stream and times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from conformance.checks.behaviour.graph_capture import captured
from conformance.checks.behaviour.queued_work import special, two
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.profiler.host_events import ones
from conformance.suites.profiler.recording import (
    CLOCKS,
    Execution,
    HostEvent,
    Recording,
    in_every_thread,
    labelled,
    overlapping,
    own_activity,
)
from devices.failure import Kind

cases = Cases(Kind.STATE)

#: A device without streams runs its work on the host: it has no activity of its own.
ASYNCHRONOUS: dict[str, Any] = {"requires": {"streams"}}
TWO: dict[str, Any] = {"requires": {"streams", "multi_device"}, "indices": 2}

#: Milliseconds of work by the descriptor's ``busy``, and the least that a profile may say of it.
BUSY, LEAST = 20.0, 15.0
#: More kernels than one buffer of a tracer holds.
MANY = 1500
#: Calls of each of two threads, so many that they get in each other's way.
CALLS = 1000


def warmed(context: CaseContext, function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function once with these arguments and waits for its work. The first call of an op may do more than
    queue its work, for example load kernels, so it is made outside of the profile."""
    function(*arguments)
    context.settle()


def busy(context: CaseContext, milliseconds: float) -> None:
    """Queues work that keeps the current stream busy for this number of milliseconds. Raises NotDeclared if the
    descriptor has no ``busy``."""
    if context.descriptor.busy is None:
        raise NotDeclared(
            "the descriptor declares no `busy`, so there is no work with a known duration"
        )
    context.descriptor.busy(milliseconds)


# -- each kind of work is listed


def _pointwise(context: CaseContext, x: torch.Tensor) -> None:
    x.add(1)


def _in_place(context: CaseContext, x: torch.Tensor) -> None:
    x.mul_(2)


def _product(context: CaseContext, x: torch.Tensor) -> None:
    x.mm(x)


def _reduction(context: CaseContext, x: torch.Tensor) -> None:
    x.sum()


def _fill(context: CaseContext, x: torch.Tensor) -> None:
    x.fill_(3)


def _random(context: CaseContext, x: torch.Tensor) -> None:
    x.normal_()


def _sort(context: CaseContext, x: torch.Tensor) -> None:
    x.sort()


def _within(context: CaseContext, x: torch.Tensor) -> None:
    x.clone()


def _strided(context: CaseContext, x: torch.Tensor) -> None:
    x.t().contiguous()


def _to_device(context: CaseContext, x: torch.Tensor) -> None:
    x.copy_(torch.ones(x.shape))


def _to_host(context: CaseContext, x: torch.Tensor) -> None:
    x.to("cpu")


def _item(context: CaseContext, x: torch.Tensor) -> None:
    x[0, 0].item()


@cases(
    "profiler.activity",
    **ASYNCHRONOUS,
    over={
        f"lists_{name.strip('_')}": (name,)
        for name in (
            *("_pointwise", "_in_place", "_product", "_reduction", "_fill", "_random", "_sort"),
            *("_within", "_strided", "_to_device", "_to_host", "_item"),
        )
    },
)
def lists(context: CaseContext, call: str) -> None:
    """In each of two profiles, a kernel or copy on the device is listed for a call. It has the index of the call's
    tensors, does not begin before the call, and ends before the host has finished waiting for it."""
    function: Callable[..., Any] = globals()[call]
    x = ones(context, 32, 32)
    warmed(context, function, context, x)
    for _ in range(2):
        with Recording(context) as seen, record_function("window"):
            with record_function("call"):
                function(context, x)
            context.settle()
        window, region = seen.named("window"), seen.named("call")
        for execution in seen.launched(region):
            judge(context, execution, window, begins=region.begin)


def judge(
    context: CaseContext, execution: Execution, window: HostEvent, begins: int, index: int = 0
) -> None:
    """Checks the index, duration and times of a kernel or copy. ``begins`` is the time before which the kernel or
    copy cannot have begun, and ``window`` is a region of the profile in which the host waited for its end."""
    at = execution.name
    context.check(at, "a kernel or copy has no name")
    text = "a kernel or copy is listed on another index than the one it ran on"
    context.same(execution.index, index, text, Kind.DEVICE, at=at)
    text = "the duration of a kernel or copy is not positive"
    context.check(execution.took > 0, text, expected="more than 0 ns", found=execution.took, at=at)
    early, late = begins - execution.begin, execution.end - window.end
    text = "a kernel or copy began before the op that launched it"
    context.check(early <= CLOCKS, text, found=f"{early} ns before", kind=Kind.ORDER, at=at)
    text = "a kernel or copy ended after the host had finished waiting for it"
    context.check(late <= CLOCKS, text, found=f"{late} ns after", kind=Kind.ORDER, at=at)


#: Calls whose results are different ops of the device, in the order in which ``program`` makes them.
PROGRAM = ("add", "mul", "mm", "neg", "exp", "sum", "sub", "fill_")


def program(x: torch.Tensor) -> None:
    x.add(1)
    x.mul(2)
    x.mm(x)
    x.neg()
    x.exp()
    x.sum()
    x.sub(1)
    x.fill_(1)


@cases("profiler.activity", **ASYNCHRONOUS)
def of_the_op_that_launched_it(context: CaseContext) -> None:
    """In each of two profiles, every op of a program must have its own kernels, and the kernels of a stream must run
    in the order of the ops that the profile links them to."""
    x = ones(context, 32, 32)
    warmed(context, program, x)
    for _ in range(2):
        _judge_program(context, x)


def _judge_program(context: CaseContext, x: torch.Tensor) -> None:
    with Recording(context) as seen:
        with record_function("program"):
            program(x)
        context.settle()
    ops = seen.ops_inside(seen.named("program"))
    called = [f"aten::{name}" for name in PROGRAM]
    context.same(
        [op.name for op in ops],
        called,
        ("the ops listed for a program differ from those that it called"),
    )
    order = [op for op in ops for _ in seen.launched(op)]
    by_begin = sorted(
        ((execution, op) for op in ops for execution in seen.of(op)),
        key=lambda pair: pair[0].begin,
    )
    text = "the kernels of a stream did not run in the order of the ops that they are linked to"
    found = [op.name for _, op in by_begin]
    context.same(found, [op.name for op in order], text, Kind.ORDER)


@cases(
    "profiler.activity",
    over={"each_call_has_its_kernel": ("_in_place",), "each_copy_is_listed": ("_to_device",)},
    **ASYNCHRONOUS,
)
def of_many_calls(context: CaseContext, call: str) -> None:
    """One op is called many times, on the last index of the device. All calls have the same number of kernels or
    copies, at least one, on this index, and none is listed twice."""
    function: Callable[..., Any] = globals()[call]
    index = context.indices[-1]
    x = ones(context, 64, index=index)
    warmed(context, function, context, x)
    with Recording(context) as seen:
        with record_function("calls"):
            for _ in range(MANY):
                function(context, x)
        context.settle()
    ops = ("aten::mul_", "aten::copy_")  # not the fill of what is copied
    calls = [op for op in seen.ops_inside(seen.named("calls")) if op.name in ops]
    context.same(len(calls), MANY, "a profile does not list all calls of an op", Kind.COUNT)
    of_call = _executions_of(seen, calls)
    counts = {len(found) for found in of_call.values()}
    text = "the calls of an op do not all have the same number of kernels, or have none"
    context.check(len(counts) == 1 and 0 not in counts, text, found=counts, kind=Kind.COUNT)
    listed = [execution for found in of_call.values() for execution in found]
    text = "a kernel or copy is listed on another index than the one it ran on"
    context.same({each.index for each in listed}, {index}, text, Kind.DEVICE)
    text = "the duration of a kernel is not positive"
    context.same([e for e in listed if e.took <= 0][:1], [], text)
    text = "two kernels of one stream overlap"
    context.same(overlapping(listed)[:1], [], text, Kind.ORDER)
    behind = [
        (call, found[0])
        for call, found in zip(calls, of_call.values(), strict=True)
        if found[0].begin < call.begin - CLOCKS
    ]
    context.same(behind[:1], [], "a kernel began before the call that launched it", Kind.ORDER)


def _executions_of(seen: Recording, calls: list[HostEvent]) -> dict[int, list[Execution]]:
    """Returns the kernels and copies of many consecutive calls and of the ops inside of these calls, by the id of the
    call."""
    call_of: dict[int, int] = {}
    left = iter(calls)
    current = next(left, None)
    for event in seen.host:
        while current is not None and current.end <= event.begin:
            current = next(left, None)
        if current is not None and current.contains(event):
            call_of[event.id] = current.id
    found: dict[int, list[Execution]] = {call.id: [] for call in calls}
    for execution in seen.executions:
        if execution.op in call_of:
            found[call_of[execution.op]].append(execution)
    return found


# -- streams and indices


@cases("profiler.activity", **ASYNCHRONOUS)
def streams_are_told_apart(context: CaseContext) -> None:
    """Kernels and copies of one stream must be listed on one stream, and those of different streams on different
    streams. The streams are the default stream, two other streams, and a stream with a priority; each is used twice,
    in two profiles."""
    streams = [context.current_stream(), *two(context)]
    if context.has("stream_priority"):
        streams.append(special(context, "priority"))
    x = ones(context, 64)
    for _ in range(2):
        _judge_streams(context, streams, x)


def _judge_streams(context: CaseContext, streams: list[Any], x: torch.Tensor) -> None:
    with Recording(context) as seen:
        for turn in range(2):
            for place, stream in enumerate(streams):
                with stream:
                    labelled(f"{place} {turn}", x.add, 1)
                    labelled(f"copy {place} {turn}", x.to, "cpu")
        context.settle()
    labels = [[f"{k}{place} {t}" for t in range(2) for k in ("", "copy ")] for place in range(len(streams))]  # fmt: skip
    listed = [
        {each.stream for label in of for each in seen.launched(seen.named(label))} for of in labels
    ]
    text = "kernels that ran on one stream are listed on several streams"
    context.same([len(each) for each in listed], [1] * len(streams), text, Kind.COUNT)
    text = "kernels that ran on different streams are listed on one stream"
    context.same(len(set.union(*listed)), len(streams), text, Kind.COUNT)


@cases("profiler.activity", **ASYNCHRONOUS)
def held_streams(context: CaseContext) -> None:
    """While one stream is held (its work is queued and cannot run yet), a kernel runs on another stream. In the
    profile, the kernel of the held stream must be launched first and begin last."""
    held, free = two(context)
    x, y = ones(context, 64), ones(context, 64)
    warmed(context, x.add, 1)
    with Recording(context) as seen, record_function("window"):
        with context.hold(held):
            with held:
                labelled("held", x.add, 1)
            with free:
                labelled("free", y.add, 1)
            free.synchronize()
        context.settle()
    (blocked, *_), (ran, *_) = (seen.launched(seen.named(name)) for name in ("held", "free"))
    text = (
        "a kernel of a held stream is listed as beginning before a kernel of another "
        "stream ended, although it ran later"
    )
    context.check(ran.end <= blocked.begin + CLOCKS, text, kind=Kind.ORDER)
    text = "kernels of two different streams are listed on one stream"
    context.check(ran.stream != blocked.stream, text)


@cases("profiler.activity", **TWO)
def on_its_index(context: CaseContext) -> None:
    """Kernels, and copies to the host, are launched alternately on two device indices, on the default stream and on
    another one. In two profiles, each is listed on its own index. The second profile begins with index 1."""
    tensors = [ones(context, 64, index=index) for index in (0, 1)]
    for order in ((0, 1), (1, 0)):
        _judge_indices(context, tensors, order)


def _judge_indices(
    context: CaseContext, tensors: list[torch.Tensor], order: tuple[int, ...]
) -> None:
    streams = {index: (context.current_stream(index), context.stream(index)) for index in order}
    with Recording(context) as seen, record_function("window"):
        for turn in range(2):
            for index in order:
                x = tensors[index]
                with streams[index][turn]:
                    labelled(f"{index} {turn}", x.add, 1)
                    labelled(f"{index} copy {turn}", x.to, "cpu")
        context.settle()
    window = seen.named("window")
    for label in ("0", "1", "copy 0", "copy 1"):
        for index in order:
            region = seen.named(f"{index} {label}")
            for execution in seen.launched(region):
                judge(context, execution, window, region.begin, index)
    for index in order:
        first, other = ({e.stream for e in seen.launched(seen.named(f"{index} {turn}"))} for turn in range(2))  # fmt: skip
        text = "kernels that ran on different streams are listed on one stream"
        context.check(not first & other, text, found=(first, other), at=f"index {index}")


@cases("profiler.activity", **TWO)
def between_indices(context: CaseContext) -> None:
    """A copy from one device index to another is listed on one of the two, and linked to the op that made it."""
    x, y = ones(context, 64, index=0), ones(context, 64, index=1)
    warmed(context, y.copy_, x)
    with Recording(context) as seen:
        labelled("copy", y.copy_, x)
        context.settle()
    found = {each.index for each in seen.launched(seen.named("copy"))}
    text = "a copy between two indices is listed on a third index"
    context.check(found <= {0, 1}, text, expected={0, 1}, found=found, kind=Kind.DEVICE)


# -- times


@cases("profiler.activity", **ASYNCHRONOUS)
def do_not_overlap(context: CaseContext) -> None:
    """Kernels and copies that are queued on a held stream (their work cannot begin before all are queued) must not
    overlap when they run."""
    (stream, _), x, y = two(context), ones(context, 2**16), ones(context, 2**16)
    warmed(context, y.copy_, x.add_(1))
    with Recording(context) as seen:
        with context.hold(stream, needed=False), stream, record_function("queued"):
            for _ in range(40):
                x.add_(1)
                y.copy_(x)
        context.settle()
    found, calls = seen.launched(seen.named("queued")), seen.ops_inside(seen.named("queued"))
    context.same(len(calls), 80, "a profile does not list all ops of a region", Kind.COUNT)
    for number, call in enumerate(calls):
        seen.launched(call, at=f"call {number}")
    text = "kernels that ran on one stream are listed on several streams"
    context.same(len({each.stream for each in found}), 1, text, Kind.COUNT)
    text = "two kernels of one stream overlap"
    context.same(overlapping(found)[:1], [], text, Kind.ORDER)


@cases("profiler.activity", **ASYNCHRONOUS)
def duration(context: CaseContext) -> None:
    """Work that keeps a stream busy for 20 ms is listed with a duration of at least 15 ms, and of at most the time for
    which the host waited for it."""
    x = ones(context, 64)
    busy(context, 0.1)
    context.settle()
    with Recording(context) as seen:
        labelled("before", x.add, 1)
        context.settle()
        began = time.perf_counter()
        busy(context, BUSY)
        context.settle()
        waited = 1000 * (time.perf_counter() - began)
        labelled("after", x.add, 1)
        context.settle()
    first, last = seen.named("before"), seen.named("after")
    between = [each for each in seen.host if first.end <= each.begin < last.begin]
    if any(seen.of(each) for each in between):
        raise NotDeclared(
            "the descriptor's `busy` calls ops, so none of its kernels has a known duration"
        )
    text = "work that no op launched is linked to the op before or after it"
    for name in ("before", "after"):
        took = max(each.took for each in seen.launched(seen.named(name))) / 1e6
        context.check(took < LEAST, text, found=f"{took:.3f} ms", at=name)
    longest = max((each.took for each in seen.executions), default=0) / 1e6
    text = "work of 20 ms is listed with a wrong duration"
    expected = f"between {LEAST:g} and {waited:.1f} ms"
    holds = LEAST <= longest <= waited + CLOCKS / 1e6
    context.check(holds, text, expected=expected, found=f"{longest:.3f} ms")


@cases("profiler.activity", **ASYNCHRONOUS)
def order_of_busy_work(context: CaseContext) -> None:
    """A kernel that is queued behind work of 20 ms on the same stream begins after this work has ended, at least 15 ms
    after the kernel's op."""
    x = ones(context, 64)
    warmed(context, x.add, 1)
    with Recording(context) as seen, record_function("window"):
        busy(context, BUSY)
        labelled("behind", x.add, 1)
        context.settle()
    window, region = seen.named("window"), seen.named("behind")
    first, *_ = seen.launched(region)
    judge(context, first, window, begins=int(window.begin + LEAST * 1e6))
    text = "a kernel overlaps the work before it on the same stream"
    mine = [each for each in seen.executions if each.stream == first.stream]
    context.same(overlapping(mine)[:1], [], text, Kind.ORDER)


# -- regions, threads, backward


@cases("profiler.activity", **ASYNCHRONOUS)
def region_covers_its_kernels(context: CaseContext) -> None:
    """The device time of a region is the sum of the times of its kernels. If the profile also lists the region on the
    device, the region begins with its first kernel on a stream and ends with its last one."""
    (stream, _), x = two(context), ones(context, 64, 64)
    warmed(context, program, x)
    with Recording(context) as seen:
        with stream:
            with record_function("region"):
                program(x)
                x.add(1)
            labelled("later", x.mul, 2)
        context.settle()
    found, later = (seen.launched(seen.named(name)) for name in ("region", "later"))
    [event] = [e for e in seen.profile.events() if (e.name, e.device_type) == ("region", _HOST)]
    total, listed = sum(each.took for each in found) / 1000, event.device_time_total
    text = "the device time of a region is not the sum of the times of its kernels"
    context.check(abs(total - listed) <= 1, text, expected=f"{total:.3f} us", found=f"{listed:.3f}")
    shown = [each for each in seen.regions if each.name == "region"]
    if not shown:
        context.note("the profile lists regions of record_function on the host only")
    for each in shown:
        mine = [k for k in found if (k.index, k.stream) == (each.index, each.stream)]
        holds = mine and each.begin <= min(k.begin for k in mine) + 1000
        text = "a region on the device does not cover all its kernels"
        context.check(holds and max(k.end for k in mine) <= each.end + 1000, text, kind=Kind.ORDER)
        text = (
            "a region on the device covers a kernel that was launched after the end of the region"
        )
        context.check(each.end <= later[0].begin + 1000, text, kind=Kind.ORDER)


_HOST = torch.profiler.DeviceType.CPU


@contextmanager
def _switching_often() -> Iterator[None]:
    """Makes Python switch between threads every few calls, so that it also switches inside of a profiled region."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@cases("profiler.activity", **ASYNCHRONOUS)
def threads_launch(context: CaseContext) -> None:
    """Two threads launch kernels, each on its own stream. In a profile of all threads, each kernel is linked to an op
    of the thread that launched it."""
    options = in_every_thread()
    if options["experimental_config"] is None:
        raise NotDeclared(f"torch {torch.__version__} cannot profile all threads")
    streams, tensors = two(context), [ones(context, 64), ones(context, 64)]

    def launch(place: int) -> None:
        with streams[place], record_function(f"thread {place}"):
            for _ in range(CALLS):
                tensors[place].add_(1)

    with Recording(context, **options) as seen, _switching_often():
        context.together(lambda: launch(0), lambda: launch(1))
        context.settle()
    calls = [seen.ops_inside(seen.named(f"thread {place}")) for place in range(2)]
    text = "a profile does not list all ops of a thread"
    context.same([*map(len, calls)], [CALLS, CALLS], text, Kind.COUNT)
    streams_of: dict[int, set[int]] = {op.id: set() for called in calls for op in called}
    for execution in seen.executions:
        streams_of.get(execution.op, set()).add(execution.stream)
    without = [call for call, listed in streams_of.items() if not listed]
    text = "the profile lists no kernel or copy for an op"
    context.same(len(without), 0, text, Kind.COUNT)
    listed = [set.union(*(streams_of[op.id] for op in called)) for called in calls]
    text = "a kernel is linked to an op of a thread that did not launch it"
    context.check([*map(len, listed)] == [1, 1] and listed[0] != listed[1], text, found=listed)


@cases("profiler.activity", **ASYNCHRONOUS)
def backward(context: CaseContext) -> None:
    """Each node of backward has the kernels of its ops, whichever thread the node runs on."""
    x = ones(context, 32, 32, requires_grad=True)
    x.mm(x).exp().sum().backward()
    context.settle()
    with Recording(context) as seen, record_function("window"):
        x.mm(x).exp().sum().backward()
        context.settle()
    window = seen.named("window")
    for node in ("MmBackward0", "ExpBackward0"):
        ran = seen.named(f"autograd::engine::evaluate_function: {node}")
        for execution in seen.launched(ran):
            judge(context, execution, window, ran.begin)


@cases("profiler.activity", **ASYNCHRONOUS)
def without_the_host(context: CaseContext) -> None:
    """A profile with only the device's activity lists kernels and no ops."""
    x = ones(context, 64)
    warmed(context, x.add, 1)
    with Recording(context, activities={own_activity(context.kind)}) as seen:
        for _ in range(3):
            x.add(1)
        context.settle()
    found = len(seen.executions)
    text = "a profile with only the device's activity does not list all kernels"
    context.check(found >= 3, text, expected="at least 3", found=found, kind=Kind.COUNT)
    ops = [event.name for event in seen.host if event.name.startswith("aten::")]
    context.same(ops, [], "a profile with only the device's activity lists ops of the host")


@cases("profiler.activity", requires={"streams", "graphs"})
def replayed_graph(context: CaseContext) -> None:
    """The kernels of a captured graph are listed once for each replay."""
    x = ones(context, 64)
    warmed(context, x.add_, 1)
    with captured(context) as graph:
        x.add_(1)
        x.mul_(2)
        x.neg_()
    graph.replay()
    context.settle()
    counts = []
    for replays in (1, 3):
        with Recording(context) as seen:
            for _ in range(replays):
                graph.replay()
            context.settle()
        counts.append(len(seen.executions))
    text = "a profile does not list the kernels of a graph once for each replay"
    holds = counts[0] >= 3 and counts[1] == 3 * counts[0]
    context.check(
        holds,
        text,
        expected=("at least 3 for one replay, and 3 times as many for three"),
        found=counts,
        kind=Kind.COUNT,
    )
