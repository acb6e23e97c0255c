"""Checks of the clause autograd.threads: the device index, stream and thread on which backward runs, hooks, exceptions,
and concurrent graphs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.checks.cases.held_streams import SOON, WaitingCall
from devices.failure import Kind

cases = Cases(Kind.STATE)

WRONG_GRADIENT = "the gradient is wrong"


class _Noting(torch.autograd.Function):
    """A Function that computes ``3 * x``. Its backward calls the function ``note``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, note: Callable[[], object]) -> torch.Tensor:
        ctx.note = note
        return x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.note()
        return grads[0] * 3, None


def noting(x: torch.Tensor, note: Callable[[], object]) -> torch.Tensor:
    made: torch.Tensor = _Noting.apply(x, note)  # type: ignore[no-untyped-call]
    return made


def leaf(context: CaseContext, index: int = 0, value: float = 1.0, count: int = 64) -> torch.Tensor:
    return torch.full((count,), value, device=context.named(index), requires_grad=True)


def whole(
    context: CaseContext,
    found: torch.Tensor | None,
    value: float,
    text: str = WRONG_GRADIENT,
    at: str = "",
) -> None:
    """Check that the gradient ``found`` exists and that each of its elements equals ``value``."""
    context.check(found is not None, "the leaf has no gradient", at=at)
    assert found is not None
    there = context.from_device(found) if found.device.index in (None, 0) else found.cpu()
    context.equal(there, torch.full_like(there, value), text, at)


def _backward(result: torch.Tensor, **named: Any) -> None:
    """Call ``result.sum().backward()`` and suppress torch's warning about the stream of an AccumulateGrad node."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
        result.sum().backward(**named)


def _index() -> int:
    return int(torch.accelerator.current_device_index())


# -- indices and streams


@cases("autograd.threads", requires={"multi_device"}, indices=2, over={"index_0": (0,), "index_1": (1,)})  # fmt: skip
def index(context: CaseContext, where: int) -> None:
    """Call backward for tensors on one device index while the other index is current: while a node or hook runs, the
    device index of its tensors must be current, and the caller's current index must be unchanged afterwards."""
    seen: dict[str, int] = {}

    def note(what: str, *_: Any) -> None:
        seen[what] = _index()

    x = leaf(context, where)
    y = noting(x * 2, partial(note, "a node"))
    y.register_hook(partial(note, "a tensor hook"))
    z = y * 2
    assert z.grad_fn is not None
    z.grad_fn.register_prehook(partial(note, "a hook before a node"))
    z.grad_fn.register_hook(partial(note, "a post-hook of a node"))
    x.register_post_accumulate_grad_hook(partial(note, "a hook after accumulation"))
    several = register_multi_grad_hook((y, z), partial(note, "a hook on several tensors"))
    with context.on(1 - where):
        _backward(z)
        after = _index()
    several.remove()
    for what, found in sorted(seen.items()):
        context.same(found, where, "the current device index is not that of the tensors", at=what)
    context.same(len(seen), 6, "a hook did not run", Kind.COUNT)
    context.same(after, 1 - where, "backward changed the caller's current device index")
    whole(context, x.grad, 12.0)


@cases("autograd.threads", requires={"multi_device"}, indices=2)
def over_both_indices(context: CaseContext) -> None:
    """Run backward through a graph that spans two device indices: while a node runs, its own device index must be
    the current index, and the gradients on both indices must be right."""
    seen: list[int] = []
    x, w = leaf(context, 0), leaf(context, 1, 2.0)
    y = noting(x, lambda: seen.append(_index())).to(context.at(1))
    y = noting(y * w, lambda: seen.append(_index())).to(context.at(0))
    y = noting(y, lambda: seen.append(_index())).to(context.at(1))
    _backward(noting(y, lambda: seen.append(_index())))
    context.same(seen, [1, 0, 1, 0], "a node ran with the wrong current device index")
    for each, want, at in ((x, 162.0, "index 0"), (w, 81.0, "index 1")):
        whole(context, each.grad, want, at=at)
        assert each.grad is not None
        context.same(
            each.grad.device,
            each.device,
            "the gradient is not on the device of its leaf",
            Kind.DEVICE,
            at,
        )


