"""Cases of the clause allocator.steady: training steps, gradients of gradients, events, pinned memory, exceptions, graphs and a
host that runs ahead of the device do not use more and more memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import KIB, empty_host, fresh, pinned
from conformance.checks.behaviour.graph_capture import new_graph
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.allocator.host_memory import FLOOR, little_to_collect
from conformance.suites.allocator.leaks import judge_repeated
from conformance.suites.allocator.memory_windows import (
    CALLS,
    HOST_CALLS,
    SIDE,
    WINDOWS,
    grows,
    host_bound,
    host_stays,
    must_measure,
    square,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_F = torch.nn.functional
_EVENTS = 8  # events that are made in one repetition
_OPEN_FILES = Path("/proc/self/fd")  # where Linux lists the open files of the process


def _net(context: CaseContext) -> torch.nn.Module:
    layers = (
        torch.nn.Linear(32, 64),
        torch.nn.LayerNorm(64),
        torch.nn.GELU(),
        torch.nn.Linear(64, 8),
    )
    return torch.nn.Sequential(*layers).to(context.device)


_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@cases(
    "allocator.steady", slow=True, over={f"training_with_{name}": (name,) for name in _OPTIMISERS}
)
@little_to_collect()
def training(context: CaseContext, name: str) -> None:
    """A training step (forward, backward and optimizer) is repeated. Neither device memory nor host memory
    grows."""
    net = _net(context)
    optimizer = _OPTIMISERS[name](net.parameters())
    x, y = context.to_device(torch.ones(16, 32)), context.to_device(torch.zeros(16, 8))

    def repeat() -> None:
        optimizer.zero_grad()
        loss = _F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        kept = [each for state in optimizer.state.values() for each in state.values()]
        context.opened.settle([*net.parameters(), *kept])  # a lazy device executes its work now

    must_measure(context, host=True)
    bound = host_bound(context, HOST_CALLS, FLOOR)
    context.same(
        grows(context, repeat, CALLS),
        [],
        "the bytes of device memory in use grew in each window of training steps",
    )
    host_stays(context, repeat, HOST_CALLS, bound, "a training step")


@cases("allocator.steady")
@little_to_collect()
def whole_trainings(context: CaseContext) -> None:
    """A network and its optimizer are repeatedly built, trained and deleted. Device memory does not grow."""
    must_measure(context)

    def repeat() -> None:
        net = _net(context)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(context.to_device(torch.ones(4, 32))).sum().backward()
            optimizer.step()
        del net, optimizer
        gc.collect()

    context.same(
        grows(context, repeat, 2),
        [],
        "the memory of deleted networks stayed in use: the bytes of device memory in use grew in each window of repetitions",
    )


@cases("allocator.steady")
@little_to_collect()
def double_backward(context: CaseContext) -> None:
    """Gradients of gradients are computed repeatedly. Device memory does not grow."""
    must_measure(context)
    x, y = square(context, 1, grad=True), square(context, 5, grad=True)

    def repeat() -> None:
        first = torch.autograd.grad((torch.sin(x) * y).sum(), [x, y], create_graph=True)
        second = torch.autograd.grad([(each**2).sum() for each in first], [x, y])
        del first, second
        gc.collect()

    context.same(
        grows(context, repeat, CALLS),
        [],
        "the bytes of device memory in use grew in each window of repetitions",
    )


@cases("allocator.steady", requires={"streams", "events"})
@little_to_collect()
def events(context: CaseContext) -> None:
    """Events are made, recorded twice, waited for and freed repeatedly, among them interprocess events if the device has them.
    Host memory does not grow, and neither does the number of open files of the process."""
    stream, interprocess = context.stream(), context.has("event_ipc")

    def repeat() -> None:
        for _ in range(_EVENTS):
            event = context.event()
            event.record(stream)
            event.record(stream)
            stream.wait_event(event)
            event.synchronize()

    def shared() -> None:
        event = context.own("event")(interprocess=True)
        event.ipc_handle()
        event.record()
        event.synchronize()

    if interprocess and _OPEN_FILES.is_dir():
        before = _open_files()
        for _ in range(4):
            shared()
        gc.collect()
        opened = _open_files() - before
        text = "the number of open files of the process grew with each interprocess event that was made and freed"
        context.check(opened < 4, text, expected="less than 4 more after 4 events", found=opened)
    elif interprocess:
        context.note("this system does not list the open files of the process")
    host_stays(context, repeat, CALLS, host_bound(context, CALLS, FLOOR), "events")


@cases("allocator.steady", requires={"pinned_memory"})
@little_to_collect()
def pinned_memory(context: CaseContext) -> None:
    """Pinned blocks are written, freed, and given back to the system by empty_host_cache(), repeatedly. Host memory does not
    grow."""
    empty_host(context)

    def repeat() -> None:
        pinned(256 * KIB).fill_(1)
        context.settle()
        empty_host(context)

    host_stays(context, repeat, CALLS, host_bound(context, CALLS, FLOOR), "pinned memory")


#: Dtypes to which float32 may be converted. The first one that a device declares is taken.
_OTHERS = (torch.float16, torch.int32, torch.float64)


@cases("allocator.steady", slow=True)
def moves(context: CaseContext) -> None:
    """Tensors are moved to the device, to the host, and within the device repeatedly, each with and without another dtype, if
    the device has one. Neither device memory nor host memory grows (pytorch/pytorch#114096)."""
    there = square(context, 1)
    host = there.cpu()
    moved: dict[str, Callable[[], torch.Tensor]] = {
        "to the device": lambda: host.to(context.device),
        "to the host": lambda: there.to("cpu"),
    }
    declared = context.descriptor.dtypes
    converted = [each for each in _OTHERS if str(each).removeprefix("torch.") in declared]
    if converted:
        other = converted[0]
        moved |= {
            "to the device and to another dtype": lambda: host.to(context.device, other),
            "to the host and to another dtype": lambda: there.to("cpu", other),
            "to another dtype": lambda: there.to(other),
            "into a view of another dtype": lambda: (
                torch.empty_like(there, dtype=other).t().copy_(host)
            ),
        }

    def prepared(move: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def repeat() -> None:
            move()

        return repeat

    repeated = {name: partial(prepared, move) for name, move in moved.items()}
    judge_repeated(context, repeated, "moves")


def _open_files() -> int:
    """Returns the number of files that the process has open."""
    return len(list(_OPEN_FILES.iterdir()))


@cases("allocator.steady")
@little_to_collect()
def raised(context: CaseContext) -> None:
    """A backward pass in which a hook raises an exception is run repeatedly. Device memory does not grow, so the
    exception keeps no tensors alive."""
    must_measure(context)
    x = square(context, 1, grad=True)

    def fails(grad: torch.Tensor) -> torch.Tensor:
        raise KeyError("an exception that the hook of this case raises itself")

    def repeat() -> None:
        hidden = x.sin()
        hidden.register_hook(fails)
        with suppress(KeyError):
            (hidden * hidden).sum().backward()
        x.grad = None
        del hidden
        gc.collect()

    context.same(
        grows(context, repeat, CALLS),
        [],
        "the bytes of device memory in use grew in each window of repetitions",
    )


def _products(x: torch.Tensor) -> torch.Tensor:
    """Calls the products of matrices, which libraries compute in workspaces of the stream or of the graph."""
    batches = x.view(4, 32, SIDE)
    image = x.view(4, 4, 32, 32)
    made = torch.mm(x, x) + torch.addmm(x, x, x) + _F.linear(x, x)
    return (
        made.sum()
        + torch.bmm(batches, batches.mT).sum()
        + _F.conv2d(image, image[:, :, :3, :3]).sum()
    )


_BODIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a_product_and_a_sum": lambda x: (x * 2).sum(1),
    "matrix_products": _products,
}
_GRAPHS: dict[str, Any] = {"requires": {"graphs", "allocator_statistics"}}


@cases("allocator.steady", over={"graphs": ("a_product_and_a_sum",)}, **_GRAPHS)
@cases("allocator.steady", over={"graphs_of_matrix_products": ("matrix_products",)}, **_GRAPHS)
@little_to_collect()
def graphs(context: CaseContext, body: str) -> None:
    """A graph is repeatedly captured, replayed and reset. Neither the allocated nor the reserved device memory
    grows."""
    x = square(context)
    _BODIES[body](x)  # what libraries make at their first call
    reserved: list[int] = []

    def repeat() -> None:
        context.settle()
        graph = new_graph(context)
        with context.stream(), graph:
            made = _BODIES[body](x)
        graph.replay()
        context.settle()
        graph.reset()
        del made, graph
        gc.collect()
        fresh(context)
        reserved.append(context.counters().reserved)

    context.same(
        grows(context, repeat, CALLS),
        [],
        "the bytes of device memory in use grew in each window of repetitions",
    )
    ends = [reserved[1 + CALLS * n] for n in range(1 + (len(reserved) - 2) // CALLS)]
    rising = len(ends) > WINDOWS and all(a < b for a, b in pairwise(ends))
    context.check(
        not rising,
        "the bytes of reserved device memory grew in each window of repetitions",
        found=ends,
    )


@cases("allocator.steady", requires={"allocator_statistics"})
def ahead(context: CaseContext) -> None:
    """The host queues 400 ops without waiting for the device. The peak of allocated memory exceeds the peak for
    40 ops by at most the size of eight operands."""
    x, reserved = square(context), []
    for count in (40, 400, 400):
        fresh(context)
        torch.accelerator.memory.reset_peak_memory_stats(context.at(0))
        before = context.counters().allocated
        made = x
        for _ in range(count):
            made = made * 0.5 + 0.5
        context.settle()
        reserved.append(context.counters().peak - before)
        del made
    room = 8 * x.numel() * x.element_size()
    text = "the peak of allocated bytes for 400 queued ops exceeds that for 40 ops by more than the size of eight operands; the values found are the peaks for 40, 400 and 400 ops"
    context.check(max(reserved[1:]) <= reserved[0] + room, text, found=reserved)
