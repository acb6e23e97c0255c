"""Cases of the clause allocator.steady: work that is repeated does not use more and more memory, neither on the
device nor on the host.

A *window* is a number of repetitions, after which all results are freed. Device memory leaks if it grows in
each of three consecutive windows. A cache that fills once, or during the warm-up, is not a leak. If the device
keeps statistics, its allocated bytes are compared exactly. Otherwise its free memory is compared, with a
tolerance of one allocation granule per repetition.

The module host_memory.py measures host memory and defines the bounds for its growth.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import (
    KIB,
    empty_host,
    fresh,
    memory_info,
    pinned,
)
from conformance.checks.behaviour.graph_capture import new_graph
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.allocator import host_memory
from conformance.suites.allocator.host_memory import FLOOR, MANY_FLOOR, Held, little_to_collect
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_F = torch.nn.functional
#: The length of a side of each operand, which takes 64 KiB.
_SIDE = 128
_CALLS = 4  # calls in a window of device memory
_HOST_CALLS = 16  # calls in a window of host memory
_WINDOWS = 3
_EVENTS = 8  # events that are made in one repetition
_OPEN_FILES = Path("/proc/self/fd")  # where Linux lists the open files of the process


# Measuring


def in_use(context: CaseContext) -> int | None:
    """Returns the bytes of device memory in use on all indices together, or None if the device does not report
    memory use."""
    if context.has("allocator_statistics"):
        return sum(context.counters(index).allocated for index in context.indices)
    if context.has("allocator_memory_info"):
        fresh(context)
        free, total = memory_info(context)
        return total - free
    return None


def _must_measure(context: CaseContext, *, host: bool = False) -> None:
    """Raises NotDeclared if the use of device memory cannot be measured. If ``host`` is true, it is enough that host
    memory can be measured."""
    if in_use(context) is None and not (host and any(host_memory.measure_host_memory())):
        raise NotDeclared(
            "memory use was not checked: the descriptor declares neither allocator_statistics nor allocator_memory_info"
        )


def grows(context: CaseContext, repeat: Callable[[], None], calls: int) -> list[int]:
    """Returns by how many bytes the device memory in use grew in each of three windows of ``calls``
    repetitions, or an empty list if it did not grow in all of them. Two repetitions run before the first window
    as a warm-up."""
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


def _window(context: CaseContext, repeat: Callable[[], None], calls: int) -> None:
    for _ in range(calls):
        repeat()
    context.settle()


def host_bound(context: CaseContext, calls: int, floor: Held) -> Held:
    """Returns how many bytes host memory may grow by in a window of ``calls`` repetitions: the largest growth for a
    CPU op that is known not to leak, but at least ``floor``."""
    x = torch.ones(_SIDE, _SIDE)

    def repeat() -> None:
        (x * 2 + 1).sum()

    return host_memory.bound_of(partial(_window, context, repeat, calls), floor)


def host_grows(
    context: CaseContext, repeat: Callable[[], None], calls: int, bound: Held
) -> Held | None:
    """Returns by how many bytes host memory grew in 16 windows of ``calls`` repetitions if it grew beyond ``bound`` in
    each window. Returns None if it did not."""
    return host_memory.grown(partial(_window, context, repeat, calls), bound)


def _note_what_is_measured(context: CaseContext) -> None:
    """Notes in the result of the case which part of host memory this system does not report."""
    missing = host_memory.unmeasured()
    if missing:
        context.note(
            f"host memory was measured only in part: this system does not report {missing}"
        )


def _host_stays(
    context: CaseContext, repeat: Callable[[], None], calls: int, bound: Held, what: str
) -> None:
    """Checks that host memory does not grow beyond ``bound`` in windows of ``calls`` calls of ``repeat``. ``what``
    names the repeated work in the message of the failure."""
    _note_what_is_measured(context)
    grown = host_grows(context, repeat, calls, bound)
    text, windows = "host memory grew with repeated calls", f"in 16 windows of {calls:,} calls"
    context.check(
        grown is None,
        text,
        expected=f"at most {bound} per window",
        found=f"{grown} {windows}",
        at=what,
    )


# Ops


def _square(context: CaseContext, first: int = 1, *, grad: bool = False) -> torch.Tensor:
    values = ((torch.arange(_SIDE * _SIDE) * 37 + 11 * first) % 101).float() * (0.8 / 101) + 0.1
    return context.to_device(values.reshape(_SIDE, _SIDE)).requires_grad_(grad)


Op = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]

#: Ops of two operands and an index tensor.
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


def _repeated(context: CaseContext, op: Op, *, backward: bool) -> Callable[[], None]:
    """Returns a function that calls an op and frees the result. If ``backward`` is True, the function also
    computes gradients."""
    x, y = _square(context, 1, grad=backward), _square(context, 5, grad=backward)
    indices = context.to_device(torch.arange(_SIDE).flip(0).contiguous())

    def repeat() -> None:
        made = op(x, y, indices)
        if backward and made.requires_grad:
            made.sum().backward()
            x.grad = y.grad = None

    return repeat


@little_to_collect()
def judge_repeated(
    context: CaseContext,
    repeated: Mapping[str, Callable[[], Callable[[], None]]],
    what: str,
    *,
    spares_errors: bool = False,
) -> None:
    """Checks that neither device memory nor host memory grows while work is repeated. ``repeated`` has, by name, a
    function that prepares the work and returns the function that does it once. ``what`` says what is repeated of each
    name, such as "forward". Every name is tried; the check then fails for those whose memory grew, and notes those that
    the device does not implement. With ``spares_errors``, it also notes those that raise another exception, instead of
    raising it."""
    _must_measure(context, host=True)
    bound = host_bound(context, _HOST_CALLS, FLOOR)
    _note_what_is_measured(context)
    refused, raised, on_device, on_host = [], [], [], []
    for name, prepare in repeated.items():
        try:
            repeat = prepare()
            repeat()
            context.settle()
        except NotImplementedError:
            refused.append(name)
            continue
        except Exception as error:
            if not spares_errors:
                raise
            raised.append(f"{name} ({type(error).__name__})")
            continue
        if grown := grows(context, repeat, _CALLS):
            on_device.append(f"{name} ({grown})")
        # A second time, because what a device's threads free late may look like growth once in hundreds of ops.
        held = host_grows(context, repeat, _HOST_CALLS, bound)
        if held is not None and (held := host_grows(context, repeat, _HOST_CALLS, bound)):
            on_host.append(f"{name} ({held} in 16 windows of {_HOST_CALLS} calls)")
    if refused:
        context.note(f"the device does not implement: {', '.join(refused)}")
    if raised:
        context.note(f"left out, because they raised an exception: {', '.join(raised)}")
    if len(refused) + len(raised) == len(repeated):
        raise NotImplementedError("the device implements none of the ops that are repeated")
    text = f"{what}: the bytes of device memory in use grew in each window of repeated calls"
    context.same(on_device, [], text)
    context.same(on_host, [], f"{what}: host memory grew in each window of repeated calls")


def _judge(context: CaseContext, names: list[str], *, backward: bool) -> None:
    judge_repeated(
        context,
        {name: partial(_repeated, context, _OPS[name], backward=backward) for name in names},
        "forward and backward" if backward else "forward",
    )


_NAMES = list(_OPS)
_GROUPS = {"first": _NAMES[:24], "second": _NAMES[24:]}


@cases("allocator.steady", slow=True, over={f"forward_of_the_{n}_ops": (n,) for n in _GROUPS})
def forward(context: CaseContext, group: str) -> None:
    """About 20 common ops are each called repeatedly, and the results are freed. Neither device memory nor host
    memory grows."""
    _judge(context, _GROUPS[group], backward=False)


@cases("allocator.steady", slow=True, over={f"backward_of_the_{n}_ops": (n,) for n in _GROUPS})
def backward(context: CaseContext, group: str) -> None:
    """The forward and the backward of about 20 common ops are each run repeatedly. Neither device memory nor
    host memory grows."""
    _judge(context, _GROUPS[group], backward=True)


# Layers


def _filled(context: CaseContext, *shape: int, grad: bool = True) -> torch.Tensor:
    return context.to_device(
        torch.linspace(0.1, 0.9, torch.Size(shape).numel()).reshape(shape)
    ).requires_grad_(grad)


#: The operands of a layer, and the layer as a function of them. Each works as an op of its own, which keeps memory of its own:
#: plans and workspaces of convolutions, masks of pooling, states of recurrent layers.
_LAYERS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., torch.Tensor]]] = {
    "conv1d": (((2, 3, 12), (4, 3, 3)), lambda x, w: _F.conv1d(x, w)),
    "conv2d": (((2, 3, 8, 9), (4, 3, 3, 3)), lambda x, w: _F.conv2d(x, w, stride=2)),
    "conv3d": (((1, 2, 5, 6, 4), (3, 2, 2, 2, 2)), lambda x, w: _F.conv3d(x, w)),
    "conv_transpose2d": (((2, 3, 5, 4), (3, 4, 3, 3)), lambda x, w: _F.conv_transpose2d(x, w)),
    "max_pool2d": (((2, 3, 8, 9),), lambda x: _F.max_pool2d(x, 2)),
    "avg_pool2d": (((2, 3, 8, 9),), lambda x: _F.avg_pool2d(x, 2)),
    "adaptive_avg_pool2d": (((2, 3, 8, 9),), lambda x: _F.adaptive_avg_pool2d(x, 3)),
    "batch_norm": (((4, 3, 5), (3,), (3,)), lambda x, w, b: _F.batch_norm(x, None, None, w, b, training=True)),
    "interpolate": (((1, 2, 6, 5),), lambda x: _F.interpolate(x, scale_factor=2.0, mode="bilinear")),
    "attention": (((2, 2, 8, 4),) * 3, _F.scaled_dot_product_attention),
}  # fmt: skip


def _layer(context: CaseContext, name: str) -> Callable[[], None]:
    shapes, function = _LAYERS[name]
    operands = [_filled(context, *shape) for shape in shapes]

    def repeat() -> None:
        torch.autograd.grad(function(*operands).sum(), operands)

    return repeat


def _recurrent(
    context: CaseContext, kind: type[torch.nn.LSTM] | type[torch.nn.GRU]
) -> Callable[[], None]:
    module = kind(3, 4).to(context.device)
    x, parameters = _filled(context, 3, 2, 3), list(module.parameters())

    def repeat() -> None:
        torch.autograd.grad(module(x)[0].sum(), [x, *parameters])

    return repeat


@cases("allocator.steady", slow=True)
def layers(context: CaseContext) -> None:
    """The forward and the backward of convolutions, pooling, normalization, interpolation, attention, an LSTM and a GRU are
    run repeatedly. Neither device memory nor host memory grows."""
    repeated = {name: partial(_layer, context, name) for name in _LAYERS}
    repeated |= {
        kind.__name__: partial(_recurrent, context, kind) for kind in (torch.nn.LSTM, torch.nn.GRU)
    }
    judge_repeated(context, repeated, "forward and backward")


#: The ops that accept operands of four rows.
_OF_ROWS = [name for name in _NAMES if name not in ("addmm", "bmm", "linear", "mm", "transposed")]
_QUICK = ("mul", "binary_cross_entropy")


@cases("allocator.steady", slow=True, over={f"many_calls_of_{name}": (name,) for name in _QUICK})
@cases(
    "allocator.steady",
    over={f"many_calls_of_{name}": (name,) for name in _OF_ROWS if name not in _QUICK},
    more=True,
)
@little_to_collect()
def many_calls(context: CaseContext, name: str) -> None:
    """An op is called 1,000 times in each measured window, with backward. Host memory grows by less than 16
    bytes per call, which shows that no object of a call stays alive; device memory does not grow."""
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
    context.same(
        grows(context, repeat, 50),
        [],
        f"{name}: the bytes of device memory in use grew in each window of repeated calls",
    )


# New shapes


@cases("allocator.steady")
def new_shapes(context: CaseContext) -> None:
    """Ops and their backward are called repeatedly, each time with a new shape. Device memory grows by at most
    the descriptor's `cached_by_shape` bytes for each shape."""
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
        text = f"{name}: in each window of four new shapes, the bytes of device memory in use grew by more than {allowed} per shape"
        more = [each for each in found[1:] if each > allowed * _CALLS]
        context.check(len(more) < _WINDOWS, text, found=found)