@cases("autograd.threads", requires={"multi_device"}, indices=2)
def roots_on_two_indices(context: CaseContext) -> None:
    """Call torch.autograd.backward on two results, one on each of two device indices, that were computed from one
    leaf: the leaf, on either index, must accumulate the gradients of both results."""
    for where in (0, 1):
        x = leaf(context, where)
        results = [(x.to(context.at(place)) * factor) for place, factor in ((0, 2), (1, 3))]
        ones = [torch.ones_like(each) for each in results]
        torch.autograd.backward(results, ones)
        whole(
            context,
            x.grad,
            5.0,
            "the gradient is not the sum of the gradients of both results",
            f"a leaf on index {where}",
        )
        for each in (x * 7, x.to(context.at(1 - where)) * 11):
            _backward(each)
        whole(
            context,
            x.grad,
            23.0,
            "the gradients of two further backward passes were not added correctly",
            f"a leaf on index {where}",
        )


@cases("autograd.threads", requires={"streams"})
def of_the_device(context: CaseContext) -> None:
    """Run backward twice, from two threads: all nodes of one device index must run on the same thread, which must not
    be the thread of a caller."""
    seen: list[int] = []

    def run() -> None:
        y = noting(noting(leaf(context), note) * 2, note)
        _backward(y)

    def note() -> None:
        seen.append(threading.get_ident())

    run()
    context.together(run)
    context.same(len(seen), 4, "the number of node calls is wrong", Kind.COUNT)
    context.same(
        len(set(seen)), 1, "the nodes of one device index ran on several threads", Kind.COUNT
    )
    context.check(threading.get_ident() not in seen, "a node ran on the caller's thread")


@cases("autograd.threads", requires={"streams"}, over={"hooks_on_the_stream": (0,)})
@cases("autograd.threads", requires={"streams", "multi_device"}, indices=2, over={"hooks_on_the_stream_of_index_1": (1,)})  # fmt: skip
def hooks_on_the_stream(context: CaseContext, where: int) -> None:
    """Run the forward pass on a stream, and call backward while another stream is current: while the hooks of the node
    and of its result run, the stream of the forward pass must be the current stream."""
    seen: dict[str, Any] = {}

    def note(what: str, *_: Any) -> None:
        seen[what] = context.current_stream(where)

    x, stream = leaf(context, where), context.stream(where)
    context.settle()
    with stream:
        y = x * 2
        z = y * 3
    assert y.grad_fn is not None
    y.register_hook(partial(note, "a tensor hook"))
    y.grad_fn.register_prehook(partial(note, "a hook before a node"))
    y.grad_fn.register_hook(partial(note, "a post-hook of a node"))
    context.settle()
    _backward(z)
    for what, found in sorted(seen.items()):
        context.same(found, stream, "the current stream is not that of the forward pass", at=what)
    context.same(len(seen), 3, "a hook did not run", Kind.COUNT)


@cases("autograd.threads", requires={"streams", "multi_device"}, indices=2)
def caller_waits_on_each_index(context: CaseContext) -> None:
    """Call backward with device index 0 current, for a graph on index 1: a copy that the caller then queues on its
    stream of index 1 must read the complete gradients."""
    forward, caller = context.stream(1), context.stream(1)
    context.must(forward != caller, "two new streams are the same stream", by="streams.identity")
    x, target = leaf(context, 1), torch.zeros(64, device=context.at(1))
    _backward(x * 5)  # the first backward does one-time initialisation, before anything is timed
    x.grad = None
    with forward:
        y = x * 5
    context.settle()

    def backward() -> None:
        torch.accelerator.set_stream(caller)
        torch.accelerator.set_device_index(0)
        y.backward(given)
        assert x.grad is not None
        with caller:
            target.copy_(x.grad)

    given = torch.ones(64, device=context.at(1))
    context.settle()
    with context.hold(forward, needed=False) as hold, WaitingCall(backward) as call:
        if call.ended(SOON):
            hold.waits(caller, "the caller's stream did not wait for the streams of the nodes")
        hold.release()
    caller.synchronize()
    whole(context, target, 5.0, "the copy did not read the complete gradient")


