"""The axis of options: calls with pairs of options that no other call has together, drawn as a covering array."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch

from opinfo.axes.axis_context import Axis, Basis, Variations
from opinfo.axes.defaults import LEFT_ALONE, Argument, arguments_of, with_special_values
from opinfo.compare import Arguments, tensors_of
from opinfo.samples import Sample

#: The most calls for an op and dtype, the most questions to the CPU, and the most calls to try for one pair.
_BUDGET, _QUESTIONS, _TRIES = 6, 30, 6
#: The most values of one option, the most elements of a call whose options are changed, and the most such calls.
_VALUES, _SMALL, _BASES = 4, 600, 12
#: From this rank on, kernels use their general code path.
_DEEP = 5
#: More occurrences of one index than two, which a kernel may combine by a special case.
_OFTEN = 3
#: Integers beyond this one have no exact float32.
_EXACT = 2**24

#: A fact about a call: the name of an option and the text of its value, or "operands" and what is special about them.
Fact = tuple[str, str]
#: Two facts about one call.
Pair = frozenset[Fact]
_OPERANDS = "operands"
#: The names of arguments that are the number of a dimension.
_DIMENSIONS = ("dim", "axis")


class _NotGiven:
    """Stands for a dimension that a call leaves out."""

    def __repr__(self) -> str:
        return "not given"


_NOT_GIVEN = _NotGiven()


def _options(basis: Basis) -> Variations:
    """Yields calls until each pair of facts that the CPU accepts has been in a call, or the budget is used up. A pair is
    two options with their values, or an option with its value and a property of the operands."""
    options = _Options(basis)
    if not options.levels:
        return
    bases = _bases_of(basis, options)
    met = {pair for call in basis.made for pair in _pairs(options.facts(call))}
    wanted = {pair: None for pair in options.pairs(bases) if pair not in met}
    asked = 0
    while wanted:
        pair = next(iter(wanted))
        for base, call in _candidates(options, bases, pair, wanted)[:_TRIES]:
            if asked == _QUESTIONS:
                return
            asked += 1
            if basis.tells(base.call, call):
                for covered in _pairs(options.facts(call)):
                    wanted.pop(covered, None)
                yield base.sample, call
                break
        wanted.pop(pair, None)  # no call can have it


def _pairs(facts: Sequence[Fact]) -> Iterator[Pair]:
    """Yields all pairs of facts of one call of which at least one is about an option."""
    for one, other in combinations(facts, 2):
        if one[0] != other[0] and (one[0] != _OPERANDS or other[0] != _OPERANDS):
            yield frozenset((one, other))


def _candidates(
    options: _Options, bases: Sequence[_Base], pair: Pair, wanted: Container[Pair]
) -> list[tuple[_Base, Arguments]]:
    """Returns calls with both facts of a pair: the three that cover most of the ``wanted`` pairs, whose other options may
    be changed too; then calls in which no other option is changed, and those in which one other is."""
    fitting = [base for base in bases if base.fits(options, pair)]
    found = []
    for place, base in enumerate(fitting):
        covers, facts = base.extended(options, pair, wanted)
        found.append((-covers, place, facts))
    if not found:
        return []
    best = sorted(found, key=lambda each: each[:2])
    first = fitting[0]
    fixed = {name for name, _ in pair}
    made = [(fitting[place], facts) for _, place, facts in best[:3]]
    made += [(base, pair) for base in fitting[:2]]
    made += [(first, pair | {fact}) for fact in options.levels if fact[0] not in fixed]
    calls: list[tuple[_Base, frozenset[Fact], Arguments]] = []
    for base, changed in made:
        held = frozenset(f for f in changed if f not in base.options.items())
        call = options.with_facts(base.call, held)
        if call is not None and held and (base, held) not in (each[:2] for each in calls):
            calls.append((base, held, call))
    return [(base, call) for base, _, call in calls]


@dataclass(frozen=True, eq=False)
class _Base:
    """A sample from which calls are made, and the facts about it."""

    sample: Sample
    options: dict[str, str]  # the text of the value of each option, by name
    operands: tuple[Fact, ...]

    @property
    def call(self) -> Arguments:
        return self.sample.call

    def fits(self, options: _Options, pair: Pair) -> bool:
        return all(
            fact in self.operands if fact[0] == _OPERANDS else options.can_have(self.call, fact[0])
            for fact in pair
        )

    def extended(
        self, options: _Options, pair: Pair, wanted: Container[Pair]
    ) -> tuple[int, frozenset[Fact]]:
        """Returns the number of ``wanted`` pairs of a call with the facts of ``pair``, if each other option has the value
        with which the call has most of them, and the facts that must be changed for that."""
        state = {**self.options, **{n: text for n, text in pair if n != _OPERANDS}}
        changed = {fact for fact in pair if fact[0] != _OPERANDS}

        def covered(fact: Fact) -> int:
            others = [*self.operands, *((n, t) for n, t in state.items() if n != fact[0])]
            return sum(frozenset((fact, other)) in wanted for other in others)

        fixed = {name for name, _ in pair}
        for name, texts in options.texts.items():
            if name in fixed or not options.can_have(self.call, name):
                continue
            best = max(texts, key=lambda text: (covered((name, text)), text == state.get(name)))
            if best != state.get(name):
                state[name] = best
                changed.add((name, best))
        facts = [*state.items(), *self.operands]
        return sum(each in wanted for each in _pairs(facts)), frozenset(changed)


@dataclass
class _Options:
    """The options of an op: the arguments that are no tensors, with the values that they have in the database's samples
    and, for flags and numbers with a default, other values."""

    basis: Basis

    @cached_property
    def defaults(self) -> dict[str, Argument]:
        return arguments_of(self.basis.subject)

    @cached_property
    def _names(self) -> dict[int, str]:
        """The names of arguments that may be passed by position."""
        return {e.place: name for name, e in self.defaults.items() if e.place is not None}

    def given(self, call: Arguments) -> dict[str, Any]:
        """Returns the options of a call by name; those that are passed by position and have no default are named by
        their position. Tensors and dtypes are no options."""
        found = {self._names.get(n, f"#{n}"): value for n, value in enumerate(call.args)}
        found |= call.kwargs
        return {n: v for n, v in found.items() if n not in LEFT_ALONE and _is_option(v)}

    @cached_property
    def levels(self) -> dict[Fact, Any]:
        """The values of each option, at most four of them. A dimension is the first one in any case."""
        found: dict[str, dict[str, Any]] = {}
        for sample in self.basis.drawn:
            given = self.given(sample.call)
            found |= {n: {"0": 0} for n in _DIMENSIONS if type(given.get(n)) is int}
        for sample in self.basis.drawn:
            for name, value in self.given(sample.call).items():
                found.setdefault(name, {}).setdefault(_text(value), value)
        for name in self._left_out:
            found[name] = {_text(_NOT_GIVEN): _NOT_GIVEN, **found[name]}
        for name, argument in self.defaults.items():
            of_name = found.setdefault(name, {})
            if _is_option(argument.default):
                of_name.setdefault(_text(argument.default), argument.default)
            for value in argument.others[:2] if len(of_name) < 2 else ():
                of_name.setdefault(_text(value), value)
        return {
            (name, text): value
            for name, values in found.items()
            if len(values) > 1
            for text, value in _spread(values)
        }

    @cached_property
    def _left_out(self) -> list[str]:
        """The keywords that name a dimension, have no known default, and are left out by some calls of the database: a
        reduction without a dimension has a kernel of its own, with options of its own (pytorch/xla#6536)."""
        calls = [sample.call for sample in self.basis.drawn]
        return [
            name
            for name in _DIMENSIONS
            if name not in self.defaults
            and any(_is_option(each.kwargs.get(name, ...)) for each in calls)
            and any(name not in each.kwargs for each in calls)
        ]

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        """The texts of the values of each option."""
        found: dict[str, list[str]] = {}
        for name, text in self.levels:
            found.setdefault(name, []).append(text)
        return found

    def values(self, call: Arguments) -> dict[str, str]:
        """The texts of the options of a call, by name. An argument that is not given has its default."""
        given: dict[str, Any] = dict.fromkeys(self._left_out, _NOT_GIVEN)
        given |= {name: each.default for name, each in self.defaults.items()} | self.given(call)
        found = {name: _text(value) for name, value in given.items()}
        return {name: text for name, text in found.items() if (name, text) in self.levels}

    def facts(self, call: Arguments) -> list[Fact]:
        return [*self.values(call).items(), *_operand_facts(self.basis, call)]

    def pairs(self, bases: Sequence[_Base]) -> Iterator[Pair]:
        """Yields all pairs that a call made from one of the ``bases`` may have: those of two options first, and among them
        those of flags and names before those of sizes and other numbers."""
        both = _pairs([*self.levels])
        yield from sorted(both, key=lambda pair: sum(_is_number(self.levels[f]) for f in pair))
        operands = dict.fromkeys(fact for base in bases for fact in base.operands)
        yield from (frozenset((one, other)) for other in operands for one in self.levels)

    def can_have(self, call: Arguments, name: str) -> bool:
        """Returns True if a call can be given a value of an option."""
        text = self.texts[name][0]
        return self._with(call, name, self.levels[name, text]) is not None

    def with_facts(self, call: Arguments, facts: frozenset[Fact]) -> Arguments | None:
        """Returns a call with the options of ``facts``; None if the call has no place for one."""
        for fact in sorted(facts):
            if fact[0] != _OPERANDS:
                made = self._with(call, fact[0], self.levels[fact])
                if made is None:
                    return None
                call = made
        return call

    def _with(self, call: Arguments, name: str, value: Any) -> Arguments | None:
        """Returns a call with another value of one option; None if the call has no place for it."""
        if name in call.kwargs:
            if not _is_option(call.kwargs[name]):
                return None
            if value is _NOT_GIVEN:
                rest = {key: each for key, each in call.kwargs.items() if key != name}
                return Arguments(call.args, rest)
            return Arguments(call.args, {**call.kwargs, name: value})
        place = int(name[1:]) if name[0] == "#" else getattr(self.defaults.get(name), "place", None)
        if place is not None and place < len(call.args):
            if not _is_option(call.args[place]):
                return None
            return Arguments((*call.args[:place], value, *call.args[place + 1 :]), call.kwargs)
        if name in self._left_out:
            return Arguments(call.args, {**call.kwargs, name: value})
        if name[0] == "#" or name not in self.defaults:
            return None
        if len(call.tensors) > self.defaults[name].tensors:
            return None
        return Arguments(call.args, {**call.kwargs, name: value})


def _is_option(value: Any) -> bool:
    """Returns True for flags, numbers, strings, None, and tuples and lists of these."""
    if isinstance(value, (tuple, list)):
        return bool(value) and all(map(_is_option, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, tuple, list)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


def _spread(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns at most four of the values, first one of each type."""
    by_type: dict[type, tuple[str, Any]] = {}
    for text, value in values.items():
        by_type.setdefault(type(value), (text, value))
    first = list(by_type.values())
    texts = {text for text, _ in first}
    return [*first, *((t, v) for t, v in values.items() if t not in texts)][:_VALUES]


def _operand_facts(basis: Basis, call: Arguments) -> list[Fact]:
    """Returns what is special about the operands of a call: a 0-d operand, one of another dtype, an optional one, many
    dimensions, NaN, indices that occur often, and large integers."""
    tensors = call.tensors
    found = [f"{len(tensors)} tensors"]
    for place, each in enumerate(tensors):
        if each.layout != torch.strided:
            continue
        if not each.dim() and len(tensors) > 1:
            found.append(f"0-d {place}")
        if each.is_floating_point() and each.numel() <= _SMALL and bool(each.isnan().any()):
            found.append(f"NaN {place}")
        if each.dtype != basis.kind:
            found.append(f"{each.dtype} {place}")
        if each.dim() >= _DEEP and not place:
            found.append("many dimensions")
        if each.dtype in (torch.int32, torch.int64) and _OFTEN <= each.numel() <= _SMALL:
            if place and int(each.reshape(-1).unique(return_counts=True)[1].max()) >= _OFTEN:
                found.append(f"an index occurs often {place}")
            if each.dtype == basis.kind and int(each.abs().max()) > _EXACT:
                found.append(f"large integers {place}")
    return [(_OPERANDS, text) for text in found]


def _bases_of(basis: Basis, options: _Options) -> list[_Base]:
    """Returns samples from which calls are made: those of the database and small calls of other axes, one for each set
    of facts about their operands and of the options that they pass."""
    made = [
        Sample(origin.index, call, origin.process)
        for origin, call in zip(basis.origins, basis.made, strict=True)
    ]
    special = [
        replace(base, call=call)
        for sample in basis.bases[: int(basis.elementwise)]
        for base, call in with_special_values(basis, sample)
    ]
    found: dict[Any, _Base] = {}
    for sample in (*basis.bases, *basis.drawn, *special, *made):
        tensors = sample.tensors
        if not tensors or sample.numel > _SMALL or not all(t.numel() for t in tensors):
            continue
        if any(t.layout != torch.strided for t in tensors):
            continue
        if not any(sample is each for each in special) and not _is_ordinary(tensors):
            continue
        operands = tuple(_operand_facts(basis, sample.call))
        key = operands, *sorted(options.given(sample.call))
        if key not in found:
            found[key] = _Base(sample, options.values(sample.call), operands)
    return [*found.values()][:_BASES]


def _is_ordinary(tensors: Sequence[torch.Tensor]) -> bool:
    """Returns True if all floating-point numbers are finite and of ordinary size."""
    floats = [t for t in tensors_of(tensors) if t.is_floating_point() or t.is_complex()]
    return all(bool((t.abs().double() < 2**16).all()) for t in floats)


OPTIONS = Axis(
    number=22,
    name="options",
    finds="A kernel that is wrong only if two options are given together, or one option with an operand of another kind.",
    bugs=("pytorch/pytorch#154890", "pytorch/pytorch#39227"),
    budget=_BUDGET,
    layouts=("contiguous", "transposed+step_outer+offset"),
    applies=lambda basis: (
        basis.dtype in ("float32", "int64", "complex64")
        and not basis.free
        and "axes.loops" not in basis.families
    ),
    vary=_options,
)