#: Ops of a tensor of any number of rows and four columns, and of a square one of four rows.
_SHAPED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "acos": lambda x, y: torch.acos(x),
    "mul": lambda x, y: x * x,
    "mm": lambda x, y: x @ y,
    "softmax": lambda x, y: x.softmax(1),
    "sum": lambda x, y: x.sum(0),
    "layer_norm": lambda x, y: _F.layer_norm(x, (4,), y[0], y[1]),
}
_SHAPED_MORE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cat": lambda x, y: torch.cat([x, y]),
    "sort": lambda x, y: x.sort(0)[0],
    "cumsum": lambda x, y: x.cumsum(0),
    "transposed": lambda x, y: x.t().contiguous(),
    "bmm": lambda x, y: torch.bmm(x[:, None], y[None].expand(len(x), 4, 4)),
    "linear": lambda x, y: _F.linear(x, y, y[0]),
    "batch_norm": lambda x, y: _F.batch_norm(x, None, None, y[0], y[1], training=True),
    "conv1d": lambda x, y: _F.conv1d(x.t()[None], y[:, :, None]),
    "max_pool1d": lambda x, y: _F.max_pool1d(x.t(), 1),
    "attention": lambda x, y: _F.scaled_dot_product_attention(x[None], x[None, :4], x[None, :4]),
    "cross_entropy": lambda x, y: _F.cross_entropy(x, x.softmax(1)),
}
#: New shapes in a window. 16 windows and the first are more shapes than torch's own bounded caches have entries: 1,024
#: primitives of oneDNN, 2,048 traces.
_SHAPES = 130