@cases("autograd.threads", requires={"streams"})
def caller_keeps_its_stream(context: CaseContext) -> None:
    """Call backward on a stream other than the one of the forward pass: the caller's current stream must be unchanged
    afterwards."""
    forward, caller = context.streams()
    x = leaf(context)
    context.settle()
    with forward:
        y = x * 2
    context.settle()
    with caller:
        _backward(y)
        found = context.current_stream()
    context.same(found, caller, "backward changed the caller's current stream")
    context.settle()
    whole(context, x.grad, 2.0)


# -- concurrent graphs


def _model(x: torch.Tensor) -> torch.Tensor:
    """Compute a function whose ops save their inputs, their results or statistics for backward."""
    y = (x * 2).cos() + x.exp().tanh()
    return torch.nn.functional.layer_norm(y.sin(), (y.shape[-1],)).softmax(-1).log()


def _given(seed: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 60).roll(7 * seed).reshape(6, 10) * (1 + seed / 10)


def _wanted(seed: int) -> torch.Tensor:
    x = _given(seed).requires_grad_()
    _model(x).backward(_given(seed + 1))
    assert x.grad is not None
    return x.grad


def _assert_gradient(
    context: CaseContext, found: torch.Tensor | None, want: torch.Tensor, at: str = ""
) -> None:
    """Check that the gradient exists and equals ``want``. The tolerance is far smaller than the errors that a race
    would cause."""
    context.check(found is not None, "the leaf has no gradient", at=at)
    assert found is not None
    context.assert_close(found, want, WRONG_GRADIENT, at, rtol=0.02, atol=0.02)


@cases("autograd.threads")
def graphs_in_turn(context: CaseContext) -> None:
    """Build three graphs and run their backward passes in two different orders: each gradient must be right, so no
    graph may use tensors that another graph saved."""
    for order in ((0, 1, 2), (2, 0, 1)):
        leaves = [context.to_device(_given(seed)).requires_grad_() for seed in range(3)]
        results = [_model(each) for each in leaves]
        for seed in order:
            results[seed].backward(context.to_device(_given(seed + 1)))
        for seed, each in enumerate(leaves):
            _assert_gradient(context, each.grad, _wanted(seed), f"graph {seed} of 3")


@cases("autograd.threads", over={"graphs_at_once": (False,)})
@cases("autograd.threads", requires={"streams"}, over={"graphs_at_once_on_streams": (True,)})
def graphs_at_once(context: CaseContext, streams: bool) -> None:
    """Build graphs in four threads and run their backward passes at the same time, four times: each thread must get its
    own gradients."""
    count, rounds = 4, 4
    wanted = [_wanted(seed) for seed in range(count)]
    found: dict[tuple[int, int], torch.Tensor | None] = {}
    all_are_built = threading.Barrier(count)

    def work(seed: int) -> None:
        try:
            run(seed)
        except threading.BrokenBarrierError:
            return  # another thread raised; its exception is reported
        except BaseException:
            all_are_built.abort()
            raise

    def run(seed: int) -> None:
        stream = context.stream() if streams else None
        for turn in range(rounds):
            given, cotangent = (context.to_device(_given(each)) for each in (seed, seed + 1))
            context.settle()
            with nullcontext() if stream is None else stream:
                x = given.requires_grad_()
                result = _model(x)
                all_are_built.wait()
                result.backward(cotangent)
            if stream is not None:
                stream.synchronize()
            found[seed, turn] = x.grad

    context.together(*(partial(work, seed) for seed in range(count)))
    for (seed, turn), grad in sorted(found.items()):
        _assert_gradient(context, grad, wanted[seed], f"thread {seed}, round {turn}")


@cases("autograd.threads")
def one_leaf_of_all_threads(context: CaseContext) -> None:
    """Run backward from four threads into the same leaf at the same time: the leaf must accumulate every gradient
    exactly once."""
    x, count, rounds = leaf(context), 4, 10
    _backward(x * 1)

    def work(factor: int) -> None:
        for _ in range(rounds):
            _backward(x * factor)

    context.together(*(partial(work, factor) for factor in range(1, count + 1)))
    context.settle()
    whole(context, x.grad, 1.0 + rounds * 10, "the accumulated gradient is wrong")


@cases("autograd.threads")
def one_graph_of_two_threads(context: CaseContext) -> None:
    """Run backward from three threads through one retained graph at the same time: each thread must get the right
    gradient."""
    x = context.to_device(_given(0)).requires_grad_()
    result, cotangent = _model(x), context.to_device(_given(1))

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(result, x, cotangent, retain_graph=True)[0]

    for place, found in enumerate(context.together(*[gradient] * 3)):
        _assert_gradient(context, found, _wanted(0), f"thread {place}")


