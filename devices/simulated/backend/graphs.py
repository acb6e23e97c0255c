"""Graphs in ``torch.simulated``, as in ``torch.cuda``: captures, pools, and graphed callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from devices.simulated.backend import native

Graph = torch.accelerator.Graph

Mode = Literal["default", "global", "thread_local", "relaxed"]


def is_current_stream_capturing() -> bool:
    """Whether work on the current stream of the current device is recorded, and not run."""
    stream: Any = torch.accelerator.current_stream()
    return bool(stream.is_capturing())


def graph_pool_handle() -> tuple[int, int]:
    """The id of a new memory pool, for graphs to share: ``Graph(pool=...)``."""
    first, second = native.library.graph_pool_handle()
    return int(first), int(second)


class graph:
    """``with torch.simulated.graph(g):`` captures the block into ``g``, on a stream of its own where none is given.

    ``pool`` and ``capture_error_mode`` are those of ``torch.accelerator.Graph`` and override what ``g`` was made with.
    """

    def __init__(
        self,
        made: torch.accelerator.Graph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: Mode | None = None,
    ) -> None:
        self.graph = made
        if pool is not None:
            made.graph_pool = pool
        if capture_error_mode is not None:
            made.capture_error_mode = capture_error_mode
        self.stream = torch.Stream("simulated") if stream is None else stream

    def __enter__(self) -> None:
        self.stream.__enter__()
        try:
            self.graph.__enter__()
        except BaseException:
            self.stream.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.graph.__exit__(kind, error, trace)
        finally:
            self.stream.__exit__(kind, error, trace)


Tensors = tuple[torch.Tensor, ...]
MaybeTensors = tuple["torch.Tensor | None", ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """A callable with the tensors that its graphs read: its sample arguments and a module's parameters."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    given: Tensors  # the arguments, flat
    parameters: Tensors

    @property
    def inputs(self) -> Tensors:
        return self.given + self.parameters

    @property
    def differentiable(self) -> Tensors:
        return tuple(each for each in self.inputs if each.requires_grad)


@dataclass(frozen=True, slots=True)
class _Forward:
    graph: Graph
    outputs: Tensors
    spec: pytree.TreeSpec