@cases("allocator.steady", slow=True, over={"host_over_new_shapes": (list(_SHAPED),)})
@cases("allocator.steady", over={"host_over_more_new_shapes": (list(_SHAPED_MORE),)}, more=True)
@little_to_collect()
def host_over_new_shapes(context: CaseContext, names: list[str]) -> None:
    """An op and its backward are called with one new shape after another, over 2,000 in all if host memory grows. Host
    memory stops growing, so that no cache of the host keeps something for each shape forever. The descriptor's
    `cached_by_shape` bytes for each shape are allowed."""
    _must_measure(context, host=True)
    few, bound = 16 * _SHAPES, host_bound(context, _SHAPES, MANY_FLOOR)
    kept = context.descriptor.cached_by_shape * _SHAPES
    bound = Held(bound.resident + kept, bound.heap + kept)
    x, y = _filled(context, 4 + few + 4 * _SHAPES, 4), _filled(context, 4, 4)
    for name in names:
        op = (_SHAPED | _SHAPED_MORE)[name]
        rows = iter(
            range(len(x), 4, -1)
        )  # the largest first: a workspace of the largest size may stay

        def repeat(op: Any = op, rows: Any = rows) -> None:
            part = x[: next(rows)].detach().requires_grad_()
            torch.autograd.grad(op(part, y).sum(), part)

        try:
            repeat()
        except NotImplementedError:
            context.note(f"the device does not implement {name}")
            continue
        _host_stays(context, repeat, _SHAPES, bound, f"{name} with new shapes")