@cases("autograd.threads")
def from_another_thread(context: CaseContext) -> None:
    """Build a graph in one thread and run backward in another: the gradient must be right."""
    x = context.to_device(_given(3)).requires_grad_()
    [result] = context.together(lambda: _model(x))
    cotangent = context.to_device(_given(4))
    context.settle()
    context.together(lambda: result.backward(cotangent))
    context.settle()
    _assert_gradient(context, x.grad, _wanted(3))


# -- the state that a node runs with


@cases("autograd.threads", requires={"generator"}, over={"random_numbers": (0,)})
@cases("autograd.threads", requires={"generator", "multi_device"}, indices=2, over={"random_numbers_of_index_1": (1,)})  # fmt: skip
def random_numbers(context: CaseContext, where: int) -> None:
    """Draw random numbers in a backward node: the numbers must come from the device's default generator and advance its
    state."""
    device = context.named(where)
    torch.manual_seed(23)
    want = [torch.rand(40, device=device).cpu() for _ in range(3)]
    drawn: list[torch.Tensor] = []
    y = noting(leaf(context, where), lambda: drawn.append(torch.rand(40, device=device)))
    torch.manual_seed(23)
    found = [torch.rand(40, device=device).cpu()]
    _backward(y)
    found += [drawn[0].cpu(), torch.rand(40, device=device).cpu()]
    for place, (got, wanted) in enumerate(zip(found, want)):
        text = "draws before, in and after backward are not consecutive draws of one generator"
        context.equal(got, wanted, text, f"draw {place}")


@cases("autograd.threads")
def gradients_enabled(context: CaseContext) -> None:
    """Call torch.is_grad_enabled() in a backward node: the result must be true if and only if create_graph=True,
    whatever the caller's grad mode is."""
    seen: list[bool] = []
    for create in (False, True):
        x = leaf(context)
        total = noting(x, lambda: seen.append(torch.is_grad_enabled())).sum()
        with torch.set_grad_enabled(not create):
            torch.autograd.grad(total, x, create_graph=create)
    context.same(
        seen,
        [False, True],
        "torch.is_grad_enabled() in a node did not return the value of create_graph, which was False, then True",
    )


