"""Cases about distributed tensors (DTensor): every redistribution, ops on sharded tensors, and functional
collectives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.distributed.collective_calls import root_of
from conformance.suites.distributed.groups import Ranks, join
from conformance.suites.distributed.training import ATOL, RTOL
from conformance.suites.distributed.views import LAYOUTS, check_input, numbers, put, shown
from devices.failure import Kind

cases = Cases(Kind.VALUES)

Tensor = torch.Tensor

#: Shapes that the ranks divide evenly and unevenly, and such that a rank has nothing.
SHAPES = ((4, 6), (5, 3), (1, 7), (7, 2, 3))
VIEWS = ("contiguous", "transposed", "stepped", "offset")


def mesh_of(ranks: Ranks) -> Any:
    """Returns a one-dimensional device mesh of all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(ranks.context.kind, (ranks.count,))


def placement(name: str) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return {
        "shard_0": Shard(0),
        "shard_1": Shard(1),
        "replicate": Replicate(),
        "partial": Partial(),
    }[name]


def part_of(ranks: Ranks, whole: Tensor, name: str) -> Tensor:
    """Returns the part of a tensor that this rank stores: its chunk if the placement ``name`` is a shard, otherwise the
    whole tensor."""
    if not name.startswith("shard"):
        return whole
    dim = int(name[-1])
    parts = whole.chunk(ranks.count, dim)
    return parts[ranks.index] if ranks.index < len(parts) else whole.narrow(dim, 0, 0)


def lay(ranks: Ranks, values: Tensor, view: str) -> Tensor:
    return ranks.context.lay(values, LAYOUTS[view], ranks.device_index)


def _source(ranks: Ranks, values: Tensor, name: str, view: str) -> Any:
    """Returns a distributed tensor with the given values and the placement ``name``; the local part of each rank is a
    view. If the placement is partial, rank r contributes r + 1 times the values."""
    from torch.distributed.tensor import DTensor

    mine = part_of(ranks, values, name)
    if name == "partial":
        mine = mine * (ranks.index + 1)
    local = lay(ranks, mine, view) if mine.numel() else ranks.put(mine)
    about = mesh_of(ranks), [placement(name)]
    return DTensor.from_local(
        local, *about, run_check=False, shape=values.shape, stride=values.stride()
    )


def _redistributes(context: CaseContext, source: str, target: str) -> None:
    ranks = join(context)
    shares = sum(range(1, ranks.count + 1))
    for shape in SHAPES:
        values = torch.arange(float(torch.Size(shape).numel())).reshape(shape) + 1
        want = values * shares if source == "partial" else values
        for view in VIEWS:
            at = f"{source} to {target}, shape {shape}, {view} parts"
            made = _source(ranks, values, source, view)
            moved = made.redistribute(placements=[placement(target)])
            local, expected = moved.to_local(), part_of(ranks, want, target)
            text = "the local part of a rank is wrong after a redistribution"
            context.equal(local, expected, text, at)
            text = "a redistributed tensor has wrong values"
            context.equal(moved.full_tensor(), want, text, at)
            text = "a redistributed tensor has a wrong shape or wrong strides"
            found = tuple(moved.shape), tuple(moved.stride())
            context.same(found, (shape, values.stride()), text, Kind.STRIDES, at)


PAIRS = {
    f"{source}_to_{target}": (source, target)
    for source in ("shard_0", "shard_1", "replicate", "partial")
    for target in ("shard_0", "shard_1", "replicate")
    if source != target
}


