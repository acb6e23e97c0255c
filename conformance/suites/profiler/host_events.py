"""Cases about the host's side of a profile: nesting, shapes, sequence numbers, threads, exceptions."""

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
    """Returns a tensor of ones on the device, after its work has finished."""
    made = torch.ones(shape, device=context.named(index), **options)
    context.settle()
    return made


def names(events: list[HostEvent]) -> list[str]:
    return [event.name for event in events]


@cases("profiler.activity")
def nesting(context: CaseContext) -> None:
    """Regions of record_function stand inside of one another as in the program. Each op stands inside of the region that
    called it, and the ops of a region are listed in the order of their calls."""
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
        text = "a region is not listed inside of the region around it"
        context.check(outer.contains(inner), text, at=inner.name)
    text = "a region is listed inside of a region that ended before"
    context.check(first.end <= second.begin, text)
    text = "the ops listed for a region differ from the ops that were called in it"
    context.same(names(seen.ops_inside(first)), ["aten::linear"], text, at="first")
    called = ["aten::add", "aten::relu", "aten::sum"]
    context.same(names(seen.ops_inside(second)), called, text, at="second")
    text = "an op is listed inside of a region that ended before it"
    context.check(not outer.contains(seen.named("aten::neg")), text)


@cases("profiler.activity")
def tree(context: CaseContext) -> None:
    """The events that ``events()`` returns form the tree of the program: ``cpu_parent`` of an op is the region or op that
    called it, and no event is longer than its parent."""
    x = ones(context, 4, 4)
    with Recording(context) as seen:
        with record_function("outer"), record_function("inner"):
            x.matmul(x)
        context.settle()
    events = seen.host_functions
    found = {event.name: event for event in events}
    text = "the parent of an event is not the region or op that called it"
    for name, parent in (("outer", None), ("inner", "outer"), ("aten::matmul", "inner"), ("aten::mm", "aten::matmul")):  # fmt: skip
        above = found[name].cpu_parent if name in found else None
        context.same(above and above.name, parent, text, at=name)
    text = "an event has another duration in events() than in the profile"
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
    context.same(longer, [], "an event is longer than the event around it")


@cases("profiler.activity")
def averages(context: CaseContext) -> None:
    """``key_averages()`` counts the calls of each op, region, kernel and copy, and adds up the times of the kernels of each op.
    The table that it prints has a row for each."""
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
    text = "key_averages() counts the calls of an op, region, kernel or copy wrongly"
    context.same(
        (listed["aten::add"], counts["aten::add"]), (6, 6), text, Kind.COUNT, at="aten::add"
    )
    for name, count in listed.items():
        context.same(counts[name], count, text, Kind.COUNT, at=name)
    for name in {op.name for op in ops}:
        ids = {op.id for op in ops if op.name == name}
        known = sum(each.took for each in seen.executions if each.op in ids) / 1000
        text = "key_averages() does not add up the times of the kernels of an op"
        holds, found = abs(took[name] - known) <= 1, f"{took[name]:.3f} us"
        context.check(holds, text, expected=f"{known:.3f} us", found=found, at=name)
    printed = averaged.table(row_limit=-1, max_name_column_width=1000)
    missing = [name for name in listed if name not in printed]
    context.same(missing, [], "the table of key_averages() lacks a row")


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
    """With ``record_shapes`` an op is listed with the shapes of its inputs. A list of tensors has no shape."""
    function: Callable[..., Any] = globals()[call]
    first, second = ones(context, 3, 4), ones(context, 5, 4)
    with Recording(context, record_shapes=True) as seen:
        labelled("call", function, first, second)
        context.settle()
    seen.named("call")
    found = [
        list(map(list, each.input_shapes)) for each in seen.profile.events() if each.name == op
    ]
    text = "an op is listed with other shapes than those of its inputs"
    context.check(expected in found, text, expected=expected, found=found, kind=Kind.SHAPE)


#: The ops that each turn of a program makes, and the nodes of backward that belong to them.
_TURN = {"exp": "ExpBackward0", "mul": "MulBackward0", "sin": "SinBackward0"}
_TURNS = 10


@cases("profiler.activity")
def sequence_numbers(context: CaseContext) -> None:
    """In each of two profiles, each op of forward has a sequence number of its own. The backward node of the op is listed with
    the same number and with the thread of forward."""
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
    """Checks the numbers and threads of the ops and nodes of ``sequence_numbers``."""
    forward = seen.ops_inside(seen.named("forward"))
    text = "the ops of forward are not listed as they were called"
    context.same(names(forward), [f"aten::{op}" for op in _TURN] * _TURNS, text, at=at)
    numbers = [op.sequence for op in forward]
    text = "two ops of forward have one sequence number, or an op has none"
    context.check(-1 not in numbers and len({*numbers}) == len(numbers), text, found=numbers, at=at)
    prefix = "autograd::engine::evaluate_function: "
    ran = [e for e in seen.host if e.name.removeprefix(prefix) in _TURN.values() and e.name.startswith(prefix)]  # fmt: skip
    text = "the nodes of backward are not listed in the order in which they ran"
    expected = [prefix + node for node in reversed(_TURN.values())] * _TURNS
    context.same(names(ran), expected, text, at=at)
    text = "a node of backward does not have the sequence number of its op"
    context.same([node.sequence for node in ran], numbers[::-1], text, at=at)
    text = "a node of backward is not listed with the thread of its op"
    threads_of = [op.thread for op in forward]
    context.same([node.forward_thread for node in ran], threads_of[::-1], text, at=at)