class _Counting(TorchDispatchMode):
    """A dispatch mode that records the names of the ops that run while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@cases("autograd.threads")
def dispatch_modes(context: CaseContext) -> None:
    """Call backward under a TorchDispatchMode: the mode must intercept the ops that the nodes run."""
    x = leaf(context)
    y = noting(x, x.detach().cosh)  # the node calls cosh
    cotangent = torch.ones_like(y)
    with _Counting() as mode:
        y.backward(cotangent)
    ran = any(name.startswith("aten.cosh") for name in mode.seen)
    context.check(
        ran,
        "the dispatch mode did not intercept an op of backward",
        expected="aten.cosh",
        found=mode.seen,
    )


@cases("autograd.threads")
def hooks_in_order(context: CaseContext) -> None:
    """Register a tensor hook, two hooks that run before and after the tensor's node, and a post-accumulate-grad hook:
    each hook must run once, in the documented order, with tensors on the device, and the gradients that the hooks
    return must be used. Removed hooks must not run."""
    order: list[str] = []

    def note(name: str, *given: Any) -> None:
        order.append(name)
        for each in given:
            for tensor in each if isinstance(each, tuple) else (each,):
                context.same(
                    tensor.device,
                    context.named(0),
                    "a hook received a tensor on another device",
                    Kind.DEVICE,
                    name,
                )

    def doubled(grad: torch.Tensor) -> torch.Tensor:
        note("a tensor hook", grad)
        return grad * 2

    def tripled(grads: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        note("before the node", *grads)
        return tuple(each * 3 for each in grads)

    def added(inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> Any:
        note("after the node", *outputs)
        return tuple(None if each is None else each + 1 for each in inputs)

    x = leaf(context)
    y = x * 5
    assert y.grad_fn is not None
    handles = [y.register_hook(doubled), y.grad_fn.register_prehook(tripled), y.grad_fn.register_hook(added)]  # fmt: skip

    def accumulated(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        note("after accumulation", parameter.grad)
        sums.append(parameter.grad.clone())

    sums: list[torch.Tensor] = []
    x.register_post_accumulate_grad_hook(accumulated)
    z = y * 1
    _backward(z, retain_graph=True)
    wanted = ["a tensor hook", "before the node", "after the node", "after accumulation"]
    context.same(
        order, wanted, "the calls of the hooks differ from the documented order", Kind.ORDER
    )
    whole(context, x.grad, 31.0, "the gradient does not reflect the values that hooks returned")
    whole(context, sums[0], 31.0, "the post-accumulate-grad hook received a wrong gradient")
    for each in handles:
        each.remove()
    x.grad = None
    order.clear()
    _backward(z)
    context.same(order, wanted[3:], "hooks ran although they had been removed", Kind.ORDER)
    whole(context, x.grad, 5.0, "the gradient after removing the hooks is wrong")


@cases("autograd.threads")
def hook_of_a_leaf(context: CaseContext) -> None:
    """Register a hook on a leaf and run backward three times without a reset of its gradient: the hook must run once in
    each backward, and receive the gradient of this backward alone. What the hook returns must be added to the gradient."""
    x = leaf(context)
    received: list[torch.Tensor] = []

    def doubled(grad: torch.Tensor) -> torch.Tensor:
        received.append(grad.clone())
        return grad * 2

    x.register_hook(doubled)
    for times in (1, 2, 3):
        _backward(x * 5 + x * 2)
        context.same(len(received), times, "the number of calls of the hook is wrong", Kind.COUNT)
        whole(context, received[-1], 7.0, "the gradient that the hook received is wrong")
        whole(context, x.grad, 14.0 * times, "the sum of the gradients is wrong")


@cases("autograd.threads", over={"hook_of_several": ("all",), "hook_of_any": ("any",)})
def multi_grad(context: CaseContext, mode: str) -> None:
    """Register a hook by register_multi_grad_hook: it must run once in each backward. With mode "all" it must receive
    all gradients, with mode "any" the first gradient that was computed."""
    x = leaf(context)
    several = [x * factor for factor in (2, 3, 4)]
    calls: list[Any] = []
    handle = register_multi_grad_hook(several, calls.append, mode=mode)  # type: ignore[arg-type]
    total = several[0] + several[1]
    for times in (1, 2):
        _backward(total, retain_graph=True)
        context.same(len(calls), times, "the number of calls of the hook is wrong", Kind.COUNT)
    last = calls[-1]
    if mode == "all":
        there = [each is not None for each in last]
        context.same(
            there,
            [True, True, False],
            "the hook received None for the wrong tensors",
            Kind.COUNT,
        )
        whole(context, last[0], 1.0, "a gradient that the hook received is wrong")
    else:
        whole(context, last, 1.0, "the gradient that the hook received is wrong")
    handle.remove()
    _backward(total)
    context.same(len(calls), 2, "a removed hook ran", Kind.COUNT)


@cases("autograd.threads", over={"step_in_a_hook": (0,)})
@cases("autograd.threads", requires={"multi_device"}, indices=2, over={"step_in_a_hook_of_index_1": (1,)})  # fmt: skip
def step_in_a_hook(context: CaseContext, where: int) -> None:
    """Register a post-accumulate-grad hook that runs an optimiser's step and sets the grad of the parameter to None:
    the parameter must be updated and the gradient released."""
    x = leaf(context, where)
    optimiser = torch.optim.SGD([x], lr=0.5)

    def step(parameter: torch.Tensor) -> None:
        optimiser.step()
        parameter.grad = None

    x.register_post_accumulate_grad_hook(step)
    for value in (0.0, -1.0):
        _backward(x * 2)
        whole(context, x.detach(), value, "the parameter after the step is wrong")
    context.check(x.grad is None, "the gradient was not released")


# -- errors


class _Broken(Exception):
    """The exception that the tests raise in a node or a hook."""


def _breaks() -> None:
    raise _Broken("an exception that this case raises itself")


@cases("autograd.threads", over={"error_in_a_node": ("node", 0), "error_in_a_hook": ("hook", 0)})
@cases("autograd.threads", requires={"multi_device"}, indices=2, over={"error_in_a_node_of_index_1": ("node", 1), "error_in_a_hook_of_index_1": ("hook", 1)})  # fmt: skip
def error(context: CaseContext, place: str, where: int) -> None:
    """Raise an exception in a backward node or hook: backward must raise the same exception, and the next backward must
    give the right gradient."""
    x = leaf(context, where)
    y = noting(x, _breaks if place == "node" else int)
    if place == "hook":
        y.register_hook(lambda _: _breaks())
    for _ in range(2):
        text = "backward does not raise the exception of the node or hook"
        context.raises(
            _Broken,
            partial(_backward, y * 2, retain_graph=True),
            text=text,
            match="an exception that this case raises itself",
        )
    x.grad = None
    _backward(noting(x, int))
    whole(context, x.grad, 3.0, "the gradient of the next backward is wrong")


@cases("autograd.threads")
def error_of_an_op(context: CaseContext) -> None:
    """Call an op with invalid arguments in a backward node: backward must raise the op's RuntimeError."""
    wide, narrow = torch.ones(3, 4, device=context.device), torch.ones(5, 6, device=context.device)
    y = noting(leaf(context), lambda: wide @ narrow)
    text = "backward does not raise the op's error"
    context.raises(RuntimeError, partial(_backward, y), text=text)


