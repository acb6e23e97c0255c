"""Compilers that are wrong in one way each: backends of torch.compile that run the traced ops and then spoil something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Graph = Callable[..., Any]
#: Takes the graph as a function and its arguments, and returns the outputs.
Run = Callable[[Graph, list[Any]], Sequence[Any]]


def backend(forward: Run, backward: Run | None = None) -> Any:
    """Returns a backend that runs graphs by ``forward``, and graphs of backward passes by ``backward``. The compiler is
    imported here: every worker of the tests collects this module, and few compile."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def compiler(run: Run) -> Any:
        def compiled(graph: Any, inputs: Any) -> Any:
            return make_boxed_func(lambda *given: list(run(graph.forward, list(given))))

        return compiled

    plain = compiler(right)
    return aot_autograd(
        fw_compiler=compiler(forward),
        inference_compiler=compiler(forward),
        bw_compiler=compiler(backward) if backward is not None else plain,
    )


def right(graph: Graph, given: list[Any]) -> Sequence[Any]:
    """Runs a graph as it is."""
    made: Sequence[Any] = graph(*given)
    return made


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    def run(graph: Graph, given: list[Any]) -> Sequence[Any]:
        return [change(each) if isinstance(each, torch.Tensor) else each for each in graph(*given)]

    return run


def _floats(change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    return _each(lambda each: change(each) if each.is_floating_point() else each)


def _last_element_wrong(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    if made.numel():
        made.view(-1)[-1:].add_(1)
    return made


def _first_wrong(graph: Graph, given: list[Any]) -> Sequence[Any]:
    made = list(graph(*given))
    place = next(n for n, each in enumerate(made) if isinstance(each, torch.Tensor))
    made[place] = made[place] + 1
    return made


def _input_overwritten(graph: Graph, given: list[Any]) -> Sequence[Any]:
    made = graph(*given)
    for each in given:
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim():
            each.detach()[..., :1].add_(1)
    return list(made)


def _reads_dense(graph: Graph, given: list[Any]) -> Sequence[Any]:
    """Reads a transposed matrix as if it were contiguous."""

    def dense(each: Any) -> Any:
        if isinstance(each, torch.Tensor) and each.dim() == 2 and each.t().is_contiguous():
            return each.as_strided(each.shape, (each.shape[1], 1))
        return each

    return list(graph(*map(dense, given)))


def _reads_from_the_start(graph: Graph, given: list[Any]) -> Sequence[Any]:
    """Reads a view from the start of its storage."""

    def start(each: Any) -> Any:
        if isinstance(each, torch.Tensor) and each.storage_offset():
            return each.as_strided(each.shape, each.stride(), 0)
        return each

    return list(graph(*map(start, given)))


def _swapped(graph: Graph, given: list[Any]) -> Sequence[Any]:
    """Swaps two outputs of the same geometry."""
    made = list(graph(*given))
    for one in range(len(made)):
        for other in range(one):
            pair = made[one], made[other]
            alike = all(isinstance(each, torch.Tensor) for each in pair)
            if alike and pair[0].shape == pair[1].shape and pair[0].dtype == pair[1].dtype:
                made[one], made[other] = pair[1], pair[0]
                return made
    return made


def _shares(graph: Graph, given: list[Any]) -> Sequence[Any]:
    """Gives two outputs of the same geometry the same memory, which then holds the sum of both."""
    made = list(graph(*given))
    for one in range(len(made)):
        for other in range(one):
            pair = made[one], made[other]
            alike = all(isinstance(each, torch.Tensor) for each in pair)
            if alike and pair[0].shape == pair[1].shape and pair[0].is_floating_point():
                made[one] = made[other].view(made[other].shape)
                return made
    return made


class Remembered:
    """Returns the outputs of the first call at every later call with inputs of the same shapes."""

    def __init__(self) -> None:
        self.made: dict[Any, Sequence[Any]] = {}

    def __call__(self, graph: Graph, given: list[Any]) -> Sequence[Any]:
        shapes = tuple(tuple(each.shape) for each in given if isinstance(each, torch.Tensor))
        if shapes not in self.made:
            self.made[shapes] = [each.detach().clone() for each in graph(*given)]
        return self.made[shapes]


#: By name: how forward and backward graphs are run.
WRONG: dict[str, tuple[Run, Run | None]] = {
    "the last element of each output is wrong": (_each(_last_element_wrong), None),
    "the first output is wrong": (_first_wrong, None),
    "outputs are a little too large": (_floats(lambda each: each * (1 + 1e-3)), None),
    "outputs are float64": (_floats(torch.Tensor.double), None),
    "outputs are contiguous": (_each(torch.Tensor.contiguous), None),
    "outputs are transposed in memory": (
        _each(lambda each: each.mT.contiguous().mT if each.dim() >= 2 else each),
        None,
    ),
    "outputs have an offset": (
        _each(lambda each: torch.cat([each.new_zeros(1), each.reshape(-1)])[1:].view(each.shape)),
        None,
    ),
    "outputs are empty": (_each(torch.zeros_like), None),
    "outputs are swapped": (_swapped, None),
    "two outputs share memory": (_shares, None),
    "negative zeros and NaN are lost": (_floats(lambda each: each.nan_to_num(0.0) + 0.0), None),
    "an input is overwritten": (_input_overwritten, None),
    "transposed inputs are read as contiguous": (_reads_dense, None),
    "offsets are ignored": (_reads_from_the_start, None),
    "gradients are doubled": (right, _floats(lambda each: each * 2)),
    "gradients have another sign": (right, _floats(torch.neg)),
    "gradients are zero": (right, _floats(torch.zeros_like)),
    "one gradient is wrong": (right, _first_wrong),
    "the last element of each gradient is wrong": (right, _each(_last_element_wrong)),
    "gradients are swapped": (right, _swapped),
    "saved tensors are overwritten": (_input_overwritten, _input_overwritten),
    "integers are rounded": (
        _each(lambda each: each // 2 * 2 if each.dtype == torch.int64 else each),
        None,
    ),
    "booleans are inverted": (
        _each(lambda each: ~each if each.dtype == torch.bool else each),
        None,
    ),
}