# Training


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

    _must_measure(context, host=True)
    bound = host_bound(context, _HOST_CALLS, FLOOR)
    context.same(
        grows(context, repeat, _CALLS),
        [],
        "the bytes of device memory in use grew in each window of training steps",
    )
    _host_stays(context, repeat, _HOST_CALLS, bound, "a training step")


@cases("allocator.steady")
@little_to_collect()
def whole_trainings(context: CaseContext) -> None:
    """A network and its optimizer are repeatedly built, trained and deleted. Device memory does not grow."""
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

    context.same(
        grows(context, repeat, 2),
        [],
        "the memory of deleted networks stayed in use: the bytes of device memory in use grew in each window of repetitions",
    )


@cases("allocator.steady")
@little_to_collect()
def double_backward(context: CaseContext) -> None:
    """Gradients of gradients are computed repeatedly. Device memory does not grow."""
    _must_measure(context)
    x, y = _square(context, 1, grad=True), _square(context, 5, grad=True)

    def repeat() -> None:
        first = torch.autograd.grad((torch.sin(x) * y).sum(), [x, y], create_graph=True)
        second = torch.autograd.grad([(each**2).sum() for each in first], [x, y])
        del first, second
        gc.collect()

    context.same(
        grows(context, repeat, _CALLS),
        [],
        "the bytes of device memory in use grew in each window of repetitions",
    )


