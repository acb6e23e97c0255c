"""The cells of single ops that compile them, and the calls with which a probe tells mutants of them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import torch

from conformance.run.item_report import BAD, verdict_of
from conformance.suites.compile import SUITE, eager_equals_compiled, meta_agrees
from conformance.suites.compile.compiled_samples import WHOLE
from conformance.suites.compile.eager_equals_compiled import DYNAMIC
from devices import registry
from devices.cell import Outcome
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.compare import replace_tensors
from opinfo.database import DATABASE
from opinfo.exceptions import exceptions
from opinfo.samples import draw
from tests.compile.running import EQUAL, META, drawn_for, record_of

AnySpec = TypeVar("AnySpec")
#: The dtypes of plan ``core`` in which a cell may be.
_DTYPES: Final = ("float32", "complex64", "int64", "bool", "bfloat16")
#: The variants of a clause: plan quick has cells without a variant, and only for some ops.
_VARIANTS: Final = {EQUAL: ("", DYNAMIC, WHOLE), META: ("", WHOLE)}
_IN_QUICK: Final = {EQUAL: eager_equals_compiled.in_quick, META: meta_agrees.in_quick}
#: Samples with larger tensors are left out of the probe.
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class OpCell:
    """A cell of an op: a clause, a dtype and a variant."""

    clause: str
    op: str
    dtype: str
    variant: str = ""

    @property
    def id(self) -> str:
        return f"{self.clause}::{self.name}"

    @property
    def name(self) -> str:
        return f"{self.op}[{self.dtype}{self.variant and '; '}{self.variant}]"

    @property
    def more(self) -> bool:
        return bool(self.variant) or not _IN_QUICK[self.clause](self.op)


@cache
def _matcher() -> Matcher:
    """What the manifest of the CPU expects of each cell."""
    descriptor = registry.get("cpu")
    assert descriptor.expectations is not None
    return Matcher(Manifest.load(descriptor.expectations).active(descriptor.facts()))


def outcome(cell: OpCell) -> Outcome:
    """Runs a cell on the CPU. It fails if the gate would be red: failures that the manifest expects do not count, and an
    expected failure that does not occur does."""
    record = record_of(cell.clause, cell.op, cell.dtype, variant=cell.variant)
    bad = verdict_of(_matcher(), record.to_outcome())[0] in BAD
    return Outcome.FAIL if bad else Outcome.PASS


@lru_cache(maxsize=64)
def cells_of(op: str, clause: str) -> tuple[OpCell, ...]:
    """The cells of an op for a clause in plan ``core``; the cheap ones first."""
    subject, known = DATABASE.subjects()[op], exceptions()
    dtypes = [
        each
        for each in _DTYPES
        if each in subject.dtypes and known.excluded(clause, op, each, fake_only=False) is None
    ]
    taken = [each for each in dtypes if clause in set(SUITE.applying(drawn_for(op, each)[1]))]
    return tuple(
        OpCell(clause, op, dtype, variant) for variant in _VARIANTS[clause] for dtype in taken
    )


@cache
def _ops() -> tuple[str, ...]:
    return tuple(sorted(DATABASE.subjects()))


def ops_of(rng: Random, clause: str) -> Iterator[str]:
    """The ops that have cells of a clause, in an order drawn at random."""
    for op in rng.sample(_ops(), len(_ops())):
        if cells_of(op, clause):
            yield op


# -- calls of the probe


def first_bred(ops: Iterable[str], breed: Callable[[str], AnySpec | None]) -> tuple[str, AnySpec]:
    """The first of the ops that has a mutant, and this mutant."""
    for op in ops:
        if (spec := breed(op)) is not None:
            return op, spec
    raise RuntimeError("no op of the database has a mutant")


class Call(NamedTuple):
    """A call of an op: its function and its arguments."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copied(self, turn: int) -> tuple[Any, Any]:
        """Arguments with copies of the tensors, which have the same strides. Turns after the first have other values."""

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            base = tensor.detach()
            span = 1 + sum((size - 1) * step for size, step in zip(base.shape, base.stride()))
            room = base.new_zeros(base.storage_offset() + (span if base.numel() else 0))
            made = room.as_strided(base.shape, base.stride(), base.storage_offset())
            values = base
            if turn and (base.is_floating_point() or base.is_complex()):
                values = base.flip([*range(base.dim())])
            if 0 not in made.stride() or not base.numel():
                made.copy_(values)
            elif base.numel():
                made[:1].copy_(values[:1])
            return made.requires_grad_(tensor.requires_grad)

        args, kwargs = replace_tensors((self.args, self.kwargs), copy)
        return args, kwargs


def calls_of(op: str, rng: Random) -> Iterator[Call]:
    """Calls of an op with samples, dtypes and layouts that are drawn at random. The CPU takes each of them."""
    subject = DATABASE.subjects()[op]
    dtypes = [each for each in _DTYPES if each in subject.dtypes] or sorted(subject.dtypes)
    for _ in range(200):
        dtype = dtypes[0] if rng.random() < 0.6 else rng.choice(dtypes)
        samples = [
            each
            for each in _drawn(op, dtype, rng.randrange(3))
            if each.numel <= _MOST and all(t.layout == torch.strided for t in each.tensors)
        ]
        if not samples:
            continue
        sample = rng.choice(samples)
        differs = dtype in subject.gradient_dtypes and rng.random() < 0.6
        # Overloads that only torch calls take contiguous tensors only.
        known = (0, 0, 1, 2, 3, 4) if subject.layouts is None else (0, 0, 3)
        kinds = [rng.choice(known) for _ in sample.tensors]
        tensors = [laid(each, kind) for each, kind in zip(sample.tensors, kinds)]
        if differs:
            tensors = [
                each.requires_grad_() if each.is_floating_point() or each.is_complex() else each
                for each in tensors
            ]
        args, kwargs = sample.call.bind(tensors)
        try:
            subject.function(*args, **kwargs)
        except Exception:  # not in this layout
            continue
        yield Call(subject.function, tuple(args), dict(kwargs))


@lru_cache(maxsize=8)
def _drawn(op: str, dtype: str, seed: int) -> list[Any]:
    return list(draw(DATABASE.subjects()[op], dtype, 40, seed=seed + 1))


def laid(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    """A copy of a tensor: as it is, in column-major order, with steps, with an offset, or expanded along its first dimension."""
    tensor = tensor.detach().clone()
    if kind == 1 and tensor.dim() > 1:
        return tensor.mT.contiguous().mT
    if kind == 2:
        return torch.stack([tensor, tensor], -1)[..., 1]
    if kind == 3 and tensor.numel():
        return torch.cat([tensor.new_zeros(1), tensor.reshape(-1)])[1:].view(tensor.shape)
    if kind == 4 and tensor.dim() and tensor.numel():
        return tensor[:1].expand(tensor.shape)
    return tensor
