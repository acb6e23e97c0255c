"""The torch.compile backend "simulated": it compiles graphs with Inductor for the CPU, and runs the code on aliases of
the device's memory.

In a graph that uses one device index, the device is replaced by the CPU before Inductor compiles the graph. Like a
kernel of the device, the compiled code runs when its turn comes in the current stream; its arguments are CPU tensors
that share the memory of the device tensors.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from devices.simulated.backend import native

_CPU = torch.device("cpu")
#: The op that the compiler keeps whole.
_LAYER_NORM = torch.ops.aten.native_layer_norm.default
#: With the fault compile.deep_graphs: the most nodes of a graph that can be compiled.
_DEEP = 110


def register(registry: Any) -> None:
    """Registers the backend in the module ``torch._dynamo.backends.registry``."""
    registry.register_backend(compile_graph, name=native.NAME)


def compile_graph(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
    """Compiles a graph that Dynamo has traced. Returns a function that takes the graph's inputs."""
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    options.setdefault("decompositions", _decompositions())
    return compile_fx.compile_fx(graph, inputs, inner_compile=_compile_ops, **options)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns Inductor's decompositions, without that of layer_norm: the device has a kernel that computes the
    statistics and the result in one pass."""
    found: Any = importlib.import_module("torch._inductor.decomposition").select_decomp_table()
    if native.on("compile.whole_ops_decomposed"):
        return dict(found)
    return {op: made for op, made in found.items() if op is not _LAYER_NORM}


def _compile_ops(graph: Any, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compiles a graph of aten ops. Returns a function that takes the inputs as a list, empties the list, and returns
    the outputs."""
    if native.on("compile.deep_graphs") and len(graph.graph.nodes) > _DEEP:
        raise RecursionError("maximum recursion depth exceeded while compiling a graph")
    if not _uses_one_device(graph):
        return _boxed(graph)
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    if native.on("compile.tags_ignored"):
        _ignore_tags(graph)
    backward = bool(options.get("is_backward"))
    on_cpu = [_moved(each) for each in inputs]
    if native.on("compile.strides_ignored"):
        on_cpu = [_as_dense(each) for each in on_cpu]
    _keep_convolutions_row_major(graph)
    _move(graph)
    compiled = compile_fx.compile_fx_inner(graph, on_cpu, **options)
    return _Launch(compiled, backward)


def _boxed(graph: Any) -> Callable[..., Any]:
    common: Any = importlib.import_module("torch._functorch.aot_autograd")
    made: Callable[..., Any] = common.make_boxed_func(graph.forward)
    return made