@cases("allocator.steady", requires={"streams", "events"})
@little_to_collect()
def events(context: CaseContext) -> None:
    """Events are made, recorded, waited for and freed repeatedly, among them interprocess events if the device has them.
    Host memory does not grow, and neither does the number of open files of the process."""
    stream, interprocess = context.stream(), context.has("event_ipc")

    def repeat() -> None:
        for _ in range(_EVENTS):
            event = context.event()
            event.record(stream)
            stream.wait_event(event)
            event.synchronize()

    def shared() -> None:
        event = context.own("event")(interprocess=True)
        event.ipc_handle()
        event.record()
        event.synchronize()

    before = _open_files()
    for _ in range(4 * interprocess):
        shared()
    gc.collect()
    opened = _open_files() - before
    text = "the number of open files of the process grew with each interprocess event that was made and freed"
    context.check(opened < 4, text, expected="less than 4 more after 4 events", found=opened)
    _host_stays(context, repeat, _CALLS, host_bound(context, _CALLS, FLOOR), "events")


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

    _host_stays(context, repeat, _CALLS, host_bound(context, _CALLS, FLOOR), "pinned memory")


def _open_files() -> int:
    """Returns the number of files that the process has open; 0 on a system that does not list them."""
    return len(list(_OPEN_FILES.iterdir())) if _OPEN_FILES.is_dir() else 0


@cases("allocator.steady")
@little_to_collect()
def raised(context: CaseContext) -> None:
    """A backward pass in which a hook raises an exception is run repeatedly. Device memory does not grow, so the
    exception keeps no tensors alive."""
    _must_measure(context)
    x = _square(context, 1, grad=True)

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
        grows(context, repeat, _CALLS),
        [],
        "the bytes of device memory in use grew in each window of repetitions",
    )


def _products(x: torch.Tensor) -> torch.Tensor:
    """Calls the products of matrices, which libraries compute in workspaces of the stream or of the graph."""
    batches = x.view(4, 32, _SIDE)
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
    x = _square(context)
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
        grows(context, repeat, _CALLS),
        [],
        "the bytes of device memory in use grew in each window of repetitions",
    )
    ends = [reserved[1 + _CALLS * n] for n in range(1 + (len(reserved) - 2) // _CALLS)]
    rising = len(ends) > _WINDOWS and all(a < b for a, b in pairwise(ends))
    context.check(
        not rising,
        "the bytes of reserved device memory grew in each window of repetitions",
        found=ends,
    )


@cases("allocator.steady", requires={"allocator_statistics"})
def ahead(context: CaseContext) -> None:
    """The host queues 400 ops without waiting for the device. The peak of allocated memory exceeds the peak for
    40 ops by at most the size of eight operands."""
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
    text = "the peak of allocated bytes for 400 queued ops exceeds that for 40 ops by more than the size of eight operands; the values found are the peaks for 40, 400 and 400 ops"
    context.check(max(reserved[1:]) <= reserved[0] + room, text, found=reserved)
