"""Checks of the clause autograd.saved: tensors saved for backward must keep their values, and saved-tensor hooks must
be able to pack and unpack them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.checks.cases.held_streams import SOON, WaitingCall
from devices.failure import Kind
from opinfo.memory import M_PERTURB, mallopt

cases = Cases(Kind.VALUES)

#: Gradients are compared loosely: reading a changed or freed tensor gives an error of a whole factor.
_RELATIVE, _ABSOLUTE = 0.02, 0.002
#: Seconds that are long enough for a copy that wrongly does not wait for its stream.
_TURN = 0.1
STALE = "modified by an inplace operation"
WRONG_GRADIENT = "the gradient was not computed from the values in the forward pass"


def values(*shape: int) -> torch.Tensor:
    """Return a CPU tensor of the given shape with different, unsorted values from 0.2 to 0.9."""
    count = torch.Size(shape).numel()
    order = torch.arange(count) * 7 % max(count, 1) if count % 7 else torch.arange(count).flip(0)
    return torch.linspace(0.2, 0.9, count)[order].reshape(shape)


def beside(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return a tensor on the device of ``x`` with the numbers of ``values(*shape)``."""
    return values(*shape).to(x.device)


def places(x: torch.Tensor, *rows: Any) -> torch.Tensor:
    return torch.tensor(rows).to(x.device)


def assert_gradient(
    context: CaseContext, found: torch.Tensor | None, want: torch.Tensor, text: str, at: str = ""
) -> None:
    """Check that a gradient exists and has the shape and (within 2 %) the values of ``want``."""
    context.check(found is not None, "the leaf has no gradient", at=at)
    assert found is not None
    context.same(tuple(found.shape), tuple(want.shape), text, Kind.SHAPE, at)
    context.assert_close(found, want, text, at, rtol=_RELATIVE, atol=_ABSOLUTE, check_dtype=False)


#: Ops, grouped by what their backward needs. The input has the shape (4, 6) unless ``_SHAPES`` says otherwise.
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    # the result
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "tan": torch.tan,
    "expm1": torch.expm1,
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "relu": torch.relu,
    "norm": lambda x: x.norm(dim=1),
    "std": lambda x: x.std(1),
    "prod": lambda x: x.prod(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "amax": lambda x: x.amax(1),
    "cumprod": lambda x: x.cumprod(1),
    "inverse": lambda x: torch.linalg.inv(x @ x.mT + torch.eye(4).to(x.device)),
    # the input, an index or a mask
    "log": torch.log,
    "sin": torch.sin,
    "cos": torch.cos,
    "abs": torch.abs,
    "pow": lambda x: x**3,
    "square": lambda x: x * x,
    "mul": lambda x: x * x.flip(0),
    "div": lambda x: beside(x, 4, 6) / x,
    "atan2": lambda x: torch.atan2(x, beside(x, 4, 6).flip(0)),
    "gelu": functional.gelu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "where": lambda x: torch.where(x > 0.5, x * 3, x * x),
    "max": lambda x: x.square().max(1).values,
    "sort": lambda x: x.square().sort(1).values * beside(x, 4, 6),
    "gather": lambda x: x.square().gather(1, places(x, [0, 5], [1, 1], [2, 0], [3, 4])),
    "index_select": lambda x: x.square().index_select(0, places(x, 0, 2, 2)),
    "masked_select": lambda x: x.square()[:, [True, False, True, False, False, True]],
    # several of these
    "matmul": lambda x: x @ x.mT,
    "linear": lambda x: functional.linear(x.square(), beside(x, 5, 6), beside(x, 5)),
    "bmm": lambda x: torch.bmm(x.view(2, 2, 6), x.view(2, 6, 2)),
    "layer_norm": lambda x: functional.layer_norm(x, (6,), beside(x, 6), beside(x, 6)) * beside(x, 4, 6),
    "batch_norm": lambda x: functional.batch_norm(x, None, None, beside(x, 6), training=True) * beside(x, 4, 6),
    "group_norm": lambda x: functional.group_norm(x, 2) * beside(x, 4, 6),
    "cross_entropy": lambda x: functional.cross_entropy(x.square() * 5, places(x, 0, 5, 2, 2)),
    "binary_cross_entropy": lambda x: functional.binary_cross_entropy(x, beside(x, 4, 6).round()),
    "max_pool2d": lambda x: functional.max_pool2d(x.square(), 2),
    "adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(x.square(), 2),
    "conv2d": lambda x: functional.conv2d(x.square(), beside(x, 3, 2, 3, 3), padding=1),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x.flip(2) * 3, x.square()),
}  # fmt: skip
#: Ops that take indices.
_INDEXED = frozenset({"gather", "index_select", "cross_entropy"})
_SHAPES = {
    "conv2d": (1, 2, 4, 6),
    "max_pool2d": (1, 2, 4, 6),
    "adaptive_avg_pool2d": (1, 2, 4, 6),
    "attention": (1, 2, 4, 8),
}