@dataclass(frozen=True, slots=True)
class _Backward:
    graph: Graph
    grad_outputs: MaybeTensors  # by output; None where it requires no gradient
    grad_inputs: (
        MaybeTensors  # by input; None where it requires none, or has no part in the outputs
    )


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Callables whose forward and backward passes replay graphs; modules are changed in place and returned.

    A tuple of callables takes a tuple of argument tuples, and must be called in that order. Raises RuntimeError
    under autocast with a cache, ValueError for modules with hooks or trainable buffers, TypeError for arguments
    that are not tensors.
    """
    if torch.is_autocast_enabled("simulated") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support autocast's cache: pass cache_enabled=False to autocast"
        )
    several = isinstance(callables, tuple)
    functions = callables if several else (callables,)
    arguments = sample_args if several else (sample_args,)
    sources = [_source(function, given) for function, given in zip(functions, arguments)]
    shared = graph_pool_handle() if pool is None else pool
    _warm_up(sources, num_warmup_iters, allow_unused_input)
    # In the order in which they will run, as graphs that share a pool must be: backward passes last come first.
    forwards = [_capture_forward(source, shared) for source in sources]
    backwards = [
        _capture_backward(source, forward, shared, allow_unused_input)
        for source, forward in reversed(list(zip(sources, forwards)))
    ]
    made = [
        _replaced(source, _graphed(source, forward, backward))
        for source, forward, backward in zip(sources, forwards, reversed(backwards))
    ]
    return tuple(made) if several else made[0]


def _source(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Source:
    parameters: Tensors = ()
    if isinstance(function, torch.nn.Module):
        if function._forward_hooks or function._forward_pre_hooks or function._backward_hooks:
            raise ValueError("make_graphed_callables takes modules without hooks: add them later")
        if any(each.requires_grad for each in function.buffers()):
            raise ValueError("make_graphed_callables takes modules whose buffers are not trainable")
        parameters = tuple(function.parameters())
    given = tuple(pytree.arg_tree_leaves(*arguments))
    for each in given:
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"make_graphed_callables takes tensors as arguments, got {each!r}")
    return _Source(function, tuple(arguments), given, parameters)


def _gradients(
    source: _Source, outputs: Sequence[torch.Tensor], grads: MaybeTensors, unused: bool
) -> MaybeTensors:
    """The gradients of all inputs; None for those that require none."""
    wanted = [each for each in outputs if each.requires_grad]
    if not wanted or not source.differentiable:
        return (None,) * len(source.inputs)
    found = iter(
        torch.autograd.grad(
            wanted,
            source.differentiable,
            [each for each in grads if each is not None],
            only_inputs=True,
            allow_unused=unused,
        )
    )
    return tuple(next(found) if each.requires_grad else None for each in source.inputs)


def _like(outputs: Sequence[torch.Tensor]) -> MaybeTensors:
    return tuple(torch.zeros_like(each) if each.requires_grad else None for each in outputs)


def _warm_up(sources: Sequence[_Source], times: int, unused: bool) -> None:
    torch.accelerator.synchronize()
    with torch.Stream("simulated"):
        for source in sources:
            for _ in range(times):
                outputs = pytree.tree_leaves(source.function(*source.arguments))
                _gradients(source, outputs, _like(outputs), unused)
    torch.accelerator.synchronize()


def _capture_forward(source: _Source, pool: tuple[int, int]) -> _Forward:
    made = Graph(pool=pool)
    with graph(made):
        result = source.function(*source.arguments)
    outputs, spec = pytree.tree_flatten(result)
    return _Forward(made, tuple(outputs), spec)


def _capture_backward(
    source: _Source, forward: _Forward, pool: tuple[int, int], unused: bool
) -> _Backward:
    made, grad_outputs = Graph(pool=pool), _like(forward.outputs)
    if not source.differentiable or not any(each is not None for each in grad_outputs):
        return _Backward(made, grad_outputs, (None,) * len(source.inputs))
    with graph(made):
        grad_inputs = _gradients(source, forward.outputs, grad_outputs, unused)
    return _Backward(made, grad_outputs, grad_inputs)


def _graphed(source: _Source, forward: _Forward, backward: _Backward) -> Callable[..., Any]:
    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Tensors:
            for own, given in zip(source.given, inputs):
                if own.data_ptr() != given.data_ptr():
                    own.copy_(given)
            forward.graph.replay()
            return tuple(each.detach() for each in forward.outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: torch.Tensor) -> MaybeTensors:
            for own, given in zip(backward.grad_outputs, grads):
                same = own is None or own.data_ptr() == given.data_ptr()
                if own is not None and not same and not native.on("graphs.callable_backward_stale"):
                    own.copy_(given)
            if any(each is not None for each in backward.grad_inputs):
                backward.graph.replay()
            return tuple(None if each is None else each.detach() for each in backward.grad_inputs)

    def replayed(*arguments: Any) -> Any:
        apply: Callable[..., Any] = Graphed.apply
        outputs = apply(*pytree.arg_tree_leaves(*arguments), *source.parameters)
        return pytree.tree_unflatten(outputs, forward.spec)

    return replayed


def _replaced(source: _Source, graphed: Callable[..., Any]) -> Any:
    """The graphed callable; for a module, the module itself, whose forward replays in the mode that was captured."""
    module = source.function
    if not isinstance(module, torch.nn.Module):
        return graphed
    captured_in_training, original = module.training, module.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        if module.training == captured_in_training:
            return graphed(*arguments, **named)
        return original(*arguments, **named)

    module.forward = forward
    return module
