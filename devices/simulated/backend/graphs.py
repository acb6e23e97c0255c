"""Graphs in ``torch.simulated``, as in ``torch.cuda``: captures, pools, and graphed callables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from devices.simulated.backend import native

Graph = torch.accelerator.Graph

Mode = Literal["default", "global", "thread_local", "relaxed"]


def is_current_stream_capturing() -> bool:
    """Returns True if the current stream of the current device is capturing."""
    stream: Any = torch.accelerator.current_stream()
    return bool(stream.is_capturing())


def graph_pool_handle() -> tuple[int, int]:
    """Returns the id of a new memory pool that several graphs can share (``Graph(pool=...)``)."""
    made: tuple[int, int] = native.library.graph_pool_handle()
    return made


@contextmanager
def graph(
    made: torch.accelerator.Graph,
    pool: tuple[int, int] | None = None,
    stream: torch.Stream | None = None,
    capture_error_mode: Mode | None = None,
) -> Iterator[None]:
    """Captures the ``with`` block into the graph ``made``, on the given stream or on a new one.

    ``pool`` and ``capture_error_mode`` have the meaning that they have for ``torch.accelerator.Graph``, and override
    the arguments with which the graph was created.
    """
    if pool is not None:
        made.graph_pool = pool
    if capture_error_mode is not None:
        made.capture_error_mode = capture_error_mode
    with torch.Stream("simulated") if stream is None else stream, made:
        yield


Tensors = tuple[torch.Tensor, ...]
MaybeTensors = tuple["torch.Tensor | None", ...]


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Returns callables whose forward and backward passes replay graphs; modules are changed in place.

    A tuple of callables takes a tuple of argument tuples, and the callables must be called in the order of the tuple.
    Raises RuntimeError if autocast is on and uses its cache, ValueError for modules with hooks or trainable buffers,
    and TypeError for arguments that are not tensors.
    """
    if torch.is_autocast_enabled("simulated") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support autocast's cache: pass cache_enabled=False to autocast"
        )
    several = isinstance(callables, tuple)
    pairs = zip(callables, sample_args) if several else [(callables, sample_args)]
    passes = [_Passes(function, given, allow_unused_input) for function, given in pairs]
    torch.accelerator.synchronize()
    with torch.Stream("simulated"):
        for each in passes:
            each.warm_up(num_warmup_iters)
    torch.accelerator.synchronize()
    # In the order in which they will run, as graphs that share a pool must be: backward passes last come first.
    shared = graph_pool_handle() if pool is None else pool
    for each in passes:
        each.capture_forward(shared)
    for each in reversed(passes):
        each.capture_backward(shared)
    made = [each.replaced() for each in passes]
    return tuple(made) if several else made[0]


class _Passes:
    """A callable with the graphs of its forward and backward pass, and the tensors that the graphs read and write."""

    forward: Graph
    outputs: Tensors
    spec: pytree.TreeSpec  # of the outputs
    backward: Graph
    grad_outputs: MaybeTensors  # by output; None where it requires no gradient
    grad_inputs: MaybeTensors  # by input; None without a gradient, or if no output depends on it

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], unused: bool) -> None:
        self.function, self.arguments, self.unused = function, tuple(args), unused
        self.parameters: Tensors = ()
        if isinstance(function, torch.nn.Module):
            if function._forward_hooks or function._forward_pre_hooks or function._backward_hooks:
                raise ValueError(
                    "a module must have no hooks when it is graphed: register the hooks afterwards"
                )
            if any(each.requires_grad for each in function.buffers()):
                raise ValueError("a module must have no trainable buffers when it is graphed")
            self.parameters = tuple(function.parameters())
        self.given: Tensors = tuple(pytree.arg_tree_leaves(*args))
        for each in self.given:
            if not isinstance(each, torch.Tensor):
                raise TypeError(f"make_graphed_callables takes tensors as arguments, got {each!r}")
        self.inputs = self.given + self.parameters

    def gradients(self, outputs: Sequence[torch.Tensor], grads: MaybeTensors) -> MaybeTensors:
        """Returns the gradients of all inputs; None for an input that does not require a gradient."""
        wanted = [each for each in outputs if each.requires_grad]
        differentiable = [each for each in self.inputs if each.requires_grad]
        if not wanted or not differentiable:
            return (None,) * len(self.inputs)
        given = [each for each in grads if each is not None]
        found = iter(torch.autograd.grad(wanted, differentiable, given, allow_unused=self.unused))
        return tuple(next(found) if each.requires_grad else None for each in self.inputs)

    def warm_up(self, times: int) -> None:
        for _ in range(times):
            outputs = pytree.tree_leaves(self.function(*self.arguments))
            self.gradients(outputs, _like(outputs))

    def capture_forward(self, pool: tuple[int, int]) -> None:
        self.forward = Graph(pool=pool)
        with graph(self.forward):
            result = self.function(*self.arguments)
        outputs, self.spec = pytree.tree_flatten(result)
        self.outputs = tuple(outputs)

    def capture_backward(self, pool: tuple[int, int]) -> None:
        self.backward, self.grad_outputs = Graph(pool=pool), _like(self.outputs)
        self.grad_inputs = (None,) * len(self.inputs)
        if any(each.requires_grad for each in self.inputs) and any(
            each is not None for each in self.grad_outputs
        ):
            with graph(self.backward):
                self.grad_inputs = self.gradients(self.outputs, self.grad_outputs)

    def graphed(self) -> Callable[..., Any]:
        passes = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> Tensors:
                for own, given in zip(passes.given, inputs):
                    if own.data_ptr() != given.data_ptr():
                        own.copy_(given)
                passes.forward.replay()
                return tuple(each.detach() for each in passes.outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *grads: torch.Tensor) -> MaybeTensors:
                stale = native.on("graphs.callable_backward_stale")
                for own, given in zip(passes.grad_outputs, grads):
                    if own is not None and own.data_ptr() != given.data_ptr() and not stale:
                        own.copy_(given)
                if any(each is not None for each in passes.grad_inputs):
                    passes.backward.replay()
                return tuple(None if each is None else each.detach() for each in passes.grad_inputs)

        def replayed(*arguments: Any) -> Any:
            apply: Callable[..., Any] = Graphed.apply
            outputs = apply(*pytree.arg_tree_leaves(*arguments), *self.parameters)
            return pytree.tree_unflatten(outputs, self.spec)

        return replayed

    def replaced(self) -> Any:
        """Returns the graphed callable. A module gets a new ``forward``, which replays only in the mode (train or eval)
        that was captured."""
        graphed, module = self.graphed(), self.function
        if not isinstance(module, torch.nn.Module):
            return graphed
        captured_in_training, original = module.training, module.forward

        def forward(*arguments: Any, **named: Any) -> Any:
            now = graphed if module.training == captured_in_training else original
            return now(*arguments, **named)

        module.forward = forward
        return module


def _like(outputs: Sequence[torch.Tensor]) -> MaybeTensors:
    return tuple(torch.zeros_like(each) if each.requires_grad else None for each in outputs)
