"""Mutants of the graphs of single ops: the compiler ``aot_eager`` is wrong in one way while the cells of an op run.

A mutant changes one op of the graphs, their outputs or their run, as those of programs do
(``tests/mutation/compilers.py``). The name of a mutant is that of the op; the rest is drawn from the seed, because which ops the
graphs have is known once they are traced.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from random import Random
from typing import Any, Final
from unittest import mock

import torch

from opinfo.compare import tensors_of
from tests.compile.running import EQUAL
from tests.mutation import compiled_reach, compilers
from tests.mutation.compile.op_cells import (
    Call,
    calls_of,
    cells_of,
    first_bred,
    ops_of,
    outcome,
)
from tests.mutation.compile.trial import Plant, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.compilers import Spec
from tests.mutation.kernels import Result

AOT_EAGER: Final = "aot_eager"
FAMILY: Final = "compiled_ops"
#: Ops whose last two operands may change places: the result is the same.
_SYMMETRIC: Final = frozenset({"add", "mul", "maximum", "minimum", "eq", "ne", "hypot"})
_SYMMETRIC_NAMES: Final = ("logical_", "bitwise_")
#: The number of drawn calls from whose graphs a mutant is drawn.
_BRED_FROM: Final = 8
#: A mutant counts as equivalent after this many calls that run its code, of at most this many.
_REACHING: Final = 12
_CALLS: Final = 24


def names(seed: int, count: int) -> list[str]:
    """The ops of mutants 0 to count - 1, none of them twice."""
    return list(islice(ops_of(Random(f"{FAMILY} {seed}"), EQUAL), count))


@contextmanager
def wrong_aot_eager() -> Iterator[None]:
    """Puts the wrong compiler in the place of torch's backend ``aot_eager`` for a block."""
    registry: Any = importlib.import_module("torch._dynamo.backends.registry")
    partition: Any = importlib.import_module("functorch.compile")
    registry.lookup_backend(AOT_EAGER)  # loads it: it would replace ours
    made = compilers.backend(partition_fn=partition.min_cut_rematerialization_partition)
    with mock.patch.dict(registry._COMPILER_FNS, {AOT_EAGER: made}):
        yield


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[compilers.State]:
    with wrong_aot_eager(), compilers.planted(spec, sham) as state:
        yield state


def bred(seed: int, number: int, name: str) -> tuple[str, Spec]:
    """An op and its mutant: the op of this name, or the first one drawn in its place that has a mutant."""
    others = ops_of(Random(f"{FAMILY} {seed} {number}"), EQUAL)
    return first_bred(chain([name], others), lambda op: breed(seed, number, op))


def breed(seed: int, number: int, op: str) -> Spec | None:
    """The mutant of an op, drawn from those that change something in drawn calls of the op. None if there are none."""
    rng = Random(f"{seed} {number} {op}")
    with wrong_aot_eager(), compiled_reach.noting_mutants(all_ops=True) as notes:
        for place, call in enumerate(islice(calls_of(op, rng), _BRED_FROM)):
            with suppress(Exception):  # not every op can be compiled in each of these layouts
                left(call, bool(place % 2))
    found = sorted(
        each for each in notes if each.kind != "guard left out" and not _is_symmetric(each)
    )
    for wanted in ("kind", "detail", "part"):
        if found:
            value = rng.choice(sorted({getattr(each, wanted) for each in found}))
            found = [each for each in found if getattr(each, wanted) == value]
    if not found:
        return None
    always = [each for each in found if each.condition == "always"]
    return always[0] if always and rng.random() < 0.5 else rng.choice(found)


def _is_symmetric(spec: Spec) -> bool:
    same = spec.detail in _SYMMETRIC or spec.detail.startswith(_SYMMETRIC_NAMES)
    return spec.kind == "exchanged" and same


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    found = Result(f"c{number:04d}", FAMILY, name, "", "", "")
    tell(found)
    op, spec = bred(seed, number, name)
    found.op = op
    found.axis = f"{spec.part}, {spec.condition}"
    found.kind = f"{spec.kind}: {spec.detail}"
    tell(found)
    rng = Random(f"probe {seed} {number}")
    return attempt(
        found,
        cells_of(op, EQUAL),
        lambda sham: planted(spec, sham),
        outcome,
        lambda plant: probe(plant, op, rng),
        tell,
    )


# -- equivalent or not


def probe(plant: Plant, op: str, rng: Random) -> Answer:
    """Whether calls that are drawn at random tell a mutant of an op from the compiler."""
    reached = 0
    for number, call in enumerate(islice(calls_of(op, rng), _CALLS)):
        dynamic = bool(number % 2)
        with plant(True):
            try:
                sound = left(call, dynamic)
            except Exception:  # not every op can be compiled in each of these layouts
                continue
        with plant(False) as state:
            try:
                wrong = left(call, dynamic)
            except Exception as error:
                return Answer(f"call {number} raises {type(error).__name__}", reached + 1)
        reached += state.reached > 0
        if sound != wrong:
            return Answer(f"call {number} of {op} tells it apart", reached)
        if reached == _REACHING:
            break
    return Answer("", reached)


def left(call: Call, dynamic: bool) -> str:
    """What two compiled calls leave, the second with other values."""
    torch._dynamo.reset()
    compiled = torch.compile(call.function, backend=AOT_EAGER, dynamic=dynamic)
    left = []
    for turn in range(2):
        args, kwargs = call.copied(turn)
        torch.manual_seed(turn)
        made = compiled(*args, **kwargs)
        tensors = [each for each in tensors_of(made) if each.layout == torch.strided]
        given = tensors_of((args, kwargs))
        ends = [each for each in tensors if each.requires_grad]
        gradients = ()
        if ends:
            leaves = [each for each in given if each.requires_grad]
            ones = [torch.ones_like(each) for each in ends]
            gradients = torch.autograd.grad(ends, leaves, ones, allow_unused=True)
        found = [each for each in (*tensors, *given, *gradients) if each is not None]
        left += [
            (each.detach().resolve_conj().tolist(), each.stride(), each.dtype, each.requires_grad)
            for each in found
        ]
        left.append([[a.data_ptr() == b.data_ptr() for a in found] for b in found])
    torch._dynamo.reset()
    return repr(left)