class Passed:
    """The forward pass of an op on an intermediate tensor on the device, together with the gradient computed on the
    CPU, which serves as the reference."""

    def __init__(self, context: CaseContext, name: str) -> None:
        if name in _INDEXED and "int64" not in context.descriptor.dtypes:
            raise NotDeclared(
                f"{name} takes int64 indices, and the descriptor does not declare int64"
            )
        function, given = OPS[name], values(*_SHAPES.get(name, (4, 6)))
        reference = given.clone().requires_grad_()
        result = function(reference * 1)
        cotangent = values(*result.shape) if result.dim() else torch.tensor(0.7)
        result.backward(cotangent)
        assert reference.grad is not None
        self.want = reference.grad
        self.leaf = context.to_device(given).requires_grad_()
        self.cotangent = context.to_device(cotangent)
        self.middle: torch.Tensor = self.leaf * 1
        self.result: torch.Tensor = function(self.middle)

    def gradient(self, retain: bool = False) -> torch.Tensor | None:
        self.leaf.grad = None
        self.result.backward(self.cotangent, retain_graph=retain)
        return self.leaf.grad


def _doubled(x: torch.Tensor) -> None:
    x.mul_(2)


def _part_is_zero(x: torch.Tensor) -> None:
    x.view(-1)[1:].zero_() if x.is_contiguous() else x.zero_()


def _is_out(x: torch.Tensor) -> None:
    torch.full_like(x, 0.25).neg_().add_(1)
    torch.sub(torch.ones_like(x), x, out=x)


@cases("autograd.saved", over={name: (name,) for name in OPS})
def changed(context: CaseContext, name: str) -> None:
    """Change the operand or the result of an op in place after the forward pass: backward must raise RuntimeError, or
    the gradient must still be that of the original values."""
    for which in ("middle", "result"):
        for text, change in (
            ("in place", _doubled),
            ("through a view", _part_is_zero),
            ("by out=", _is_out),
        ):
            made = Passed(context, name)
            with torch.no_grad():
                change(getattr(made, which).detach())
            _raises_or_is_right(
                context, made, f"{'operand' if which == 'middle' else which} changed {text}"
            )


def _raises_or_is_right(context: CaseContext, made: Passed, at: str) -> None:
    try:
        found = made.gradient()
    except RuntimeError as error:
        text = "the error of backward does not say that a saved tensor was changed"
        context.check(
            STALE in str(error), text, expected=STALE, found=error, kind=Kind.RAISED, at=at
        )
    else:
        assert_gradient(context, found, made.want, WRONG_GRADIENT, at)


@cases("autograd.saved", over={f"{name}_copied": (name,) for name in OPS})
def copied(context: CaseContext, name: str) -> None:
    """Save copies with saved_tensors_hooks, then change the operand and the result in place: backward must raise
    RuntimeError, or the gradient must be that of the original values."""
    with saved_tensors_hooks(lambda x: x.detach().clone(), lambda x: x):
        made = Passed(context, name)
    with torch.no_grad():
        made.middle.detach().mul_(2)
        made.result.detach().mul_(2)
    _raises_or_is_right(context, made, "operand and result changed in place")


@cases("autograd.saved", over={f"{name}_freed": (name,) for name in OPS})
def freed(context: CaseContext, name: str) -> None:
    """Free the operand and the result after the forward pass, and fill freed memory with NaN: two backward passes
    through the retained graph must give the right gradient."""
    with freed_is_nan(context):
        made = Passed(context, name)
        shapes = [tuple(made.middle.shape), tuple(made.result.shape)]
        summed = (made.result * made.cotangent).sum()
        del made.middle, made.result
        taken = filled_with_nan(context, shapes)
        for at in ("the first backward", "the second backward"):
            made.leaf.grad = None
            summed.backward(retain_graph=True)
            assert_gradient(context, made.leaf.grad, made.want, WRONG_GRADIENT, at)
            taken += filled_with_nan(context, shapes)


