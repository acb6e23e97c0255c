"""Mutants of a process group: the group of tests/distributed/faulty.py, which is right, with one generated fault.

The name of a mutant describes it completely: ``collective|kind|condition``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tests.distributed.faulty import MOVES, REDUCES, Mutant, read_as_dense

Tensor = torch.Tensor
Tensors = list[Tensor]


class Spec(NamedTuple):
    """A mutant."""

    collective: str
    kind: str
    condition: str

    @property
    def name(self) -> str:
        return "|".join(self)


# -- when: conditions of an operand, or of a result

CONDITIONS: dict[str, Callable[[Tensor], bool]] = {
    "always": lambda x: True,
    "not contiguous": lambda x: not x.is_contiguous(),
    "with an offset": lambda x: x.storage_offset() > 0,
    "of four dimensions": lambda x: x.dim() == 4,
    "of one dimension": lambda x: x.dim() == 1,
    "float64": lambda x: x.dtype is torch.float64,
    "int64": lambda x: x.dtype is torch.int64,
    "of a short float": lambda x: x.dtype in (torch.float16, torch.bfloat16),
    "complex": lambda x: x.is_complex(),
    "of an odd size": lambda x: x.numel() % 2 == 1,
    "one element": lambda x: x.numel() == 1,
    "more than 64 elements": lambda x: x.numel() > 64,
    "more than 4,096 elements": lambda x: x.numel() > 4096,
}


# -- what: of operands


READS: dict[str, Callable[[Tensor], Tensor]] = {
    "read as dense": read_as_dense,
    "read without its offset": lambda x: x.as_strided(x.shape, x.stride(), 0),
    "read reversed": lambda x: x.flip(0) if x.dim() else x,
    "read as zeros": torch.zeros_like,
    "last element not read": lambda x: _spoilt(
        x.clone(memory_format=torch.contiguous_format), lambda flat: flat[-1:].zero_()
    ),
}
WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "written as dense": lambda target, result: read_as_dense(target).copy_(result),
    "not written": lambda target, result: None,
    "first row not written": lambda target, result: (
        target[1:].copy_(result[1:]) if target.dim() else None
    ),
    "element behind the target overwritten": lambda target, result: (
        target.copy_(result),
        _overwrite(target, 1),
    ),
    "element before the target overwritten": lambda target, result: (
        target.copy_(result),
        _overwrite(target, -1),
    ),
}


def _overwrite(x: Tensor, step: int) -> None:
    if not x.numel():
        return
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    place = x.storage_offset() + (reach + 1 if step > 0 else -1)
    if 0 <= place < x.untyped_storage().nbytes() // x.itemsize:
        x.as_strided((1,), (1,), place).zero_()


# -- what: of results, which are contiguous


def _spoilt(x: Tensor, change: Callable[[Tensor], object]) -> Tensor:
    change(x.view(-1))
    return x


RESULTS: dict[str, Callable[[Tensor], object]] = {
    "first element lost": lambda x: x.view(-1)[:1].zero_(),
    "last element lost": lambda x: x.view(-1)[-1:].zero_(),
    "last quarter lost": lambda x: x.view(-1)[x.numel() * 3 // 4 :].zero_(),
    "rows rolled": lambda x: x.copy_(x.roll(1, 0)) if x.dim() else None,
    "elements reversed": lambda x: x.copy_(x.flatten().flip(0).view(x.shape)),
    "rounded to bfloat16": lambda x: x.copy_(x.bfloat16()) if x.is_floating_point() else None,
    "rounded to float32": lambda x: None if x.is_complex() else x.copy_(x.float()),
    "doubled": lambda x: x.mul_(2) if x.dtype is not torch.bool else x.fill_(True),
    "sign lost": lambda x: x.abs_() if x.dtype.is_signed and not x.is_complex() else None,
    "one too many": lambda x: x.add_(1) if x.dtype is not torch.bool else x.logical_not_(),
}
#: Of one rank, of the parts of a list, of options; of the calls before.
LISTS = ("parts reversed", "own part lost", "last part lost")
ROOTS = ("another root",)
EARLIER = "result of the call before"
OTHERS = ("wrong on the last rank", "wrong on the first rank", EARLIER)
REDUCTIONS = (
    "SUM as AVG",
    "AVG as SUM",
    "MIN as MAX",
    "MAX as MIN",
    "PRODUCT as SUM",
    "BAND as BOR",
    "BXOR as BOR",
)
WITH_LISTS = frozenset({"all_gather", "gather", "all_to_all"})
_WITH_ROOTS = frozenset({"broadcast", "reduce", "gather", "scatter"})
ALL = (*MOVES.split(), *REDUCES.split())


#: Conditions that no result meets: the group makes its results as contiguous tensors without an offset.
_OF_VIEWS = ("not contiguous", "with an offset")
#: Collectives that torch calls with complex operands; to the others it hands pairs of floats.
_COMPLEX = ("reduce", "reduce_scatter", "reduce_scatter_single")
#: Conditions that no operand with the parts of two ranks meets.
_OF_ODD_SIZES = ("of an odd size", "one element")


def conditions_of(collective: str, kind: str) -> list[str]:
    """The conditions under which a kind of fault can strike, for groups of two ranks."""
    if kind in (*ROOTS, *REDUCTIONS, *LISTS):
        return ["always"]
    reads, writes = kind in READS, kind in WRITES
    never = () if reads or writes else _OF_VIEWS
    if collective not in _COMPLEX and not (collective == "gather" and reads):
        never += ("complex",)
    if collective == ("reduce_scatter_single" if reads else "all_gather_single"):
        never += _OF_ODD_SIZES
    return [each for each in CONDITIONS if each not in never]


def kinds_of(collective: str) -> list[str]:
    """The kinds of faults that a collective can have. ``receive`` reads no operand."""
    kinds = [*READS] if collective != "receive" else []
    kinds += [*WRITES, *RESULTS, *OTHERS]
    kinds += LISTS if collective in WITH_LISTS else ()
    kinds += ROOTS if collective in _WITH_ROOTS else ()
    return kinds + [*REDUCTIONS] * (collective in REDUCES.split())


def mutant_of(name: str) -> Mutant:
    """The fault of this name, for the group of tests/distributed/faulty.py."""
    spec = Spec(*name.split("|"))
    met = CONDITIONS[spec.condition]
    if spec.kind in READS:
        read = READS[spec.kind]
        return Mutant(read=lambda c, x: read(x) if c == spec.collective and met(x) else x)
    if spec.kind in WRITES:
        write = WRITES[spec.kind]
        return Mutant(
            write=lambda c, target, result: (
                write(target, result)
                if c == spec.collective and met(target)
                else target.copy_(result)
            )
        )
    if spec.kind in REDUCTIONS:
        return Mutant(options=_swapped(spec))
    if spec.kind in ROOTS:
        return Mutant(options=_other_root(spec))
    before: list[Tensors] = []

    def results(c: str, found: Tensors, rank: int, size: int) -> None:
        if c == spec.collective and found:
            change(spec, met, found, rank, size, before)

    return Mutant(results=results)


def change(
    spec: Spec,
    met: Callable[[Tensor], bool],
    found: Tensors,
    rank: int,
    size: int,
    before: list[Tensors],
) -> None:
    if spec.kind in LISTS:
        if spec.kind == "parts reversed":
            for each, other in zip(found, [x.clone() for x in found[::-1]]):
                each.copy_(other) if each.shape == other.shape else None
        else:
            found[rank if spec.kind == "own part lost" else -1].zero_()
        return
    if spec.kind == EARLIER:
        earlier, now = (before[-1] if before else []), [x.clone() for x in found]
        for each, other in zip(found, earlier):
            if met(each) and each.shape == other.shape and each.dtype is other.dtype:
                each.copy_(other)
        before[:] = [now]
        return
    wanted = {"wrong on the last rank": size - 1, "wrong on the first rank": 0}.get(spec.kind, rank)
    spoil = RESULTS["one too many" if spec.kind in OTHERS else spec.kind]
    for each in found if wanted == rank else ():
        if each.numel() and met(each):
            spoil(each)


def _swapped(spec: Spec) -> Callable[[str, Any], None]:
    old, _, new = spec.kind.partition(" as ")

    def options(c: str, given: Any) -> None:
        if c == spec.collective and given.reduceOp == getattr(dist.ReduceOp, old):
            given.reduceOp = getattr(dist.ReduceOp, new)

    return options


def _other_root(spec: Spec) -> Callable[[str, Any], None]:
    def options(c: str, given: Any) -> None:
        if c == spec.collective:
            given.rootRank = 0

    return options