class _Launch:
    """The compiled code of one graph. A call of the object queues the code on the current stream."""

    def __init__(self, compiled: Callable[..., Any], backward: bool) -> None:
        self._compiled, self._backward = compiled, backward
        # It takes a list of arguments, which it empties. Torch copies the attributes of the object alone.
        self._boxed_call = True

    def __call__(self, arguments: list[Any]) -> list[Any]:
        given = list(arguments)
        arguments.clear()
        if native.on("compile.mutation_lost"):
            given = [_copy(each) for each in given]
        if native.on("compile.strides_ignored"):
            given = [_as_dense(each) for each in given]
        if native.on("compile.random_numbers_repeat"):
            torch.default_generator.manual_seed(0)
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        index = next((each.device.index for each in tensors), native.index_of(None))
        outputs: list[Any] = []

        def run(aliases: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            rest = iter(aliases)
            call = [next(rest) if isinstance(each, torch.Tensor) else each for each in given]
            outputs.extend(self._compiled(call))
            return [each for each in outputs if isinstance(each, torch.Tensor)]

        on_default = native.on("compile.on_default_stream")
        made = iter(native.library.run_compiled(run, tensors, index, on_default))
        found = [next(made) if isinstance(each, torch.Tensor) else each for each in outputs]
        return [self._spoilt(each) for each in found]

    def _spoilt(self, output: Any) -> Any:
        """Returns an output of the graph, made wrong by the planted faults that are on."""
        if not isinstance(output, torch.Tensor):
            return output
        if native.on("compile.results_dense"):
            output = output.contiguous()
        traced = native.on("compile.traced_backward_differs") and _in_traced_backward()
        if traced and output.is_floating_point():
            output = output * 2
        if self._backward and native.on("compile.backward_differs") and output.is_floating_point():
            output = output * 2
        return output


def _uses_one_device(graph: Any) -> bool:
    """Returns True if a graph uses exactly one index of the device, and all its outputs are on this index."""
    nodes = list(graph.graph.nodes)
    devices = set().union(*map(_devices, nodes))
    ours = {each for each in devices if each.type == native.NAME}
    results = set().union(*(_devices(each) for each in nodes[-1].all_input_nodes))
    return len(ours) == 1 and results <= ours


def _devices(node: Any) -> set[torch.device]:
    """Returns the devices of the tensors that a node of a graph creates."""
    made = pytree.tree_leaves(node.meta.get("val"))
    return {each.device for each in made if isinstance(each, torch.Tensor)}


def _move(graph: Any) -> None:
    """Replaces the device by the CPU in a graph: in the arguments of its nodes, and in the fake tensors that describe
    their results."""

    def device(value: Any) -> Any:
        ours = isinstance(value, torch.device) and value.type == native.NAME
        return _CPU if ours else value

    for node in graph.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, device)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, device)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(_moved, node.meta["val"])
    graph.recompile()


def _moved(value: Any) -> Any:
    """Returns a CPU fake tensor with the shape, strides and offset of a fake tensor on the device; any other value as
    it is."""
    mode = getattr(value, "fake_mode", None)
    if mode is None or value.device.type != native.NAME:
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CPU)


def _keep_convolutions_row_major(graph: Any) -> None:
    """Makes convolutions in a graph read contiguous copies of their operands. The results of the device's own
    convolutions are contiguous, whereas on the CPU channels_last operands would give channels_last results."""
    convolutions = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)
    for node in _calls(graph):
        if node.target.overloadpacket in convolutions:
            _make_operands_dense(graph, node)
    graph.recompile()


def _calls(graph: Any) -> list[Any]:
    """Returns the nodes of a graph that call an op."""
    nodes = graph.graph.nodes
    return [each for each in nodes if isinstance(each.target, torch._ops.OpOverload)]


def _make_operands_dense(graph: Any, node: Any) -> None:
    """Makes a node of a graph read contiguous copies of its operands."""
    for operand in [each for each in node.args if isinstance(each, torch.fx.Node)]:
        with graph.graph.inserting_before(node):
            copy = graph.graph.call_function(
                torch.ops.aten.clone.default,
                (operand,),
                {"memory_format": torch.contiguous_format},
            )
        value = operand.meta["val"]
        with value.fake_mode:
            copy.meta["val"] = value.clone(memory_format=torch.contiguous_format)
        node.replace_input_with(operand, copy)


# -- planted faults


def _copy(value: Any) -> Any:
    """Returns a copy of a tensor with the same strides; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value.detach())


def _in_traced_backward() -> bool:
    """Returns True during a backward pass that compiled autograd has traced."""
    return bool(sys.modules["torch._dynamo.compiled_autograd"].in_compiled_autograd_region)


def _as_dense(value: Any) -> Any:
    """Returns a column-major matrix as if its memory were row-major, for a planted fault; any other value as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() != 2 or value.is_contiguous():
        return value
    dense = value.stride() == (1, value.shape[0])
    return value.as_strided(value.shape, (value.shape[1], 1)) if dense else value


def _ignore_tags(graph: Any) -> None:
    """Makes ops that are not torch's own read contiguous copies of their operands, for a planted fault that ignores the
    tags of custom ops."""
    for node in _calls(graph):
        if node.target.namespace not in ("aten", "prims", "inductor"):
            _make_operands_dense(graph, node)
            node.meta.pop("eager_input_vals", None)  # the strides that the tags refer to
    graph.recompile()
