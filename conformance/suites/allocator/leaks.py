"""Cases of the clause allocator.steady: ops and layers that are called repeatedly, also with new shapes, do not use more and
more memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.allocator.host_memory import FLOOR, MANY_FLOOR, Held, little_to_collect
from conformance.suites.allocator.memory_windows import (
    CALLS,
    HOST_CALLS,
    SIDE,
    WINDOWS,
    grows,
    host_bound,
    host_grows,
    host_stays,
    in_use,
    must_measure,
    note_what_is_measured,
    run_window,
    square,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_F = torch.nn.functional


# Ops


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
    "bmm": lambda x, y, i: torch.bmm(x.view(4, 32, SIDE), y.view(4, SIDE, 32)),
    "cat": lambda x, y, i: torch.cat([x, y]),
    "clamp": lambda x, y, i: torch.clamp(x, 0.2, 0.6),
    "cumsum": lambda x, y, i: torch.cumsum(x, 1),
    "embedding": lambda x, y, i: _F.embedding(i, x),
    "gelu": lambda x, y, i: _F.gelu(x),
    "index_select": lambda x, y, i: torch.index_select(x, 0, i),
    "layer_norm": lambda x, y, i: _F.layer_norm(x, (SIDE,), y[0], y[1]),
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
    x, y = square(context, 1, grad=backward), square(context, 5, grad=backward)
    indices = context.to_device(torch.arange(SIDE).flip(0).contiguous())

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
    must_measure(context, host=True)
    bound = host_bound(context, HOST_CALLS, FLOOR)
    note_what_is_measured(context)
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
        if grown := grows(context, repeat, CALLS):
            on_device.append(f"{name} ({grown})")
        # A second time, because what a device's threads free late may look like growth once in hundreds of ops.
        held = host_grows(context, repeat, HOST_CALLS, bound)
        if held is not None and (held := host_grows(context, repeat, HOST_CALLS, bound)):
            on_host.append(f"{name} ({held} in 16 windows of {HOST_CALLS} calls)")
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
    x, y = (square(context, n)[:4].clone().requires_grad_() for n in (1, 5))
    indices = context.to_device(torch.arange(4))
    op = _OPS[name]

    def repeat() -> None:
        made: Any = op(x, y, indices)
        if made.requires_grad:
            made.sum().backward()
            x.grad = y.grad = None

    must_measure(context, host=True)
    run_window(context, repeat, calls)
    bound = host_bound(context, 50, MANY_FLOOR)
    host_stays(context, repeat, calls, bound, name)
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
    must_measure(context)
    allowed, number = context.descriptor.cached_by_shape, 0
    for name in ("asinh", "mul", "mm", "softmax", "layer_norm", "sum", "relu", "where"):
        before, found = in_use(context), []
        for _ in range(WINDOWS + 1):
            for _ in range(CALLS):
                number += 1
                rows = 3 + number
                x = square(context)[:rows].clone().requires_grad_()
                y = square(context, 5)[:rows].clone()
                if name == "mm":
                    y = y.t().contiguous()
                made: Any = _OPS[name](x, y if name != "layer_norm" else square(context), x)
                made.sum().backward()
                del x, y, made
            context.settle()
            after = in_use(context)
            if before is not None and after is not None:
                found.append(after - before)
            before = after
        text = f"{name}: in each window of four new shapes, the bytes of device memory in use grew by more than {allowed} per shape"
        more = [each for each in found[1:] if each > allowed * CALLS]
        context.check(len(more) < WINDOWS, text, found=found)


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
    must_measure(context, host=True)
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
        host_stays(context, repeat, _SHAPES, bound, f"{name} with new shapes")