@cases("profiler.activity")
def threads(context: CaseContext) -> None:
    """A profile of all threads lists the ops of each thread inside of the region of that thread, and so does a second one."""
    options = in_every_thread()
    if options["experimental_config"] is None:
        raise NotDeclared(f"torch {torch.__version__} has no profile of all threads")
    x = ones(context, 4)
    for _ in range(2):
        _judge_threads(context, x, options)


def _judge_threads(context: CaseContext, x: torch.Tensor, options: dict[str, Any]) -> None:
    with Recording(context, **options) as seen, record_function("window"):
        context.together(lambda: labelled("one", x.add, 1), lambda: labelled("other", x.mul, 2))
        labelled("here", x.neg)
        context.settle()
    regions = [seen.named(name) for name in ("one", "other", "here")]
    text = "regions of different threads are listed with one thread"
    context.same(len({region.thread for region in regions}), 3, text, Kind.COUNT)
    window = seen.named("window")
    text = "a thread's region is listed at another time than that at which it ran"
    for region in regions:
        holds = window.begin - CLOCKS <= region.begin <= region.end <= window.end + CLOCKS
        context.check(holds, text, expected=window, found=region)
    text = "the ops of a thread are not listed inside of its region"
    for region, op in zip(regions, ("aten::add", "aten::mul", "aten::neg"), strict=True):
        context.same(names(seen.ops_inside(region)), [op], text, at=region.name)


class _Refused(Exception):
    """The exception that a case raises itself."""


@cases("profiler.activity")
def exception_ends_the_block(context: CaseContext) -> None:
    """An exception inside of a profile is passed on. The profile ends, lists what ran before, and another profile can be
    made afterwards."""
    x = ones(context, 4)
    first, second = Recording(context), Recording(context)

    def refused() -> None:
        with first.profile, record_function("region"):
            x.add(1)
            raise _Refused("a reason")

    text = "an exception is not passed on by a profile"
    context.raises(_Refused, refused, text=text, match="a reason")
    called = names(first.ops_inside(first.named("region")))
    context.same(called, ["aten::add"], "the ops before an exception are not listed")
    with second:
        labelled("again", x.mul, 2)
        context.settle()
    text = "a profile after an exception does not list its ops"
    context.same(names(second.ops_inside(second.named("again"))), ["aten::mul"], text)
    context.same(second.all_named("region"), [], "a profile lists what ran before it")


@cases("profiler.activity")
def op_that_raises(context: CaseContext) -> None:
    """An op that raises an exception is listed, and the ops after it do not stand inside of it."""
    x, wrong = ones(context, 2, 3), ones(context, 2, 3)
    seen = Recording(context)
    seen.start()
    with record_function("region"):
        text = "a product of wrong shapes did not raise an exception"
        context.raises(RuntimeError, x.mm, wrong, text=text)
        x.add(1)
    context.settle()
    seen.stop()
    text = "stopping a profile takes seconds after an op that raised"
    context.check(seen.stopping <= STOP, text, found=f"{seen.stopping:.1f} s")
    called = names(seen.ops_inside(seen.named("region")))
    text = "ops around one that raises are not listed as they were called"
    context.same(called, ["aten::mm", "aten::add"], text)


@cases("profiler.activity")
def many_regions(context: CaseContext) -> None:
    """50 regions stand inside of one another, the innermost around an op. Each is listed once, inside of the one around it."""
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
    text = "a region is not listed inside of the region around it"
    for outer, inner in pairwise(found):
        context.check(outer.contains(inner), text, at=inner.name)
    text = "the op is not listed inside of the innermost region"
    context.same(names(seen.ops_inside(found[-1])), ["aten::add"], text)


@cases("profiler.activity")
def thread_that_began_before(context: CaseContext) -> None:
    """A thread works before, during and after a profile of another thread. The profile lists the ops of its own thread, and
    nothing that the other thread did outside of it."""
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
    text = "the ops of the thread that profiles are not listed"
    context.same(names(seen.ops_inside(seen.named("here"))), ["aten::add"], text)
    outside = [name for name in ("before", "after") if seen.all_named(name)]
    context.same(outside, [], "a profile lists what another thread did outside of it")