def filled_with_nan(context: CaseContext, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    """Allocate tensors of the given shapes, so that they reuse freed memory, and fill them with NaN."""
    nan = float("nan")
    return [torch.full(shape, nan, device=context.device) for shape in shapes for _ in range(6)]


@contextmanager
def freed_is_nan(context: CaseContext) -> Iterator[None]:
    """Fill memory with NaN when it is freed inside a ``with`` block. Works only on the CPU with the allocator of glibc
    (mallopt(3), M_PERTURB)."""
    perturb = mallopt() if context.kind == "cpu" else None
    if perturb is None:
        yield
        return
    perturb(M_PERTURB, 0xFF)
    try:
        yield
    finally:
        perturb(M_PERTURB, 0)


# -- the graph


@cases("autograd.saved", over={f"{name}_twice": (name,) for name in ("exp", "softmax", "matmul", "layer_norm", "batch_norm", "max_pool2d", "attention", "cross_entropy")})  # fmt: skip
def twice(context: CaseContext, name: str) -> None:
    """Run backward twice through a retained graph, then once without retain_graph: each gradient must be right. A
    fourth backward must raise RuntimeError, because the graph was freed."""
    made = Passed(context, name)
    for at in ("the first backward", "the second backward"):
        assert_gradient(context, made.gradient(retain=True), made.want, WRONG_GRADIENT, at)
    assert_gradient(context, made.gradient(), made.want, WRONG_GRADIENT, "the third backward")
    text = "backward through a freed graph does not raise the documented exception"
    context.raises(RuntimeError, made.gradient, text=text, match="second time")


@cases("autograd.saved")
def dropout(context: CaseContext) -> None:
    """Change the result of dropout in place: backward must raise RuntimeError, or the gradient must be computed with
    the mask of the forward pass."""
    x = context.to_device(torch.ones(400)).requires_grad_()
    y = functional.dropout(x * 1, 0.5)
    kept = context.from_device(y.detach()).clone()
    with torch.no_grad():
        y.detach().fill_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        context.check(
            STALE in str(error),
            "the error of backward does not say that a saved tensor was changed",
            found=error,
        )
        return
    assert_gradient(
        context, x.grad, kept, "the gradient was not computed with the mask of the result"
    )


@cases("autograd.saved", requires={"allocator_statistics"}, over={"memory": (False,), "memory_of_a_checkpoint": (True,)})  # fmt: skip
def memory(context: CaseContext, checkpointed: bool) -> None:
    """Measure how much memory a graph of 18 ops keeps allocated. Without a checkpoint, the graph must keep as much
    memory as 6 to 25 tensors need; with a checkpoint, as much as at most 2 tensors need. After backward, it must keep
    no memory."""
    count = 2**16
    x = torch.full((count,), 0.5, device=context.named(), requires_grad=True)

    def chain(value: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            value = value.exp().neg().exp()
        return value

    chain(x).sum().backward()  # libraries may allocate memory of their own on first use
    context.settle()
    before = context.counters().allocated
    total = (checkpoint(chain, x, use_reentrant=False) if checkpointed else chain(x)).sum()
    context.settle()
    kept = (context.counters().allocated - before) // (4 * count)
    expected = range(3) if checkpointed else range(6, 26)
    context.check(
        kept in expected,
        "the number of tensors that the graph keeps in memory is wrong",
        expected=expected,
        found=kept,
        kind=Kind.COUNT,
    )
    total.backward()
    del total
    context.settle()
    rest = (context.counters().allocated - before) // (4 * count)
    context.same(rest, 0, "backward did not free the saved tensors", Kind.COUNT)


# -- hooks


class _Keeps(torch.autograd.Function):
    """A Function that returns a copy of x and saves the tensor ``kept``. Its backward appends the saved tensor to the
    list ``seen``."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, kept: torch.Tensor, seen: list[torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.seen = seen
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.seen.append(ctx.saved_tensors[0])
        return grads[0], None, None


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)


#: Saved tensors of several layouts and dtypes, made from values of shape (4, 6).
KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "stepped": lambda x: x[::2, 1::2],
    "offset": lambda x: x[2:],
    "expanded": lambda x: x[:1].expand(5, 6),
    "channels_last": _channels_last,
    "a number": lambda x: x[1, 2],
    "empty": lambda x: x[:0],
    "bool": lambda x: x > 0.5,
    "int64": lambda x: (x * 10).long(),
    "bfloat16": lambda x: x.bfloat16(),
    "conjugated": lambda x: torch.complex(x, -x).conj(),
}
#: Those of KEPT that are dense: a copy of them keeps the strides.
_DENSE = {"contiguous", "transposed", "offset", "channels_last"}


def _through(
    context: CaseContext,
    hooks: Callable[[], AbstractContextManager[Any]],
    strides: bool,
    index: int,
) -> None:
    """Save tensors of many layouts and dtypes under the given hooks. In backward, the saved tensors must have the
    original device, shape and values. If ``strides`` is true, dense tensors must also have the original strides."""
    for name, made in KEPT.items():
        base = values(4, 6).to(context.named(index))
        kept, seen = made(base), list[torch.Tensor]()
        want = context.from_device(kept.resolve_conj()).clone()
        x = torch.ones(3, device=context.named(index), requires_grad=True)
        with hooks():
            y: torch.Tensor = _Keeps.apply(x, kept, seen)  # type: ignore[no-untyped-call]
        shape, stride, device = kept.shape, kept.stride(), kept.device
        del base, kept
        y.sum().backward()
        context.same(len(seen), 1, "backward did not run exactly once", Kind.COUNT, name)
        [found] = seen
        context.same(
            found.device,
            device,
            "backward received a saved tensor on another device",
            Kind.DEVICE,
            name,
        )
        context.same(
            found.shape,
            shape,
            "backward received a saved tensor of another shape",
            Kind.SHAPE,
            name,
        )
        there = context.from_device(found.resolve_conj())
        context.equal(there, want, "backward received a saved tensor with different values", name)
        if strides and name in _DENSE and context.has("strides"):
            context.same(
                found.stride(),
                stride,
                "backward received a dense saved tensor with different strides",
                Kind.STRIDES,
                name,
            )


def _cloned(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone()


def _same(x: Any) -> Any:
    return x


def _written(x: torch.Tensor) -> tuple[bytes, torch.device]:
    """Return the tensor serialised by torch.save, and its device."""
    file = io.BytesIO()
    torch.save(x.detach().cpu(), file)
    return file.getvalue(), x.device


def _read(written: tuple[bytes, torch.device]) -> torch.Tensor:
    text, device = written
    loaded: torch.Tensor = torch.load(io.BytesIO(text), weights_only=True)
    return loaded.to(device)


#: Hooks that keep saved tensors as they are, as copies, on the CPU, or serialised.
HOOKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "as_they_are": nullcontext,
    "cloned": partial(saved_tensors_hooks, _cloned, _same),
    "on_cpu": save_on_cpu,
    "written": partial(saved_tensors_hooks, _written, _read),
}


@cases("autograd.saved", over={f"kept_{way}": (way, 0) for way in HOOKS})
@cases("autograd.saved", indices=2, requires={"multi_device"}, over={f"kept_{way}_of_index_1": (way, 1) for way in HOOKS})  # fmt: skip
def kept(context: CaseContext, way: str, index: int) -> None:
    """Save tensors of many layouts and dtypes under hooks that copy them, move them to the CPU or serialise them: in
    backward, the tensors must have the original values, strides and device."""
    _through(context, HOOKS[way], True, index)


@cases("autograd.saved", requires={"pinned_memory"}, over={"kept_pinned": (0,)})
@cases("autograd.saved", indices=2, requires={"pinned_memory", "multi_device"}, over={"kept_pinned_of_index_1": (1,)})  # fmt: skip
def kept_pinned(context: CaseContext, index: int) -> None:
    """Save tensors under save_on_cpu(pin_memory=True), which copies asynchronously: in backward, the tensors must have
    the original values and device."""
    _through(context, partial(save_on_cpu, True, context.kind), False, index)


@cases("autograd.saved", requires={"pinned_memory", "streams"})
def pinned_while_busy(context: CaseContext) -> None:
    """Save tensors under save_on_cpu(pin_memory=True) while the stream is busy: the copy to the CPU must wait for the
    work that was queued on the stream before the copy."""
    x = context.to_device(values(4, 6)).requires_grad_()
    stream = context.stream()
    context.settle()
    with stream, context.hold(stream, needed=False), save_on_cpu(True, context.kind):
        result = (x * 2).exp().sum()
        time.sleep(_TURN)  # a copy that does not wait for the stream runs now
    with stream:
        result.backward()
    stream.synchronize()
    want = 2 * (2 * values(4, 6)).exp()
    assert_gradient(
        context, x.grad, want, "the gradient was not computed from the results of the queued work"
    )


@cases("autograd.saved", requires={"pinned_memory", "streams"})
def pinned_until_read(context: CaseContext) -> None:
    """Run backward under save_on_cpu(pin_memory=True) on a busy stream and allocate pinned memory meanwhile: the pinned
    memory of the saved tensor must not be reused before the copy to the device has read it."""
    shape, stream = (64, 64), context.stream()
    x = context.to_device(values(*shape)).requires_grad_()
    cotangent = torch.ones_like(x)
    context.settle()
    with stream, save_on_cpu(True, context.kind):
        results = [(x * 2).exp()]
    context.settle()

    def backward() -> None:
        results.pop().backward(cotangent)  # and frees the saved tensors

    with context.hold(stream, needed=False) as hold, WaitingCall(backward) as call:
        call.ended(SOON)  # backward may return now or wait for the stream
        nan = torch.full(shape, float("nan"))
        taken = [nan.pin_memory() for _ in range(64)]
        hold.release()
    context.settle()
    taken.clear()
    want = 2 * (2 * values(*shape)).exp()
    assert_gradient(context, x.grad, want, "the gradient was not computed from the saved values")


@cases("autograd.saved")
def result_of_unpack(context: CaseContext) -> None:
    """Save a tensor under saved_tensors_hooks: pack must be called once, with a tensor on the device, and every
    backward must use the tensor that unpack returns."""
    packed, unpacked = list[torch.device](), list[int]()

    def pack(x: torch.Tensor) -> tuple[int, torch.Tensor]:
        packed.append(x.device)
        return len(packed), x.detach().clone()

    def unpack(given: tuple[int, torch.Tensor]) -> torch.Tensor:
        unpacked.append(given[0])
        return given[1] * 3

    x = context.to_device(torch.full((4,), 2.0)).requires_grad_()
    factor = context.to_device(torch.full((4,), 5.0))
    with saved_tensors_hooks(pack, unpack):
        y = x * factor
    text = (
        "the pack hook was not called exactly once, or was called with a tensor on another device"
    )
    context.same(packed, [context.named(0)], text, Kind.DEVICE)
    for times in (1, 2):
        x.grad = None
        y.sum().backward(retain_graph=True)
        assert_gradient(
            context,
            x.grad,
            torch.full((4,), 15.0),
            "backward did not use the tensor that unpack returned",
        )
        context.same(unpacked, [1] * times, "the number of calls of unpack is wrong", Kind.COUNT)


@cases("autograd.saved")
def nested_hooks(context: CaseContext) -> None:
    """Nest saved_tensors_hooks: an op must use the innermost hooks that are active when the op runs. After the end
    of the inner block, the outer hooks must be used again."""
    x = context.to_device(torch.full((4,), 2.0)).requires_grad_()
    factor = context.to_device(torch.full((4,), 5.0))

    def times(number: float) -> AbstractContextManager[Any]:
        return saved_tensors_hooks(_cloned, lambda saved: saved * number)

    with times(2):
        first = x * factor
        with times(3):
            second = x * factor
        third = x * factor
    plain = x * factor
    for result, number in ((first, 2), (second, 3), (third, 2), (plain, 1)):
        x.grad = None
        result.sum().backward()
        assert_gradient(
            context,
            x.grad,
            torch.full((4,), 5.0 * number),
            "the op did not use the innermost active hooks",
        )


@cases("autograd.saved")
def disabled_hooks(context: CaseContext) -> None:
    """Use hooks inside disable_saved_tensors_hooks(message): RuntimeError with this message must be raised. Tensors
    that were packed before the block must still be unpacked, and hooks must work again after the block."""
    x = context.to_device(values(4, 6)).requires_grad_()
    with saved_tensors_hooks(_cloned, _same):
        y = x.exp()

    def used() -> None:
        with saved_tensors_hooks(_cloned, _same):
            x.exp()

    with disable_saved_tensors_hooks("not here"):
        text = "disabled saved-tensor hooks do not raise the documented exception"
        context.raises(RuntimeError, used, text=text, match="not here")
        y.sum().backward()
    assert_gradient(context, x.grad, values(4, 6).exp(), WRONG_GRADIENT)
    used()


@cases("autograd.saved")
def hook_that_writes(context: CaseContext) -> None:
    """Use a pack hook that changes its input in place: RuntimeError must be raised."""
    x = context.to_device(values(4, 6)).requires_grad_()

    def used() -> None:
        with saved_tensors_hooks(lambda saved: saved.detach().mul_(2), _same):
            (x * 1).exp()

    text = "a pack hook that changes its input does not raise the documented exception"
    context.raises(RuntimeError, used, text=text, match="in place|inplace|in-place")