@cases("autograd.threads", requires={"streams"})
def error_of_queued_work(context: CaseContext) -> None:
    """Queue work that fails on the device in a backward node: backward or the next synchronisation must raise
    RuntimeError, and the next backward must give the right gradient."""
    fail = context.descriptor.fail
    if fail is None:
        raise NotDeclared(
            "the check needs work that fails on the device, but the descriptor has no `fail`"
        )

    def failing() -> None:
        fail()
        context.settle()

    def run() -> None:
        _backward(noting(leaf(context), failing))
        context.settle()

    context.raises(RuntimeError, run, text="the error of the queued work was not raised")
    x = leaf(context)
    _backward(x * 2)
    whole(context, x.grad, 2.0, "the gradient of the next backward is wrong")


# -- shapes of graphs


@cases("autograd.threads")
def deep(context: CaseContext) -> None:
    """Run backward through a chain of 10,000 nodes and free the graph: neither of the two may overflow the stack, and
    the gradient must be right."""
    x = leaf(context, count=2)
    y = x
    for _ in range(5000):
        y = (y * 1).add(1)
    y.backward(torch.ones_like(y))
    del y
    whole(context, x.grad, 1.0)


@cases("autograd.threads", over={"reentrant": (0, 3), "reentrant_deep": (0, 80)})
@cases("autograd.threads", requires={"multi_device"}, indices=2, over={"reentrant_on_index_1": (1, 3)})  # fmt: skip
def reentrant(context: CaseContext, where: int, depth: int) -> None:
    """Call backward inside a backward node, up to 80 levels deep: in every pass, the current device index must be
    that of the pass's tensors, and the accumulated gradient must be right."""
    inner, seen = leaf(context, where), list[int]()

    def descend(left: int) -> None:
        if context.has("multi_device"):
            seen.append(_index())
        if left > 0:
            with torch.enable_grad():
                _backward(noting(inner * 1, partial(descend, left - 1)))

    outer = leaf(context, where)
    _backward(noting(outer, partial(descend, depth)))
    whole(context, outer.grad, 3.0, "the gradient of the outer pass is wrong")
    whole(context, inner.grad, 3.0 * depth, "the sum of the inner passes' gradients is wrong")
    context.same(set(seen) - {where}, set(), "a pass ran with the wrong current device index")


@cases("autograd.threads", requires={"multi_device"}, indices=2)
def reentrant_on_the_other_index(context: CaseContext) -> None:
    """Call backward for a graph on device index 1 inside the backward of a node on index 0: in both passes, the
    current device index must be that of the pass's tensors, and the gradients must be right."""
    inner, seen = leaf(context, 1), list[int]()

    def other() -> None:
        with torch.enable_grad():
            _backward(noting(inner, lambda: seen.append(_index())))
        seen.append(_index())

    outer = leaf(context, 0)
    _backward(noting(outer, other))
    context.same(seen, [1, 0], "a pass ran with the wrong current device index")
    whole(context, outer.grad, 3.0, "the gradient of the outer pass is wrong")
    whole(context, inner.grad, 3.0, "the gradient of the inner pass is wrong")