@cases("distributed.sharded", over={f"redistribute_{n}": p for n, p in PAIRS.items()}, ranks=2)
@cases(
    "distributed.sharded",
    over={f"redistribute_{n}": p for n, p in PAIRS.items()},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def redistributes(context: CaseContext, source: str, target: str, count: int = 2) -> None:
    """Tensors whose local parts are views, of even and uneven sizes, are redistributed from one placement to another.
    Each rank then has its part of the same values, and the shape and strides are those of the whole tensor."""
    context.pooled(_redistributes, source, target, ranks=count)


# -- ops


def _operates(context: CaseContext) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    ranks = join(context)
    mesh = mesh_of(ranks)
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(7, 7, generator=generator), torch.randn(7, 7, generator=generator)
    for first, second in ((Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        (x @ y).sin().sum().backward()
        left = distribute_tensor(ranks.put(a), mesh, [first]).requires_grad_()
        right = distribute_tensor(ranks.put(b), mesh, [second]).requires_grad_()
        product: Any = left @ right
        at = f"{first} @ {second}"
        text = "a product of distributed tensors differs from the product in one process"
        context.assert_close(product.full_tensor(), a @ b, text, at, rtol=RTOL, atol=ATOL)
        product.sin().sum().backward()
        text = "a gradient of a product of distributed tensors differs from that in one process"
        for found, want in ((left, x), (right, y)):
            assert want.grad is not None
            gradient: Any = found.grad
            context.assert_close(gradient.full_tensor(), want.grad, text, at, rtol=RTOL, atol=ATOL)
    for name, call in _REDUCTIONS.items():
        sharded: Any = call(distribute_tensor(ranks.put(a), mesh, [Shard(0)]))
        text = "a reduction of a distributed tensor differs from the reduction in one process"
        context.assert_close(sharded.full_tensor(), call(a), text, name, rtol=RTOL, atol=ATOL)


_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.amax(0),
    "softmax": lambda x: x.softmax(0),
}


def _maps_locally(context: CaseContext) -> None:
    from torch.distributed.tensor import Partial, Shard, distribute_tensor
    from torch.distributed.tensor.experimental import local_map

    ranks = join(context)
    mesh, a = (
        mesh_of(ranks),
        torch.arange(32.0).reshape(8, 4),
    )  # even: results have no sizes of their own
    b = torch.arange(8.0).reshape(4, 2)
    rows, columns = [Shard(0)], [Shard(1)]
    given = distribute_tensor(ranks.put(a), mesh, columns)
    weights = distribute_tensor(ranks.put(b), mesh, rows)
    product: Any = local_map(torch.mm, out_placements=[Partial()], in_placements=(columns, rows))
    text = "local_map gave wrong values"
    context.equal(product(given, weights).full_tensor(), a @ b, text)
    doubled: Any = local_map(
        lambda x: x * 2, out_placements=rows, in_placements=(rows,), redistribute_inputs=True
    )
    context.equal(doubled(given).full_tensor(), a * 2, text, "with redistributed inputs")


@cases(
    "distributed.sharded",
    over={"ops": ("_operates",), "local_map": ("_maps_locally",)},
    ranks=2,
)
@cases(
    "distributed.sharded",
    over={"ops": ("_operates",), "local_map": ("_maps_locally",)},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def operates(context: CaseContext, function: str, count: int = 2) -> None:
    """Products, reductions and their gradients, computed with distributed tensors, equal those of whole tensors in one
    process. So do functions of the local parts."""
    context.pooled(globals()[function], ranks=count)


# -- functional collectives


def _wait(value: Tensor) -> Tensor:
    done: Tensor = functional.wait_tensor(value)
    return done


def _functional(ranks: Ranks) -> dict[str, tuple[Callable[[Tensor], Tensor], bool]]:
    """Returns the functional collectives by name, each with a flag that is True if its input has a part for each
    rank."""
    world: Any = dist.group.WORLD
    return {
        "all_reduce": (lambda x: functional.all_reduce(x, "sum", world), False),
        "broadcast": (lambda x: functional.broadcast(x, root_of(ranks.count), world), False),
        "all_gather_rows": (lambda x: functional.all_gather_tensor(x, 0, world), False),
        "all_gather_columns": (lambda x: functional.all_gather_tensor(x, 1, world), False),
        "reduce_scatter": (lambda x: functional.reduce_scatter_tensor(x, "sum", 0, world), True),
        "all_to_all": (lambda x: functional.all_to_all_single(x, None, None, world), True),
    }


def _expected(ranks: Ranks, name: str, given: list[Tensor]) -> Tensor:
    """Returns the tensor that this rank must receive if rank r passes ``given[r]``."""
    if name == "all_reduce":
        return torch.stack(given).sum(0)
    if name == "broadcast":
        return given[root_of(ranks.count)]
    if name.startswith("all_gather"):
        return torch.cat(given, 0 if name.endswith("rows") else 1)
    mine = [each.chunk(ranks.count)[ranks.index] for each in given]
    return torch.stack(mine).sum(0) if name == "reduce_scatter" else torch.cat(mine)


def _functional_views(context: CaseContext, view: str, compiled: bool) -> None:
    ranks = join(context)
    for name, (call, parts) in _functional(ranks).items():
        rows = ranks.count if parts else 1
        given = [shown(numbers(rank, rows=rows), view) for rank in range(ranks.count)]
        operand = put(ranks, numbers(ranks.index, rows=rows), view)
        function: Callable[[Tensor], Tensor] = partial(_awaited, call)
        if compiled:
            torch.compiler.reset()
            function = torch.compile(function, backend="aot_eager", fullgraph=True)
        at = f"{name}, {view} input"
        found = function(operand.tensor)
        text = "a functional collective gave wrong values"
        context.equal(found, _expected(ranks, name, given), text, at)
        check_input(ranks, operand, at)


def _awaited(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return _wait(call(x))


@cases(
    "distributed.sharded",
    over={f"functional_{view}": (view, False) for view in LAYOUTS if view != "conjugate"},
    ranks=2,
)
@cases(
    "distributed.sharded", over={"functional_compiled": ("transposed", True)}, ranks=2, more=True
)
@cases(
    "distributed.sharded",
    over={f"functional_{view}": (view, False) for view in ("contiguous", "transposed")},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def functional_views(context: CaseContext, view: str, compiled: bool, count: int = 2) -> None:
    """The inputs of functional collectives are views, also in compiled code. All ranks receive the right values, and
    the inputs do not change."""
    context.pooled(_functional_views, view, compiled, ranks=count)


def _exchanges_gradients(context: CaseContext, compiled: bool) -> None:
    ranks = join(context)
    index, count = ranks.index, ranks.count
    world: Any = dist.group.WORLD

    def exchange(x: Tensor, taken: list[int], sent: list[int]) -> Tensor:
        return _wait(functional.all_to_all_single_autograd(x, taken, sent, world)) * 2

    function: Any = exchange
    if compiled:
        torch.compiler.reset()
        function = torch.compile(exchange, backend="aot_eager", fullgraph=True, dynamic=True)
    for turn in range(2):
        sent = [(index + other) % 3 + 1 + turn for other in range(count)]
        taken = [(other + index) % 3 + 1 + turn for other in range(count)]
        x = ranks.put(torch.arange(3.0 * sum(sent)).reshape(-1, 3) + 100 * index).requires_grad_()
        out = function(x, taken, sent)
        parts = []
        for other in range(count):
            sizes = [(other + each) % 3 + 1 + turn for each in range(count)]
            rows = torch.arange(3.0 * sum(sizes)).reshape(-1, 3) + 100 * other
            parts.append(rows.split(sizes)[index])
        text = "all_to_all_single_autograd gave wrong rows"
        context.equal(out, 2 * torch.cat(parts), text, f"turn {turn}")
        out.backward(ranks.put(torch.full(tuple(out.shape), 1.0 + index)))
        assert x.grad is not None
        want = torch.cat(
            [torch.full((rows, 3), 2.0 * (1 + other)) for other, rows in enumerate(sent)]
        )
        text = "all_to_all_single_autograd gave a wrong gradient"
        context.equal(x.grad, want, text, f"turn {turn}")


@cases("distributed.sharded", over={"all_to_all_autograd": (False,)}, ranks=2)
@cases("distributed.sharded", over={"all_to_all_autograd_compiled": (True,)}, ranks=2, more=True)
def exchanges_gradients(context: CaseContext, compiled: bool) -> None:
    """all_to_all_single_autograd exchanges rows with uneven splits, also in compiled code with dynamic sizes. Each rank
    receives the right values and gradients."""
    context.pooled(_exchanges_gradients, compiled, ranks=2)
