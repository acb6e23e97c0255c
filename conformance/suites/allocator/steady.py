"""allocator.steady: what is repeated takes no more memory than before, on the device and on the host.

A *window* is a number of repetitions, after which everything is freed. Of the device's memory, what grows in each of three
windows leaks: a cache that fills once does not, nor does one that is filled in the warm-up. Where the device keeps
statistics, these are its bytes in use, exactly; else the bytes that are free, in steps of a granule for each repetition.

The host's memory is measured by host_memory.py, which has the bounds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import NotDeclared
from conformance.suites.allocator import host_memory
from conformance.suites.allocator.host_memory import FLOOR, MANY_FLOOR, Held, little_to_collect
from conformance.suites.allocator.memory import fresh, memory_info
from conformance.suites.graphs.capturing import new_graph
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_F = torch.nn.functional
#: Elements of a side: an operand has 64 KiB.
_SIDE = 128
_CALLS = 4  # of a window of the device's memory
_HOST_CALLS = 16  # of a window of the host's
_WINDOWS = 3


# What is measured


def in_use(context: Context) -> int | None:
    """Bytes of device memory in use, on all indices; None where the device does not say."""
    if context.has("allocator_statistics"):
        return sum(context.counters(index).allocated for index in context.indices)
    if context.has("allocator_memory_info"):
        fresh(context)
        free, total = memory_info(context)
        return total - free
    return None


def _must_measure(context: Context, *, host: bool = False) -> None:
    """Something must be measured for the check to mean anything."""
    if in_use(context) is None and not (host and any(host_memory.held())):
        raise NotDeclared(
            "how much memory is in use: allocator_statistics or allocator_memory_info"
        )


def grows(context: Context, repeat: Callable[[], None], calls: int) -> list[int]:
    """By how much the device's memory in use grew in each of three windows, if it did in each; else nothing. The
    first call of all is the warm-up's."""
    step = 0 if context.has("allocator_statistics") else context.granularity * calls
    found: list[int] = []
    _window(context, repeat, 2)
    before = in_use(context)
    for _ in range(_WINDOWS):
        _window(context, repeat, calls)
        after = in_use(context)
        if before is None or after is None or after - before <= step:
            return []
        found.append(after - before)
        before = after
    return found


def _window(context: Context, repeat: Callable[[], None], calls: int) -> None:
    for _ in range(calls):
        repeat()
    context.settle()


def host_bound(context: Context, calls: int, floor: Held) -> Held:
    """What a window of the host's memory may grow by: as one of an op of the host's does."""
    x = torch.ones(_SIDE, _SIDE)

    def repeat() -> None:
        (x * 2 + 1).sum()

    return host_memory.bound_of(partial(_window, context, repeat, calls), floor)


def host_grows(
    context: Context, repeat: Callable[[], None], calls: int, bound: Held
) -> Held | None:
    """By how much the host's memory grew in sixteen windows, if it did in each."""
    return host_memory.grown(partial(_window, context, repeat, calls), bound)


def _host_stays(
    context: Context, repeat: Callable[[], None], calls: int, bound: Held, what: str
) -> None:
    """A check that the host's memory does not grow."""
    grown = host_grows(context, repeat, calls, bound)
    text, windows = "the host's memory stays", f"in sixteen windows of {calls:,} calls"
    context.check(
        grown is None,
        text,
        expected=f"at most {bound} in a window",
        found=f"{grown} {windows}",
        at=what,
    )


# Ops


def _square(context: Context, first: int = 1, *, grad: bool = False) -> torch.Tensor:
    values = ((torch.arange(_SIDE * _SIDE) * 37 + 11 * first) % 101).float() * (0.8 / 101) + 0.1
    return context.to_device(values.reshape(_SIDE, _SIDE)).requires_grad_(grad)


Op = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

