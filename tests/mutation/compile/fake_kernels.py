"""Mutants of fake kernels: what FakeTensor, and with it the compiler, believes that an aten call returns.

The name of a mutant is that of an op. The aten overload, what is wrong with its fake result, and the condition of its operands are
drawn from the calls that the op and its backward make.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock

import torch

from conformance.suites.compile.fake_calls import BesideFake, Described, described
from conformance.suites.compile.meta_agrees import other_tensor
from opinfo.compare import replace_tensors, tensors_of
from tests.compile.running import EQUAL, META
from tests.mutation import compilers
from tests.mutation.compile import op_graphs
from tests.mutation.compile.op_cells import (
    Call,
    calls_of,
    cells_of,
    first_bred,
    ops_of,
    outcome,
)
from tests.mutation.compile.trial import Counted, Plant, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.kernels import Result

FAMILY: Final = "fake_kernels"
#: Overloads that make the operands of fake calls, for which a mutant would be one of every op.
_TOOLS: Final = frozenset(
    {
        *("aten.empty.memory_format", "aten.as_strided.default", "aten._conj.default"),
        *("aten._neg_view.default", "aten.view.dtype", "aten.detach.default"),
    }
)
#: The number of drawn calls from whose aten calls a mutant is drawn, and of those that decide whether it is equivalent.
_BRED_FROM: Final = 6
_CALLS: Final = 40
#: The most drawn calls that are also compiled, if FakeTensor predicts nothing else of any call.
_COMPILED: Final = 6


def _column_major(tensor: torch.Tensor) -> torch.Tensor:
    dims = tuple(reversed(range(tensor.dim())))
    return tensor.permute(dims).clone(memory_format=torch.contiguous_format).permute(dims)


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _shorter(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1] if tensor.dim() and tensor.shape[0] else tensor


def _from_start(tensor: torch.Tensor) -> torch.Tensor:
    offset = tensor.storage_offset()
    return tensor.as_strided(tensor.shape, tensor.stride(), 0) if offset else tensor


def _other_width(tensor: torch.Tensor) -> torch.Tensor:
    widths = {torch.float32: torch.float64, torch.int64: torch.int32, torch.bool: torch.uint8}
    return tensor.to(widths.get(tensor.dtype, torch.float32))


#: What is wrong with each tensor of a fake result.
EFFECTS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "column-major strides": _column_major,
    "row-major strides": _row_major,
    "the first dimension is shorter": _shorter,
    "a dimension too many": lambda x: x.unsqueeze(0),
    "a dimension of size 1 is lost": torch.squeeze,
    "another dtype": _other_width,
    "no storage offset": _from_start,
    "a copy": torch.clone,
    "without a lazy conjugate": torch.resolve_conj,
}
#: What is wrong with a fake call as a whole, given the result and the tensors of the call.
_WHOLE: Final = ("shares memory with an operand", "one tensor less", "raises an exception")


class Spec(NamedTuple):
    """A mutant."""

    overload: str
    effect: str
    condition: str


def names(seed: int, count: int) -> list[str]:
    """The ops of mutants 0 to count - 1, none of them twice."""
    return list(islice(ops_of(Random(f"{FAMILY} {seed}"), META), count))


def _wrong(effect: str, answer: Any, given: Sequence[torch.Tensor]) -> Any:
    """The wrong result of a fake call with the tensors ``given``."""
    if effect == "raises an exception":
        raise ValueError("this fake kernel refuses the call")
    if effect == "shares memory with an operand":
        return replace_tensors(answer, lambda each: _alias(each, given))
    if effect == "one tensor less":
        return answer[:-1] if isinstance(answer, (tuple, list)) and answer else answer
    return replace_tensors(answer, EFFECTS[effect])


def _alias(made: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    same = [each for each in given if each.shape == made.shape and each.dtype == made.dtype]
    return same[0].view_as(same[0]) if same and same[0].stride() == made.stride() else made


def _differ(one: Sequence[Described], other: Sequence[Described]) -> bool:
    if len(one) != len(other):
        return True
    return any(other_tensor(a, b) is not None for a, b in zip(one, other))


@contextmanager
def _answering(change: Callable[[str, Any, list[torch.Tensor]], Any]) -> Iterator[None]:
    """For a block, the answer of each fake call is ``change(overload, answer, operands)``."""
    fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
    original = fake.FakeTensorMode.dispatch
    inside = False

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        nonlocal inside
        answer = original(mode, func, types, args, kwargs or {})
        given = tensors_of((args, kwargs or {}))
        own = str(func).startswith("aten.") and str(func) not in _TOOLS
        if inside or not own or not tensors_of(answer) or not given:
            return answer
        inside = True
        try:
            with mode:
                return change(str(func), answer, given)
        finally:
            inside = False

    fake.FakeTensorMode.cache_clear()
    with mock.patch.object(fake.FakeTensorMode, "dispatch", dispatch):
        yield
    fake.FakeTensorMode.cache_clear()


def _changes(effect: str, answer: Any, given: Sequence[torch.Tensor]) -> bool:
    """Whether an effect changes a fake result in something that can be seen."""
    try:
        wrong = _wrong(effect, answer, given)
    except ValueError:
        return True
    return _differ(described(answer, given), described(wrong, given))


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[Counted]:
    """Plants a mutant for a block, in all modes of fake tensors."""
    state = Counted(sham)

    def change(overload: str, answer: Any, given: list[torch.Tensor]) -> Any:
        if overload != spec.overload or not compilers.CONDITIONS[spec.condition](given):
            return answer
        state.ran += 1
        if not _changes(spec.effect, answer, given):
            return answer
        state.reached += 1
        return answer if sham else _wrong(spec.effect, answer, given)

    with _answering(change):
        yield state


@contextmanager
def noting() -> Iterator[set[Spec]]:
    """Notes the mutants that would change something in a block, where nothing is changed."""
    notes: set[Spec] = set()

    def change(overload: str, answer: Any, given: list[torch.Tensor]) -> Any:
        met = [name for name, holds in compilers.CONDITIONS.items() if holds(given)]
        for effect in (*EFFECTS, *_WHOLE):
            if _changes(effect, answer, given):
                notes.update(Spec(overload, effect, each) for each in met)
        return answer

    with _answering(change):
        yield notes


def _predicted(call: Call) -> list[tuple[str, Any, str]]:
    """Makes a call and its backward, and repeats each of their aten calls with fake tensors. Returns for each aten call its
    name, what FakeTensor predicts, and the type of the exception that it raises."""
    args, kwargs = call.copied(0)
    mode = BesideFake()
    with suppress(Exception):  # what ran before an exception counts
        with mode:
            made = call.function(*args, **kwargs)
        ends = [each for each in tensors_of(made) if each.requires_grad]
        if ends:
            leaves = [each for each in tensors_of((args, kwargs)) if each.requires_grad]
            ones = [torch.ones_like(each) for each in ends]
            with mode:
                torch.autograd.grad(ends, leaves, ones, allow_unused=True)
    return [(each.name, each.fake, type(each.raised).__name__) for each in mode.calls]


def bred(seed: int, number: int, name: str) -> tuple[str, Spec]:
    """An op and its mutant: the op of this name, or the first one drawn in its place that has a mutant."""
    others = ops_of(Random(f"{FAMILY} {seed} {number}"), META)
    return first_bred(chain([name], others), lambda op: breed(seed, number, op))


def breed(seed: int, number: int, op: str) -> Spec | None:
    """The mutant of an op, drawn from those that change something in drawn calls of the op. None if there are none."""
    rng = Random(f"{seed} {number} {op}")
    with noting() as notes:
        for call in islice(calls_of(op, rng), _BRED_FROM):
            _predicted(call)
    found = sorted(notes)
    for wanted in ("overload", "effect"):
        if found:
            value = rng.choice(sorted({getattr(each, wanted) for each in found}))
            found = [each for each in found if getattr(each, wanted) == value]
    if not found:
        return None
    always = [each for each in found if each.condition == "always"]
    return always[0] if always and rng.random() < 0.5 else rng.choice(found)


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    found = Result(f"c{number:04d}", FAMILY, name, "", "", "")
    tell(found)
    op, spec = bred(seed, number, name)
    found.op = op
    found.axis, found.kind = spec.condition, f"{spec.overload}: {spec.effect}"
    tell(found)
    rng = Random(f"probe {seed} {number}")
    return attempt(
        found,
        (*cells_of(op, META), *cells_of(op, EQUAL)),
        lambda sham: planted(spec, sham),
        outcome,
        lambda plant: probe(plant, op, rng),
        tell,
    )


def probe(plant: Plant, op: str, rng: Random) -> Answer:
    """Whether a mutant changes what FakeTensor predicts of a call that is drawn at random, or what the compiled call leaves. An
    aten call inside of a fake kernel may have a wrong result without an effect on what the kernel returns."""
    ran, changed = 0, list[Call]()
    for number, call in enumerate(islice(calls_of(op, rng), _CALLS)):
        with plant(True) as state:
            right = _predicted(call)
        assert isinstance(state, Counted)
        ran += state.ran > 0
        if not state.reached:
            continue
        with plant(False):
            wrong = _predicted(call)
        if right != wrong:
            return Answer(f"the fake result of call {number} of {op} differs", ran)
        changed.append(call)
    for number, call in enumerate(changed[:_COMPILED]):
        try:
            with plant(True):
                sound = op_graphs.left(call, bool(number % 2))
        except Exception:  # not every op can be compiled in each of these layouts
            continue
        try:
            with plant(False):
                other = op_graphs.left(call, bool(number % 2))
        except Exception as error:
            return Answer(f"a compiled call of {op} raises {type(error).__name__}", ran)
        if sound != other:
            return Answer(f"a compiled call of {op} differs", ran)
    return Answer("", ran)
