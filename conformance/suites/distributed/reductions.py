"""Cases about reductions and dtypes: declared reductions give the right values, and collectives that only move values
keep every bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.distributed.collective_calls import named, peers, root_of
from conformance.suites.distributed.groups import Ranks, join
from devices.failure import Kind

cases = Cases(Kind.VALUES)

FLOATING = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
BOOL = ("bool",)

#: The dtypes for which a reduction has a meaning. The average of integers has none: it may be rounded either way.
MEANT = {
    "SUM": (*FLOATING, *INTEGERS, *COMPLEX),
    "AVG": (*FLOATING, *COMPLEX),
    "PRODUCT": (*FLOATING, *INTEGERS, *COMPLEX, *BOOL),
    "MIN": (*FLOATING, *INTEGERS, *BOOL),
    "MAX": (*FLOATING, *INTEGERS, *BOOL),
    "BAND": (*INTEGERS, *BOOL),
    "BOR": (*INTEGERS, *BOOL),
    "BXOR": (*INTEGERS, *BOOL),
}
#: The dtypes of plan quick: the first that has a meaning, and those with kernels of their own.
QUICK = ("float32", "bfloat16", "int64")

#: What each rank gives. All results are exact in every dtype, and no two reductions of two ranks are equal in all places.
GIVEN = ((1, 2, 3, 1, 6), (2, 2, 1, 4, 3), (3, 1, 2, 1, 1), (1, 1, 1, 2, 2))

#: What rank 0 gives in one more place, if float32, or float64, cannot hold it; the other ranks give 1.
LARGE = {torch.int64: 2**53 + 1, torch.int32: 2**24 + 1, torch.float64: 2**24 + 1}

Tensor = torch.Tensor


def given(rank: int, dtype: torch.dtype) -> Tensor:
    """Returns the tensor on the CPU that a rank contributes. Complex numbers have imaginary parts, and signed numbers
    include negative ones."""
    values = torch.tensor(GIVEN[rank])
    if dtype is torch.bool:
        return values % 2 == 1
    if dtype.is_signed:
        values[(torch.arange(len(values)) + rank) % 3 == 0] *= -1
    if dtype in LARGE:
        values = torch.cat([values, torch.tensor([LARGE[dtype] if rank == 0 else 1])])
    if dtype.is_complex:
        return torch.complex(values.double(), values.double().flip(0)).to(dtype)
    return values.to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype is torch.bool:
        return dtype
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def _fold(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    folds: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    return folds[name]


def reduced(name: str, tensors: list[Tensor]) -> Tensor:
    """Returns the reduction ``name`` (such as "sum") of CPU tensors, one for each rank, computed in a wider dtype."""
    dtype = tensors[0].dtype
    found = reduce(_fold(name), [each.to(_wide(dtype)) for each in tensors])
    return (found / len(tensors) if name == "AVG" else found).to(dtype)


def dtype_of(context: CaseContext, name: str) -> torch.dtype:
    """Returns the dtype with this name. Raises NotDeclared if the device does not declare the dtype."""
    if name not in context.descriptor.dtypes:
        raise NotDeclared(f"by declaration: the descriptor does not declare {name}")
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def is_declared(context: CaseContext, operation: str, dtype: str) -> bool:
    """Returns True if the backend must support the reduction for the dtype, because the descriptor declares it or
    because it is the sum of float32."""
    declared = context.descriptor.process_group
    known = declared.reductions.get(operation, frozenset()) if declared is not None else frozenset()
    return dtype in known or (operation, dtype) == ("SUM", "float32")


def _reductions(ranks: Ranks, operation: Any) -> dict[str, Callable[[Tensor], Tensor | None]]:
    """Returns the collectives that reduce, by name. Each function takes the tensor that this rank contributes, and
    returns the tensor that it receives."""
    count, root = ranks.count, root_of(ranks.count)

    def all_reduce(values: Tensor) -> Tensor:
        dist.all_reduce(values, operation)
        return values

    def to_root(values: Tensor) -> Tensor | None:
        dist.reduce(values, root, operation)
        return values if ranks.index == root else None

    def scattered(values: Tensor) -> Tensor:
        target = torch.zeros_like(values)
        dist.reduce_scatter(target, [values.clone() for _ in range(count)], operation)
        return target

    def scattered_single(values: Tensor) -> Tensor:
        target = torch.zeros_like(values)
        rows = torch.cat([values] * count)
        named("reduce_scatter_single", "reduce_scatter_tensor")(target, rows, operation)
        return target

    return {
        "all_reduce": all_reduce,
        "reduce": to_root,
        "reduce_scatter": scattered,
        "reduce_scatter_single": scattered_single,
    }


def _reduces(context: CaseContext, name: str, dtype: str) -> None:
    ranks, kind = join(context), dtype_of(context, dtype)
    want = reduced(name, [given(rank, kind) for rank in range(ranks.count)])
    for collective, call in _reductions(ranks, getattr(dist.ReduceOp, name)).items():
        found: list[Tensor | None] = []
        values = ranks.put(given(ranks.index, kind))
        refused = ranks.attempt(lambda: found.append(call(values)))  # noqa: B023 (called at once)
        at = f"{collective}, {name} of {dtype}"
        if refused:
            allowed = not is_declared(context, name, dtype)
            context.check(
                allowed,
                ("a reduction that the descriptor declares was refused"),
                found=refused,
                at=at,
            )
            context.note(f"{at}: {refused}")
        elif found[0] is not None:
            context.equal(found[0], want, "a reduction gave wrong values", at)
        else:
            context.check(True, "a reduction gave wrong values")


@cases(
    "distributed.collectives",
    over={
        f"{name}_{dtype}": (name, dtype)
        for name, dtypes in MEANT.items()
        for dtype in dtypes
        if dtype in QUICK
    },
    ranks=2,
)
@cases(
    "distributed.collectives",
    over={
        f"{name}_{dtype}": (name, dtype)
        for name, dtypes in MEANT.items()
        for dtype in dtypes
        if dtype not in QUICK
    },
    ranks=2,
    more=True,
)
@cases(
    "distributed.collectives",
    over={f"{name}_{dtypes[0]}": (name, dtypes[0]) for name, dtypes in MEANT.items()},
    variants={"4 ranks": (4,)},
    ranks=4,
    more=True,
)
def reduces(context: CaseContext, name: str, dtype: str, count: int = 2) -> None:
    """Each collective that reduces is called with tensors of a dtype. The result is that of the CPU in a wider dtype.
    If the descriptor does not declare the reduction for the dtype, the call may also be refused."""
    context.pooled(_reduces, name, dtype, ranks=count)


# -- the bits of every dtype


def patterned(rank: int, part: int, dtype: torch.dtype) -> Tensor:
    """Returns six elements whose bits differ for each rank and part."""
    if dtype is torch.bool:
        return torch.tensor([(rank + part + place) % 3 == 0 for place in range(6)])
    size = 6 * dtype.itemsize
    numbers = (torch.arange(size) * 7 + 31 * rank + 57 * part) % 251
    return numbers.to(torch.uint8).view(dtype)


def _moves(ranks: Ranks, dtype: torch.dtype) -> dict[str, tuple[Callable[[], Tensor], Tensor]]:
    """Returns the collectives that only move values, by name: for each, a function that calls it, and the tensor
    that this rank must receive."""
    index, count, root = ranks.index, ranks.count, root_of(ranks.count)

    def mine(part: int = 0) -> Tensor:
        return ranks.put(patterned(index, part, dtype))

    def room(parts: int = 1) -> Tensor:
        return ranks.put(torch.zeros(6 * parts, dtype=dtype))

    def broadcast() -> Tensor:
        values = mine()
        dist.broadcast(values, root)
        return values

    def gathered() -> Tensor:
        targets = [room() for _ in range(count)]
        dist.all_gather(targets, mine())
        return torch.cat([ranks.context.from_device(each) for each in targets])

    def gathered_single() -> Tensor:
        target = room(count)
        named("all_gather_single", "all_gather_into_tensor")(target, mine())
        return target

    def scattered() -> Tensor:
        target = room()
        parts = [mine(part) for part in range(count)] if index == root else None
        dist.scatter(target, parts, root)
        return target

    def exchanged() -> Tensor:
        target = room(count)
        rows = torch.cat([patterned(index, part, dtype) for part in range(count)])
        dist.all_to_all_single(target, ranks.put(rows))
        return target

    def received() -> Tensor:
        to, source = peers(index, count)
        target = room()
        sent = dist.isend(mine(), to)
        dist.recv(target, source)
        assert sent is not None
        sent.wait()
        return target

    everyone = torch.cat([patterned(rank, 0, dtype) for rank in range(count)])
    return {
        "broadcast": (broadcast, patterned(root, 0, dtype)),
        "all_gather": (gathered, everyone),
        "all_gather_single": (gathered_single, everyone),
        "scatter": (scattered, patterned(root, index, dtype)),
        "all_to_all_single": (
            exchanged,
            torch.cat([patterned(rank, index, dtype) for rank in range(count)]),
        ),
        "send_receive": (received, patterned(peers(index, count)[1], 0, dtype)),
    }


def _moves_bits(context: CaseContext, dtype: str) -> None:
    ranks, kind = join(context), dtype_of(context, dtype)
    for name, (call, want) in _moves(ranks, kind).items():
        found: list[Tensor] = []
        refused = ranks.attempt(lambda: found.append(call()))  # noqa: B023 (called at once)
        at = f"{name} of {dtype}"
        if refused:
            allowed = not is_declared(context, "SUM", dtype)
            context.check(
                allowed,
                ("a collective that moves values refused a dtype that the descriptor declares"),
                found=refused,
                at=at,
            )
            context.note(f"{at}: {refused}")
            continue
        raw = [context.from_device(found[0]).view(torch.uint8), want.view(torch.uint8)]
        text = "a collective that moves values changed their bits"
        context.equal(raw[0], raw[1], text, at)


@cases(
    "distributed.collectives",
    over={f"moves_{dtype}": (dtype,) for dtype in ("bfloat16", "bool", "complex64", "int64")},
    ranks=2,
)
@cases(
    "distributed.collectives",
    over={
        f"moves_{dtype}": (dtype,)
        for dtype in (*FLOATING, *INTEGERS, *COMPLEX)
        if dtype not in ("bfloat16", "complex64", "int64")
    },
    ranks=2,
    more=True,
)
def moves(context: CaseContext, dtype: str) -> None:
    """Tensors of a dtype are broadcast, gathered, scattered, exchanged and sent. All ranks receive the same bits. If
    the descriptor does not declare a sum for the dtype, the call may also be refused."""
    context.pooled(_moves_bits, dtype, ranks=2)