#: Ops of two operands and indices.
_OPS: dict[str, Op] = {
    **{
        name: lambda x, y, i, name=name: getattr(torch, name)(x)  # type: ignore[misc]
        for name in (
            *("abs", "acos", "asinh", "atan", "ceil", "cos", "erf", "exp", "log", "neg", "relu"),
            *("rsqrt", "sigmoid", "sin", "sqrt", "square", "tan", "tanh", "sum", "mean", "amax"),
        )
    },
    **{
        name: lambda x, y, i, name=name: getattr(torch, name)(x, y)  # type: ignore[misc]
        for name in ("add", "mul", "div", "maximum", "atan2", "mm")
    },
    "addmm": lambda x, y, i: torch.addmm(x, x, y),
    "bmm": lambda x, y, i: torch.bmm(x.view(4, 32, _SIDE), y.view(4, _SIDE, 32)),
    "cat": lambda x, y, i: torch.cat([x, y]),
    "clamp": lambda x, y, i: torch.clamp(x, 0.2, 0.6),
    "cumsum": lambda x, y, i: torch.cumsum(x, 1),
    "embedding": lambda x, y, i: _F.embedding(i, x),
    "gelu": lambda x, y, i: _F.gelu(x),
    "index_select": lambda x, y, i: torch.index_select(x, 0, i),
    "layer_norm": lambda x, y, i: _F.layer_norm(x, (_SIDE,), y[0], y[1]),
    "linear": lambda x, y, i: _F.linear(x, y),
    "softmax": lambda x, y, i: torch.softmax(x, 1),
    "softplus": lambda x, y, i: _F.softplus(x),
    "sort": lambda x, y, i: torch.sort(x, 1)[0],
    "transposed": lambda x, y, i: x.t().contiguous(),
    "where": lambda x, y, i: torch.where(x > y, x, y),
    "cross_entropy": lambda x, y, i: _F.cross_entropy(x, i),
    "mse_loss": lambda x, y, i: _F.mse_loss(x, y),
    "binary_cross_entropy": lambda x, y, i: _F.binary_cross_entropy(x, y.detach()),
    "dropout": lambda x, y, i: _F.dropout(x, 0.5),
}


def _repeated(context: Context, op: Op, *, backward: bool) -> Callable[[], None]:
    """A call of an op, with its backward; what it gives is freed."""
    x, y = _square(context, 1, grad=backward), _square(context, 5, grad=backward)
    indices = context.to_device(torch.arange(_SIDE).flip(0).contiguous())

    def repeat() -> None:
        made = op(x, y, indices)
        if backward and made.requires_grad:
            made.sum().backward()
            x.grad = y.grad = None

    return repeat


@little_to_collect()
def _judge(context: Context, names: list[str], *, backward: bool) -> None:
    _must_measure(context, host=True)
    bound = host_bound(context, _HOST_CALLS, FLOOR)
    refused = []
    for name in names:
        repeat = _repeated(context, _OPS[name], backward=backward)
        try:
            repeat()
            context.settle()
        except NotImplementedError:
            refused.append(name)
            continue
        what = "forward and backward" if backward else "forward"
        grown = grows(context, repeat, _CALLS)
        context.same(grown, [], f"{what} of {name}: the device's memory in use stays")
        _host_stays(context, repeat, _HOST_CALLS, bound, f"{what} of {name}")
    if refused:
        context.note(f"not implemented: {', '.join(refused)}")


_NAMES = list(_OPS)
_GROUPS = {"first": _NAMES[:24], "second": _NAMES[24:]}


@cases("allocator.steady", slow=True, over={f"forward_of_the_{n}_ops": (n,) for n in _GROUPS})
def forward(context: Context, group: str) -> None:
    """An op that is called again and again takes no more memory."""
    _judge(context, _GROUPS[group], backward=False)


@cases("allocator.steady", slow=True, over={f"backward_of_the_{n}_ops": (n,) for n in _GROUPS})
def backward(context: Context, group: str) -> None:
    """An op and its backward that are called again and again take no more memory."""
    _judge(context, _GROUPS[group], backward=True)


#: Those that take operands of four rows.
_OF_ROWS = [name for name in _NAMES if name not in ("addmm", "bmm", "linear", "mm", "transposed")]
_QUICK = ("mul", "binary_cross_entropy")


@cases("allocator.steady", slow=True, over={f"many_calls_of_{name}": (name,) for name in _QUICK})
@cases(
    "allocator.steady",
    over={f"many_calls_of_{name}": (name,) for name in _OF_ROWS if name not in _QUICK},
    more=True,
)
@little_to_collect()
def many_calls(context: Context, name: str) -> None:
    """A thousand calls with backward keep less than 16 bytes of the host each: no object of a call is left."""
    calls = 1000
    x, y = (_square(context, n)[:4].clone().requires_grad_() for n in (1, 5))
    indices = context.to_device(torch.arange(4))
    op = _OPS[name]

    def repeat() -> None:
        made: Any = op(x, y, indices)
        if made.requires_grad:
            made.sum().backward()
            x.grad = y.grad = None

    _must_measure(context, host=True)
    _window(context, repeat, calls)
    bound = host_bound(context, 50, MANY_FLOOR)
    _host_stays(context, repeat, calls, bound, name)
    context.same(grows(context, repeat, 50), [], f"{name}: the device's memory in use stays")


# Over new shapes


