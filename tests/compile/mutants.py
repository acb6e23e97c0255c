"""Wrong compilers: each changes one thing that torch.compile does, and names an op whose cell must notice.

Functions import the compiler when they are called: every worker of the tests collects this module, and few compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

from conformance.suites.compile import eager_equals_compiled, together
from conformance.suites.compile.compiled_samples import WHOLE

aten = torch.ops.aten
Planted = AbstractContextManager[None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault of the compiler, and the op in whose cell it must show. ``plant()`` switches it on for a block."""

    name: str
    op: str
    plant: Callable[[], Planted]
    dtype: str = "float32"
    variant: str = WHOLE


# -- changes of traced graphs


@contextmanager
def graphs(
    forward: Callable[[GraphModule], None] | None = None,
    backward: Callable[[GraphModule], None] | None = None,
    **options: Any,
) -> Iterator[None]:
    """Replaces the backend aot_eager by one that changes the graphs."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends import registry
    from torch._dynamo.backends.common import aot_autograd

    def compiler(change: Callable[[GraphModule], None] | None) -> Callable[..., Any]:
        def compiled(module: GraphModule, inputs: Sequence[Any]) -> Any:
            if change is not None:
                change(module)
                module.recompile()
            return make_boxed_func(module.forward)

        return compiled

    made = aot_autograd(
        fw_compiler=compiler(forward),
        bw_compiler=compiler(backward),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        **options,
    )
    registry.lookup_backend("aot_eager")
    with mock.patch.dict(registry._COMPILER_FNS, {"aot_eager": made}):
        yield


@contextmanager
def around(change: Callable[..., Any]) -> Iterator[None]:
    """Replaces the backend by one whose compiled function is ``change(function, *inputs)``."""
    from torch._dynamo.backends import registry

    original = registry.lookup_backend("aot_eager")

    def backend(module: Any, inputs: Any, **options: Any) -> Any:
        function = original(module, inputs, **options)

        @torch.compiler.disable
        def called(*given: Any) -> Any:
            return change(function, *given)

        return called

    with mock.patch.dict(registry._COMPILER_FNS, {"aot_eager": backend}):
        yield


def outputs(module: GraphModule, change: Callable[..., Any], only: int | None = None) -> None:
    """Applies a function to the tensors that a graph returns."""
    (end,) = [node for node in module.graph.nodes if node.op == "output"]
    returned = list(end.args[0])
    with module.graph.inserting_before(end):
        for place, each in enumerate(returned):
            if isinstance(each, Node) and only in (None, place) and _is_tensor(each):
                returned[place] = module.graph.call_function(change, (each,))
    end.args = (tuple(returned),)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def calls(module: GraphModule, packet: Any) -> list[Node]:
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) is packet
    ]


def erase_copies(module: GraphModule) -> None:
    for node in calls(module, aten.copy_):
        node.replace_all_uses_with(node.args[1])
        module.graph.erase_node(node)


def other_function(module: GraphModule, packet: Any, function: Callable[..., Any]) -> None:
    """Replaces calls of an op by calls of a function."""
    for node in calls(module, packet):
        node.target = function


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def row_major_images(tensor: torch.Tensor) -> torch.Tensor:
    return row_major(tensor) if tensor.dim() == 4 else tensor


def column_major(tensor: torch.Tensor) -> torch.Tensor:
    dims = tuple(reversed(range(tensor.dim())))
    return tensor.permute(dims).clone(memory_format=torch.contiguous_format).permute(dims)


def with_offset(tensor: torch.Tensor) -> torch.Tensor:
    base = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    made = base.as_strided(tensor.shape, row_major(tensor).stride(), 1)
    return made.copy_(tensor) if tensor.is_contiguous() else tensor


def copied_row_major(target: torch.Tensor, source: torch.Tensor, *_: Any) -> torch.Tensor:
    """Writes a result to the elements that a row-major target would have."""
    dense = torch.empty(target.shape).stride()
    target.as_strided(target.shape, dense).copy_(source)
    return target


def copied_unseen(target: torch.Tensor, source: torch.Tensor, *_: Any) -> torch.Tensor:
    target.data.copy_(source)
    return target


def copied_whole(target: torch.Tensor, source: torch.Tensor, *_: Any) -> torch.Tensor:
    """Also writes to the element before the target."""
    if target.storage_offset():
        target.as_strided((1,), (1,), target.storage_offset() - 1).fill_(0)
    return target.copy_(source)


@contextmanager
def unseen_copies() -> Iterator[None]:
    with (
        graphs(lambda m: other_function(m, aten.copy_, copied_unseen)),
        mock.patch.object(torch.autograd.graph, "increment_version", return_value=None),
    ):
        yield


def dense_cotangents(module: GraphModule) -> None:
    """Reads cotangents as if they were row-major."""

    def read(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(tensor.shape, torch.empty(tensor.shape).stride())

    _placeholders(module, "tangents", read)


def _placeholders(module: GraphModule, prefix: str, change: Callable[..., Any]) -> None:
    for node in [n for n in module.graph.nodes if n.op == "placeholder"]:
        if node.name.startswith(prefix) and _is_tensor(node):
            with module.graph.inserting_after(node):
                made = module.graph.call_function(change, (node,))
            node.replace_all_uses_with(made, delete_user_cb=lambda user, own=made: user is not own)


def swapped_saved(module: GraphModule) -> None:
    """Exchanges the first two saved tensors of a backward graph."""
    saved = [
        node
        for node in module.graph.nodes
        if node.op == "placeholder" and not node.name.startswith("tangents") and _is_tensor(node)
    ][:2]
    if len(saved) < 2:
        return
    one, other = saved
    users = [(node, list(node.users)) for node in saved]
    for (node, its), instead in zip(users, (other, one)):
        for user in its:
            user.args = tuple(instead if arg is node else arg for arg in user.args)


def one_gradient(module: GraphModule) -> None:
    """Returns the first gradient for the others of its shape too."""
    (end,) = [node for node in module.graph.nodes if node.op == "output"]
    returned = list(end.args[0])
    first = next(each for each in returned if isinstance(each, Node))
    for place, each in enumerate(returned):
        if isinstance(each, Node) and each.meta["val"].shape == first.meta["val"].shape:
            returned[place] = first
    end.args = (tuple(returned),)


def missing_gradient(module: GraphModule) -> None:
    (end,) = [node for node in module.graph.nodes if node.op == "output"]
    returned = list(end.args[0])
    tensors = [place for place, each in enumerate(returned) if isinstance(each, Node)]
    returned[tensors[-1]] = None
    end.args = (tuple(returned),)


def hinted_sizes(module: GraphModule) -> None:
    """Puts the sizes of the first call in place of sizes that may change."""

    def hint(value: Any) -> Any:
        val = value.meta.get("val") if isinstance(value, Node) else None
        return val.node.hint if isinstance(val, torch.SymInt) else value

    for node in module.graph.nodes:
        if node.op == "call_function":
            node.args = torch.fx.map_arg(node.args, hint)


# -- other places of the compiler


@contextmanager
def views_copied(change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    from torch._functorch._aot_autograd import runtime_wrappers

    original = runtime_wrappers.gen_alias_from_base

    def made(*given: Any, **options: Any) -> Any:
        return change(original(*given, **options))

    with mock.patch.object(runtime_wrappers, "gen_alias_from_base", made):
        yield


@contextmanager
def compiled_as(make: Callable[..., Any]) -> Iterator[None]:
    """Replaces the function by which the checks compile: ``make(original, function, backend, dynamic)``."""
    original = eager_equals_compiled.compiled

    def compiled(function: Any, backend: Any, dynamic: Any = False) -> Any:
        return make(original, function, backend, dynamic)

    with (
        mock.patch.object(eager_equals_compiled, "compiled", compiled),
        mock.patch.object(together, "compiled", compiled),
    ):
        yield


def without_guards(original: Any, function: Any, backend: Any, dynamic: Any) -> Any:
    return torch.compile(
        function,
        backend=backend,
        dynamic=dynamic,
        fullgraph=True,
        options={"guard_filter_fn": lambda entries: [False for _ in entries]},
    )


def not_compiled(original: Any, function: Any, backend: Any, dynamic: Any) -> Any:
    return torch.compiler.disable(function)


def compiled_each_time(original: Any, function: Any, backend: Any, dynamic: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        torch._dynamo.reset()
        return original(function, backend, dynamic)(*args, **kwargs)

    return called


class Stale:
    """Gives the result of the first call again."""

    def __init__(self) -> None:
        self.result: Any = None

    def __call__(self, function: Any, *given: Any) -> Any:
        if self.result is None:
            self.result = function(*given)
        return self.result


class Reused:
    """Gives the buffers of the first call again, with the new values."""

    def __init__(self) -> None:
        self.results: Any = None

    def __call__(self, function: Any, *given: Any) -> Any:
        results = function(*given)
        if self.results is None:
            self.results = results
            return results
        for old, new in zip(self.results, results):
            if old.shape == new.shape and not old.requires_grad:
                old.copy_(new)
        return self.results


def spoils_input(function: Any, *given: torch.Tensor) -> Any:
    result = function(*given)
    with torch.no_grad():
        given[0].data.mul_(2)
    return result


def spoils_guard(function: Any, *given: torch.Tensor) -> Any:
    """Writes one element past the end of the first input."""
    result = function(*given)
    first = given[0].data
    last = sum((size - 1) * step for size, step in zip(first.shape, first.stride()))
    first.as_strided((1,), (1,), first.storage_offset() + last + 1).fill_(0)
    return result


def detaches(function: Any, *given: torch.Tensor) -> Any:
    return [each.detach() if isinstance(each, torch.Tensor) else each for each in function(*given)]


def seeds(function: Any, *given: torch.Tensor) -> Any:
    torch.manual_seed(7)
    return function(*given)


def draws_first(function: Any, *given: torch.Tensor) -> Any:
    torch.rand(1)
    return function(*given)


# -- wrong decompositions


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.01 * x)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return aten.gelu(x, approximate="tanh") if approximate == "none" else aten.gelu(x)


def logaddexp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.exp(a) + torch.exp(b))


def softplus(x: torch.Tensor, beta: float = 1, threshold: float = 20) -> torch.Tensor:
    return torch.where(x * beta > threshold, x, torch.log1p(torch.exp(x * beta)))


def addcmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, value: float = 1) -> torch.Tensor:
    return a + b * c


def bernoulli_mask(x: torch.Tensor, p: float = 0.5, generator: Any = None) -> torch.Tensor:
    return (torch.rand(x.shape, device=x.device) < p).to(x.dtype)


def decomposed(overload: Any, function: Callable[..., Any]) -> Planted:
    return graphs(decompositions={overload: function})


MUTANTS = (
    # what is written to inputs
    Mutant("mutation_lost", "add", partial(graphs, erase_copies)),
    Mutant(
        "mutation_misplaced",
        "mul",
        lambda: graphs(lambda m: other_function(m, aten.copy_, copied_row_major)),
    ),
    Mutant(
        "mutation_unseen_by_autograd",
        "sub",
        unseen_copies,
    ),
    Mutant("statistics_not_written", "nn.functional.batch_norm", partial(graphs, erase_copies)),
    Mutant("input_spoilt", "exp", partial(around, spoils_input)),
    Mutant("element_after_input_overwritten", "exp", partial(around, spoils_guard)),
    # layouts of results
    Mutant("result_row_major", "mul", lambda: graphs(lambda m: outputs(m, row_major))),
    Mutant("result_column_major", "cumsum", lambda: graphs(lambda m: outputs(m, column_major))),
    Mutant(
        "channels_last_lost",
        "nn.functional.avg_pool2d",
        lambda: graphs(lambda m: outputs(m, row_major_images)),
    ),
    Mutant("result_with_offset", "sin", lambda: graphs(lambda m: outputs(m, with_offset))),
    # aliasing
    Mutant("view_copied", "transpose", partial(views_copied, torch.clone)),
    Mutant("view_contiguous", "movedim", partial(views_copied, row_major)),
    Mutant(
        "lazy_conjugate_resolved", "conj", partial(views_copied, torch.resolve_conj), "complex64"
    ),
    Mutant(
        "copy_is_its_argument",
        "clone",
        lambda: graphs(lambda m: other_function(m, aten.clone, lambda x, **_: x)),
    ),
    Mutant(
        "results_share_memory",
        "aminmax",
        lambda: graphs(
            lambda m: other_function(
                m, aten.aminmax, lambda *a, **k: torch.stack(list(aten.aminmax(*a, **k))).unbind()
            )
        ),
    ),
    Mutant("buffers_reused", "floor", lambda: around(Reused())),
    # dtypes, values
    Mutant("result_widened", "cos", lambda: graphs(lambda m: outputs(m, torch.Tensor.double))),
    Mutant(
        "result_through_bfloat16",
        "tanh",
        lambda: graphs(lambda m: outputs(m, lambda t: t.bfloat16().to(t.dtype))),
    ),
    Mutant("wrong_silu", "nn.functional.silu", lambda: decomposed(aten.silu.default, silu)),
    Mutant("wrong_gelu", "nn.functional.gelu", lambda: decomposed(aten.gelu.default, gelu)),
    Mutant(
        "overflowing_softplus_gradient",
        "nn.functional.softplus",
        lambda: decomposed(aten.softplus.default, softplus),
    ),
    Mutant("factor_lost", "addcmul", lambda: decomposed(aten.addcmul.default, addcmul)),
    Mutant(
        "other_kernel", "amax", lambda: graphs(lambda m: other_function(m, aten.amax, aten.amin))
    ),
    Mutant("result_of_first_call", "rsqrt", lambda: around(Stale())),
    # gradients
    Mutant("gradient_negated", "sin", lambda: graphs(None, lambda m: outputs(m, torch.neg, 0))),
    Mutant("gradient_missing", "mul", partial(graphs, None, missing_gradient)),
    Mutant("gradients_in_one_memory", "div.floor_rounding", partial(graphs, None, one_gradient)),
    Mutant(
        "gradient_column_major", "cumsum", lambda: graphs(None, lambda m: outputs(m, column_major))
    ),
    Mutant("cotangent_read_as_dense", "sin", partial(graphs, None, dense_cotangents)),
    Mutant("saved_tensors_exchanged", "mul", partial(graphs, None, swapped_saved)),
    Mutant(
        "gradient_rounded",
        "tanh",
        lambda: graphs(None, lambda m: outputs(m, lambda t: t.half().to(t.dtype))),
    ),
    Mutant("gradient_not_recorded", "exp", partial(around, detaches)),
    # random numbers
    Mutant("seed_ignored", "nn.functional.dropout", partial(around, seeds)),
    Mutant("one_number_more", "bernoulli", partial(around, draws_first)),
    # guards and graphs
    Mutant("nothing_compiled", "add", partial(compiled_as, not_compiled)),
    Mutant("compiled_each_time", "add", partial(compiled_as, compiled_each_time)),
    Mutant("no_guards", "mul", partial(compiled_as, without_guards), variant="dynamic"),
    Mutant("no_guards_of_shape", "cumsum", partial(compiled_as, without_guards), variant="dynamic"),
    Mutant("sizes_of_first_call", "flatten", partial(graphs, hinted_sizes), variant="dynamic"),
)


# -- wrong fake kernels


@contextmanager
def fake(overload: Any, change: Callable[..., Any]) -> Iterator[None]:
    """Replaces FakeTensor's answer for an aten overload: ``change(answer, arguments)``. FakeTensor asks its own table, or
    the decompositions."""
    own = fake_impls.op_implementations_dict.get(overload)

    def answered(mode: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        del fake_impls.op_implementations_dict[overload]
        try:
            if own is not None:
                return change(own(mode, function, *args, **kwargs), args)
            with mode:
                return change(function(*args, **kwargs), args)
        finally:
            fake_impls.op_implementations_dict[overload] = answered

    tables: list[Planted] = [
        mock.patch.dict(fake_impls.op_implementations_dict, {overload: answered})
    ]
    if (made := decomposition_table.get(overload)) is not None:

        def decomposed(*args: Any, **kwargs: Any) -> Any:
            return change(made(*args, **kwargs), args)

        tables.append(mock.patch.dict(decomposition_table, {overload: decomposed}))
    FakeTensorMode.cache_clear()
    with ExitStack() as stack:
        for table in tables:
            stack.enter_context(table)
        yield
    FakeTensorMode.cache_clear()


def raising(*_: Any) -> Any:
    raise ValueError("this fake kernel refuses the call")


FAKES = (
    Mutant(
        "fake_strides", "cumsum", lambda: fake(aten.cumsum.default, lambda r, _: column_major(r))
    ),
    Mutant("fake_dtype", "cumsum", lambda: fake(aten.cumsum.default, lambda r, _: r.double())),
    Mutant("fake_shape", "cumsum", lambda: fake(aten.cumsum.default, lambda r, _: r[:1])),
    Mutant("fake_raises", "cumsum", lambda: fake(aten.cumsum.default, raising)),
    Mutant(
        "fake_view_copied", "permute", lambda: fake(aten.permute.default, lambda r, _: r.clone())
    ),
    Mutant("fake_copy_aliases", "clone", lambda: fake(aten.clone.default, lambda r, a: a[0])),
    Mutant(
        "fake_offset",
        "narrow",
        lambda: fake(aten.slice.Tensor, lambda r, _: r.as_strided(r.shape, r.stride(), 0)),
    ),
    Mutant("fake_outputs_lost", "sort", lambda: fake(aten.sort.default, lambda r, _: r[0])),
    Mutant(
        "fake_gradient_strides",
        "nn.functional.relu",
        lambda: fake(aten.threshold_backward.default, lambda r, _: column_major(r)),
    ),
    Mutant(
        "fake_gradient_shape",
        "nn.functional.gelu",
        lambda: fake(aten.gelu_backward.default, lambda r, _: r.flatten()),
    ),
    Mutant("fake_device", "cumsum", lambda: fake(aten.cumsum.default, lambda r, _: r.to("meta"))),
)
