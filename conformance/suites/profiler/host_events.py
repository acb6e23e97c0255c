"""Cases about the ops and regions that a profile lists on the host: nesting, shapes, sequence numbers, threads,
exceptions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import DeviceType, record_function

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.profiler.recording import (
    CLOCKS,
    STOP,
    HostEvent,
    Recording,
    in_every_thread,
    labelled,
)
from devices.failure import Kind

cases = Cases(Kind.STATE)


def ones(context: CaseContext, *shape: int, index: int = 0, **options: Any) -> torch.Tensor:
    """Returns a tensor of ones on the device, after waiting for its work."""
    made = torch.ones(shape, device=context.named(index), **options)
    context.settle()
    return made


def names(events: list[HostEvent]) -> list[str]:
    return [event.name for event in events]


@cases("profiler.activity")
def nesting(context: CaseContext) -> None:
    """Regions of record_function are nested in the profile as in the program. Each op is listed inside of the region
    that called it, and the ops of a region are listed in the order of their calls."""
    x, weight = ones(context, 4, 4), ones(context, 3, 4)
    with Recording(context) as seen:
        with record_function("outer"):
            with record_function("first"):
                y = torch.nn.functional.linear(x, weight)
            with record_function("second"):
                y.add(1).relu().sum()
        x.neg()
        context.settle()
    outer, first, second = map(seen.named, ("outer", "first", "second"))
    for inner in (first, second):
        text = "a region is not listed inside of its outer region"
        context.check(outer.contains(inner), text, at=inner.name)
    text = "a region is listed inside of a region that had ended before it began"
    context.check(first.end <= second.begin, text)
    text = "the ops listed for a region differ from the ops that were called in it"
    context.same(names(seen.ops_inside(first)), ["aten::linear"], text, at="first")
    called = ["aten::add", "aten::relu", "aten::sum"]
    context.same(names(seen.ops_inside(second)), called, text, at="second")
    text = "an op is listed inside of a region that had ended before it began"
    context.check(not outer.contains(seen.named("aten::neg")), text)


@cases("profiler.activity")
def tree(context: CaseContext) -> None:
    """The events that ``events()`` returns form the call tree of the program: ``cpu_parent`` of an op is the region or
    op that called it, and no event lasts longer than its parent."""
    x = ones(context, 4, 4)
    with Recording(context) as seen:
        with record_function("outer"), record_function("inner"):
            x.matmul(x)
        context.settle()
    events = seen.host_functions
    found = {event.name: event for event in events}
    text = "cpu_parent of an event is not the region or op that called it"
    for name, parent in (("outer", None), ("inner", "outer"), ("aten::matmul", "inner"), ("aten::mm", "aten::matmul")):  # fmt: skip
        above = found[name].cpu_parent if name in found else None
        context.same(above and above.name, parent, text, at=name)
    text = "the duration of an event in events() differs from the one in the profile"
    for name in ("outer", "inner", "aten::matmul", "aten::mm"):
        took = (seen.named(name).end - seen.named(name).begin) / 1000
        listed = found[name].time_range.elapsed_us()
        context.check(abs(listed - took) <= 1, text, expected=took, found=listed, at=name)
    longer = [
        event.name
        for event in events
        if event.cpu_parent is not None
        and event.time_range.elapsed_us() > event.cpu_parent.time_range.elapsed_us()
    ]
    context.same(longer, [], "an event lasts longer than its parent")


@cases("profiler.activity")
def averages(context: CaseContext) -> None:
    """``key_averages()`` counts the calls of each op, region, kernel and copy, and sums the times of the kernels of
    each op. The table that it prints has a row for each of these names."""
    x = ones(context, 4)
    with Recording(context) as seen:
        for _ in range(2):
            with record_function("region"):
                for _ in range(3):
                    x.add(1)
                x.mul(2).to("cpu")
        context.settle()
    averaged = seen.profile.key_averages()
    counts: Counter[str] = Counter()
    took: Counter[str] = Counter()
    for row in averaged:
        counts[row.key] += row.count
        took[row.key] += row.self_device_time_total * (row.device_type == DeviceType.CPU)
    ops = [event for event in seen.judged.host if event.name.startswith("aten::")]
    listed = Counter(names([*ops, *seen.all_named("region")]))
    listed.update(each.name for each in seen.executions)
    listed["region"] += len([each for each in seen.regions if each.name == "region"])
    text = "the count in key_averages() differs from the number of listed events"
    context.same(
        (listed["aten::add"], counts["aten::add"]), (6, 6), text, Kind.COUNT, at="aten::add"
    )
    for name, count in listed.items():
        context.same(counts[name], count, text, Kind.COUNT, at=name)
    for name in {op.name for op in ops}:
        ids = {op.id for op in ops if op.name == name}
        known = sum(each.took for each in seen.executions if each.op in ids) / 1000
        text = (
            "the device time of an op in key_averages() is not the sum of the times of its kernels"
        )
        holds, found = abs(took[name] - known) <= 1, f"{took[name]:.3f} us"
        context.check(holds, text, expected=f"{known:.3f} us", found=found, at=name)
    printed = averaged.table(row_limit=-1, max_name_column_width=1000)
    missing = [name for name in listed if name not in printed]
    context.same(
        missing, [], ("the table of key_averages() has no row for an op, region, kernel or copy")
    )


def _add(first: torch.Tensor, second: torch.Tensor) -> Any:
    return first.add(second[0])


def _product_of_a_view(first: torch.Tensor, second: torch.Tensor) -> Any:
    return first.mm(second.t())


def _list(first: torch.Tensor, second: torch.Tensor) -> Any:
    return torch.cat([first, second], 0)


@cases(
    "profiler.activity",
    over={
        "shapes_of_broadcast": ("_add", "aten::add", [[3, 4], [4], []]),
        "shapes_of_a_view": ("_product_of_a_view", "aten::mm", [[3, 4], [4, 5]]),
        "shapes_of_a_list": ("_list", "aten::cat", [[], []]),
    },
)
def shapes(context: CaseContext, call: str, op: str, expected: list[list[int]]) -> None:
    """In each of two profiles with ``record_shapes``, an op is listed with the shapes of its inputs. A list of tensors
    has no shape."""
    function: Callable[..., Any] = globals()[call]
    first, second = ones(context, 3, 4), ones(context, 5, 4)
    for place in range(2):
        with Recording(context, record_shapes=True) as seen:
            labelled("call", function, first, second)
            context.settle()
        seen.named("call")
        found = [
            list(map(list, each.input_shapes)) for each in seen.profile.events() if each.name == op
        ]
        text = "the shapes listed for an op are not those of its inputs"
        holds, at = expected in found, f"profile {place + 1}"
        context.check(holds, text, expected=expected, found=found, kind=Kind.SHAPE, at=at)


#: The ops that each turn of a program makes, and the nodes of backward that belong to them.
_TURN = {"exp": "ExpBackward0", "mul": "MulBackward0", "sin": "SinBackward0"}
_TURNS = 10


@cases("profiler.activity")
def sequence_numbers(context: CaseContext) -> None:
    """In each of two profiles, every op of the forward pass has a unique sequence number. The backward node of the op
    is listed with the same number, and with the id of the thread that ran the forward pass."""
    x = ones(context, 4, requires_grad=True)
    for place in range(2):
        with Recording(context) as seen:
            with record_function("forward"):
                y = x
                for _ in range(_TURNS):
                    y = y.exp().mul(x).sin()
            y.backward(torch.ones_like(y))
            context.settle()
        _judge_numbers(context, seen, f"profile {place + 1}")


def _judge_numbers(context: CaseContext, seen: Recording, at: str) -> None:
    """Checks the sequence numbers and threads of the ops and nodes in a profile of the case ``sequence_numbers``."""
    forward = seen.ops_inside(seen.named("forward"))
    text = "the ops listed for the forward pass differ from those that were called"
    context.same(names(forward), [f"aten::{op}" for op in _TURN] * _TURNS, text, at=at)
    numbers = [op.sequence for op in forward]
    text = "an op of the forward pass has no sequence number, or the same one as another op"
    context.check(-1 not in numbers and len({*numbers}) == len(numbers), text, found=numbers, at=at)
    prefix = "autograd::engine::evaluate_function: "
    ran = [e for e in seen.host if e.name.removeprefix(prefix) in _TURN.values() and e.name.startswith(prefix)]  # fmt: skip
    text = "the backward nodes are not listed in the order in which they ran"
    expected = [prefix + node for node in reversed(_TURN.values())] * _TURNS
    context.same(names(ran), expected, text, at=at)
    text = "the sequence number of a backward node differs from that of its op"
    context.same([node.sequence for node in ran], numbers[::-1], text, at=at)
    text = "the forward thread of a backward node is not the thread of its op"
    threads_of = [op.thread for op in forward]
    context.same([node.forward_thread for node in ran], threads_of[::-1], text, at=at)


@cases("profiler.activity")
def threads(context: CaseContext) -> None:
    """In each of two profiles of all threads, the ops of each thread are listed inside of the region of that thread."""
    options = in_every_thread()
    if options["experimental_config"] is None:
        raise NotDeclared(f"torch {torch.__version__} cannot profile all threads")
    x = ones(context, 4)
    for _ in range(2):
        _judge_threads(context, x, options)


def _judge_threads(context: CaseContext, x: torch.Tensor, options: dict[str, Any]) -> None:
    with Recording(context, **options) as seen, record_function("window"):
        context.together(lambda: labelled("one", x.add, 1), lambda: labelled("other", x.mul, 2))
        labelled("here", x.neg)
        context.settle()
    regions = [seen.named(name) for name in ("one", "other", "here")]
    text = "regions of different threads are listed with the same thread"
    context.same(len({region.thread for region in regions}), 3, text, Kind.COUNT)
    window = seen.named("window")
    text = "a thread's region is listed at a time at which it did not run"
    for region in regions:
        holds = window.begin - CLOCKS <= region.begin <= region.end <= window.end + CLOCKS
        context.check(holds, text, expected=window, found=region)
    text = "the ops listed inside of a thread's region differ from those that the thread called"
    for region, op in zip(regions, ("aten::add", "aten::mul", "aten::neg"), strict=True):
        context.same(names(seen.ops_inside(region)), [op], text, at=region.name)


class _Refused(Exception):
    """The exception that a case raises itself inside of a profile."""


@cases("profiler.activity")
def exception_ends_the_block(context: CaseContext) -> None:
    """An exception that is raised inside of a profile reaches the caller. The profile ends and lists the ops before the
    exception, and another profile can be made afterwards."""
    x = ones(context, 4)
    first, second = Recording(context), Recording(context)

    def refused() -> None:
        with first.profile, record_function("region"):
            x.add(1)
            raise _Refused("a reason")

    text = "an exception raised inside of a profile did not reach the caller"
    context.raises(_Refused, refused, text=text, match="a reason")
    called = names(first.ops_inside(first.named("region")))
    context.same(
        called,
        ["aten::add"],
        ("a profile that ended with an exception does not list the ops before the exception"),
    )
    with second:
        labelled("again", x.mul, 2)
        context.settle()
    text = "a profile after one that ended with an exception does not list its ops"
    context.same(names(second.ops_inside(second.named("again"))), ["aten::mul"], text)
    context.same(
        second.all_named("region"), [], ("a profile lists a region of the profile before it")
    )


@cases("profiler.activity")
def op_that_raises(context: CaseContext) -> None:
    """An op that raises an exception is listed, and the ops after it are not nested inside of it."""
    x, wrong = ones(context, 2, 3), ones(context, 2, 3)
    seen = Recording(context)
    seen.start()
    with record_function("region"):
        text = "a product of matrices whose shapes do not match raised no exception"
        context.raises(RuntimeError, x.mm, wrong, text=text)
        x.add(1)
    context.settle()
    seen.stop()
    text = "stopping a profile that contains an op that raised takes too long"
    context.check(seen.stopping <= STOP, text, found=f"{seen.stopping:.1f} s")
    called = names(seen.ops_inside(seen.named("region")))
    text = "the ops listed for a region with an op that raised differ from those that were called"
    context.same(called, ["aten::mm", "aten::add"], text)


@cases("profiler.activity")
def many_regions(context: CaseContext) -> None:
    """50 regions are nested, the innermost around an op. Each is listed once, inside of the next outer region."""
    x, depth = ones(context, 4), 50
    regions = [record_function(f"level {level}") for level in range(depth)]
    with Recording(context) as seen:
        for region in regions:
            region.__enter__()
        x.add(1)
        for region in reversed(regions):
            region.__exit__(None, None, None)
        context.settle()
    found = [seen.named(f"level {level}") for level in range(depth)]
    text = "a region is not listed inside of the next outer region"
    for outer, inner in pairwise(found):
        context.check(outer.contains(inner), text, at=inner.name)
    text = "the op is not listed inside of the innermost region"
    context.same(names(seen.ops_inside(found[-1])), ["aten::add"], text)


@cases("profiler.activity")
def thread_that_began_before(context: CaseContext) -> None:
    """A thread works before, during and after a profile of another thread. The profile lists the ops of the profiling
    thread, and nothing that the other thread did before or after the profile."""
    x = ones(context, 4)
    ready, begin, over = (threading.Event() for _ in range(3))

    def work() -> None:
        labelled("before", x.neg)
        ready.set()
        begin.wait(60)
        labelled("meanwhile", x.neg)
        over.wait(60)
        labelled("after", x.neg)

    def profiled() -> Recording:
        ready.wait(60)
        with Recording(context) as seen:
            begin.set()
            labelled("here", x.add, 1)
            context.settle()
        over.set()
        return seen

    try:
        _, seen = context.together(work, profiled)
    finally:
        for event in (ready, begin, over):
            event.set()
    text = "a profile does not list the ops of the thread that profiles"
    context.same(names(seen.ops_inside(seen.named("here"))), ["aten::add"], text)
    outside = [name for name in ("before", "after") if seen.all_named(name)]
    context.same(outside, [], "a profile lists what another thread did before or after the profile")