@cases("allocator.steady")
def new_shapes(context: Context) -> None:
    """What is called with new shapes each time takes no more memory on the device than the descriptor's
    `cached_by_shape` for each."""
    _must_measure(context)
    allowed, number = context.descriptor.cached_by_shape, 0
    for name in ("asinh", "mul", "mm", "softmax", "layer_norm", "sum", "relu", "where"):
        before, found = in_use(context), []
        for _ in range(_WINDOWS + 1):
            for _ in range(_CALLS):
                number += 1
                rows = 3 + number
                x = _square(context)[:rows].clone().requires_grad_()
                y = _square(context, 5)[:rows].clone()
                if name == "mm":
                    y = y.t().contiguous()
                made: Any = _OPS[name](x, y if name != "layer_norm" else _square(context), x)
                made.sum().backward()
                del x, y, made
            context.settle()
            after = in_use(context)
            if before is not None and after is not None:
                found.append(after - before)
            before = after
        text = f"{name} of four new shapes at a time: the memory in use grows by at most {allowed} bytes a shape"
        more = [each for each in found[1:] if each > allowed * _CALLS]
        context.check(len(more) < _WINDOWS, text, found=found)


# Training


def _net(context: Context) -> torch.nn.Module:
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
def training(context: Context, name: str) -> None:
    """A training step that is made again and again takes no more memory."""
    net = _net(context)
    optimizer = _OPTIMISERS[name](net.parameters())
    x, y = context.to_device(torch.ones(16, 32)), context.to_device(torch.zeros(16, 8))

    def repeat() -> None:
        optimizer.zero_grad()
        loss = _F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        kept = [each for state in optimizer.state.values() for each in state.values()]
        context.opened.settle([*net.parameters(), *kept])  # a device that works later does it now

    _must_measure(context, host=True)
    bound = host_bound(context, _HOST_CALLS, FLOOR)
    context.same(grows(context, repeat, _CALLS), [], "a step: the device's memory in use stays")
    _host_stays(context, repeat, _HOST_CALLS, bound, "a step")


@cases("allocator.steady")
@little_to_collect()
def whole_trainings(context: Context) -> None:
    """A net and its optimiser that are made, trained and dropped again and again leave nothing."""
    _must_measure(context)

    def repeat() -> None:
        net = _net(context)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            net(context.to_device(torch.ones(4, 32))).sum().backward()
            optimizer.step()
        del net, optimizer
        gc.collect()

    context.same(grows(context, repeat, 2), [], "what is dropped is freed")


@cases("allocator.steady")
@little_to_collect()
def double_backward(context: Context) -> None:
    """Gradients of gradients, again and again, take no more memory."""
    _must_measure(context)
    x, y = _square(context, 1, grad=True), _square(context, 5, grad=True)

    def repeat() -> None:
        first = torch.autograd.grad((torch.sin(x) * y).sum(), [x, y], create_graph=True)
        second = torch.autograd.grad([(each**2).sum() for each in first], [x, y])
        del first, second
        gc.collect()

    context.same(grows(context, repeat, _CALLS), [], "the device's memory in use stays")


@cases("allocator.steady")
@little_to_collect()
def raised(context: Context) -> None:
    """A backward that raises, again and again, leaves nothing."""
    _must_measure(context)
    x = _square(context, 1, grad=True)

    def fails(grad: torch.Tensor) -> torch.Tensor:
        raise KeyError("ours")

    def repeat() -> None:
        hidden = x.sin()
        hidden.register_hook(fails)
        with suppress(KeyError):
            (hidden * hidden).sum().backward()
        x.grad = None
        del hidden
        gc.collect()

    context.same(grows(context, repeat, _CALLS), [], "the device's memory in use stays")


@cases("allocator.steady", requires={"graphs", "allocator_statistics"})
@little_to_collect()
def graphs(context: Context) -> None:
    """A graph that is captured, replayed and destroyed again and again leaves nothing in use, and nothing reserved."""
    x = _square(context)
    reserved: list[int] = []

    def repeat() -> None:
        context.settle()
        graph = new_graph(context)
        with context.stream(), graph:
            made = (x * 2).sum(1)
        graph.replay()
        context.settle()
        graph.reset()
        del made, graph
        gc.collect()
        fresh(context)
        reserved.append(context.counters().reserved)

    context.same(grows(context, repeat, _CALLS), [], "the device's memory in use stays")
    ends = [reserved[1 + _CALLS * n] for n in range(1 + (len(reserved) - 2) // _CALLS)]
    rising = len(ends) > _WINDOWS and all(a < b for a, b in pairwise(ends))
    context.check(not rising, "the device's reserved memory stays", found=ends)


@cases("allocator.steady", requires={"allocator_statistics"})
def ahead(context: Context) -> None:
    """A host that runs ahead of the device for four hundred ops reserves no more than one that does for forty."""
    x, reserved = _square(context), []
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
    text = "at most eight operands more are in use at once"
    context.check(max(reserved[1:]) <= reserved[0] + room, text, found=reserved)
