"""Languages of random programs. A language declares each of its instructions once: its operands and their values, its
precondition, its effect on a model of the device, the operations that run on the device, and the states that programs
must cover. Everything else follows from these declarations: the text of programs, their validation, the choice of
possible next steps, and the table of what programs can cover.

A few random programs miss rare pairs of instructions. A case therefore counts what its programs cover, and then adds
steered programs. For each step of a steered program, several steps are drawn at random, and the one that covers the
most missing entries of the table is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import product
from random import Random
from typing import Any, ClassVar, TypeVar

from conformance.checks.programs.operations import Operation

#: One entry of coverage: ``("pair", "copy", "wait", …)``, or the kind of a state followed by its properties.
Key = tuple[str, ...]
#: An instruction of a program as a literal: its name and its operands, such as ``("free", 3)``.
Step = tuple[Any, ...]
Steps = Sequence[Step]
#: The operands of a step by name.
Operands = Mapping[str, int]
S = TypeVar("S", bound="State")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Words = Sequence[str]

#: The number of steps of each instruction that are proposed for the next step of a steered program.
_CHOICES = 2
#: The largest number of steered programs.
_MOST = 200


@dataclass
class Reach:
    """The coverage of the random programs of a case. ``table`` contains all pairs of instructions and all states that
    the programs can cover."""

    table: frozenset[Key]
    missing: set[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.table)

    def __str__(self) -> str:
        """Returns the coverage in the form used in reports: ``98 pairs of instructions, 9 states of wait; missing: …``.
        Here ``wait`` is the name of a group of states."""
        sorts = Counter(sort for sort, *_ in self.table - self.missing)
        told = [f"{sorts.pop('pair', 0)} pairs of instructions"]
        told += [f"{count} states of {sort}" for sort, count in sorted(sorts.items())]
        missing = "; ".join(" ".join(key) for key in sorted(self.missing))
        return ", ".join(told) + (f"; missing: {missing}" if missing else "")


class Aspect:
    """A property of a step and of the state in which it runs, such as whether a block is the last one.

    ``words`` are the possible values of the property, or a function that returns them for a model. ``place`` takes the
    model and the operands by name, and returns the index of the value among the words; None if the step does not have
    the property.
    """

    def __init__(
        self, words: _Words | Callable[[Any], _Words], place: Callable[..., int | None]
    ) -> None:
        self.words = words if callable(words) else lambda model: words
        self.place = place

    def word(self, model: Any, *before: Operands, **operands: int) -> str:
        place = self.place(model, *before, **operands)
        return "" if place is None else self.words(model)[place]


class States:
    """States that programs must cover: all combinations of the words of some aspects. ``group`` is the name under which
    the coverage lists the states. If it is an empty string, the name of the instruction is used."""

    def __init__(self, *aspects: Aspect, group: str = "") -> None:
        self.aspects = aspects
        self.group = (group,) if group else ()

    def table(self, model: Any, name: str) -> set[Key]:
        every = product(*(each.words(model) for each in self.aspects))
        return {(*self.group, name, *words) for words in every}

    def reached(self, model: Any, name: str, operands: Operands) -> set[Key]:
        words = [each.word(model, **operands) for each in self.aspects]
        return {(*self.group, name, *words)} if all(words) else set()


@dataclass(frozen=True, slots=True)
class Operand:
    """A number in a step, one of ``values``. If ``count`` is given, the number denotes an object of the model, such as
    a block. ``count`` returns how many such objects exist; the number is taken modulo this count, and ``first`` is
    added."""

    name: str
    values: range
    count: Callable[[Any], int] | None = None
    first: int = 0
    covers: tuple[States, ...] = ()

    def resolve(self, model: Any, value: int) -> int:
        return value if self.count is None else self.first + value % (self.count(model) or 1)


def numbered(name: str, values: range, count: Callable[[Any], int]) -> Operand:
    """Returns an operand for which programs must cover every value below ``count(model)``."""

    def words(model: Any) -> _Words:
        return [f"{name} {number}" for number in range(count(model))]

    aspect = Aspect(words, lambda model, **operands: operands[name] if count(model) else None)
    return Operand(name, values, count, covers=(States(aspect),))


def _always(model: Any, **operands: int) -> bool:
    return True


def _call(name: str, *values: int) -> str:
    return f"{name}({', '.join(map(str, values))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction of a language of random programs. Each of its functions takes the model of the device; ``body``,
    ``needs`` and ``title`` also take the operands by name."""

    name: str
    operands: tuple[Operand, ...]
    #: Changes the model, and returns the operations that run on the device.
    body: Callable[..., Iterable[Operation]]
    #: Returns whether the instruction can run in this state (see ``State.impossible``).
    needs: Callable[..., object]
    here: Callable[[Any], object] = _always  # returns whether the device has what it needs
    covers: tuple[States, ...] = ()
    title: Aspect  # the name in coverage
    weight: int = 1  # how often it is drawn, relative to other instructions
    text: str = ""  # a template of ``str.format``; empty: the text that the language gives a step
    #: Returns the operands for drawn values that the instructions of a language share; None: each operand is drawn.
    drawn: Callable[..., tuple[int, ...]] | None = None


@dataclass(kw_only=True)
class Language:
    """A language of random programs: its instructions, and the operands and other properties that they share."""

    name: str  # for messages, such as ``an allocator program``
    operands: tuple[Operand, ...]
    text: Callable[..., str] = _call  # returns a step as text
    needs: Callable[..., object] = _always  # the precondition of instructions that declare none
    #: An aspect of two consecutive steps; its function takes the operands of the first as a mapping.
    between: Aspect | None = None
    #: Returns the entries of a model's table that no program can cover, each with the reason.
    impossible: Callable[[Any], Mapping[Key, str]] = lambda model: {}
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def instruction(
        self,
        *,
        effect: Callable[..., object] | None = None,
        operands: tuple[Operand, ...] = (),
        covers: tuple[States, ...] = (),
        **more: Any,
    ) -> Callable[[_Function], _Function]:
        """Returns a decorator for the body of an instruction, a function that takes the model and the operands. The
        function's name is the name of the instruction, and its parameters are the names of the operands. ``operands``
        are operands that the language does not define; ``more`` has other fields of Instruction.

        If ``effect`` is given, it changes the model, and the decorated function is the only operation of the
        instruction. The function then takes the running program instead of the model.
        """
        known = {operand.name: operand for operand in (*self.operands, *operands)}

        def declare(function: _Function) -> _Function:
            def single(model: Any, **given: Any) -> Iterable[Operation]:
                assert effect is not None
                effect(model, **given)
                return [Operation(function, given)]

            name = more.get("name", function.__name__)
            theirs = tuple(known[each] for each in list(signature(function).parameters)[1:])
            usual = {
                "name": name,
                "title": Aspect((name,), lambda model, **_: 0),
                "needs": self.needs,
            }
            self.instructions[name] = Instruction(
                operands=theirs,
                body=single if effect else function,
                covers=(*(each for operand in theirs for each in operand.covers), *covers),
                **(usual | more),
            )
            return function

        return declare

    # -- programs

    def describe(self, steps: Steps) -> str:
        """Returns the steps as readable text."""
        return "; ".join(map(self._describe, steps)) or "nothing"

    def _describe(self, step: Step) -> str:
        instruction = self.instructions[step[0]]
        named = zip((operand.name for operand in instruction.operands), step[1:], strict=True)
        return instruction.text.format(**dict(named)) or self.text(*step)

    def validate(self, steps: Steps) -> None:
        """Raises ValueError if a step has an unknown name, the wrong number of operands, or an operand out of range."""
        for name, *values in steps:
            step = (name, *values)
            operands = self.instructions[name].operands if name in self.instructions else ()
            known = name in self.instructions and len(values) == len(operands)
            if not known or any(type(value) is not int for value in values):
                raise ValueError(f"{step!r} is not an instruction of {self.name}")
            for operand, value in zip(operands, values, strict=True):
                if value not in operand.values:
                    low, high = operand.values[0], operand.values[-1]
                    raise ValueError(
                        f"{operand.name} of {step!r}: expected {low} to {high}, got {value}"
                    )

    def strategy(self, name: str, **values: range) -> Any:
        """Returns the hypothesis strategy of the steps of an instruction. ``values`` limits the values of operands."""
        from hypothesis.strategies import integers, just, tuples

        ranges = (values.get(each.name, each.values) for each in self.instructions[name].operands)
        drawn = (
            just(each[0]) if len(each) == 1 else integers(each[0], each[-1]) for each in ranges
        )
        return tuples(just(name), *drawn)

    # -- coverage

    def table(self, model: Any) -> frozenset[Key]:
        """Returns all pairs of consecutive instructions, and all states, that programs can cover. Raises ValueError if
        ``impossible`` returns an entry that is not in the table."""
        names = {
            name: instruction
            for instruction in self.instructions.values()
            if instruction.here(model)
            for name in instruction.title.words(model)
        }
        between = [self.between.words(model)] if self.between else []
        found: set[Key] = {("pair", *pair) for pair in product(names, names, *between)}
        for name, instruction in names.items():
            found.update(*(each.table(model, name) for each in instruction.covers))
        impossible = set(self.impossible(model))
        if unknown := impossible - found:
            raise ValueError(
                f"these entries are declared impossible but are not in the table: {sorted(unknown)}"
            )
        return frozenset(found - impossible)


class State:
    """A model of the device between the steps of a program, which determines what the next step would do and cover.
    Each language has a subclass, with the data that its instructions read and change."""

    language: ClassVar[Language]

    def __init__(self) -> None:
        self.last: tuple[str, Operands] | None = None  # name and operands of the last step

    def operands(self, step: Step) -> dict[str, int]:
        operands = self.language.instructions[step[0]].operands
        return {
            operand.name: operand.resolve(self, value)
            for operand, value in zip(operands, step[1:], strict=True)
        }

    def possible(self, step: Step) -> bool:
        """Returns True if a step would have an effect in this state."""
        instruction = self.language.instructions[step[0]]
        return bool(instruction.here(self) and instruction.needs(self, **self.operands(step)))

    def reaches(self, step: Step) -> set[Key]:
        """Returns the pair of instructions and the states that a step would add to the coverage. Returns an empty set
        if the step would have no effect."""
        if not self.possible(step):
            return set()
        instruction, operands = self.language.instructions[step[0]], self.operands(step)
        name, between = instruction.title.word(self, **operands), self.language.between
        found = set[Key]().union(
            *(each.reached(self, name, operands) for each in instruction.covers)
        )
        if self.last is not None:
            before, theirs = self.last
            how = (between.word(self, theirs, **operands),) if between else ()
            found.add(("pair", before, name, *how))
        return found

    def take(self, step: Step) -> list[Operation]:
        """Appends a step to the program and returns its operations."""
        if not self.possible(step):
            return self.impossible(step)
        instruction, operands = self.language.instructions[step[0]], self.operands(step)
        self.last = instruction.title.word(self, **operands), operands
        return list(instruction.body(self, **operands))

    def impossible(self, step: Step) -> list[Operation]:
        """Returns the operations of a step that cannot run in this state: an empty list. In languages in which such a
        program is invalid, raises ValueError instead."""
        return []

    def take_all(self, steps: Steps) -> list[Operation]:
        return [operation for step in steps for operation in self.take(step)]

    def reached(self, steps: Steps) -> set[Key]:
        """Appends steps, and returns the pairs of instructions and the states that they cover."""
        found: set[Key] = set()
        for step in steps:
            found |= self.reaches(step)
            self.take(step)
        return found

    def proposals(self, random: Random) -> list[Step]:
        """Returns steps, drawn at random, that are possible next."""
        found = [
            (
                name,
                *(random.randint(each.values[0], each.values[-1]) for each in instruction.operands),
            )
            for name, instruction in self.language.instructions.items()
            for _ in range(_CHOICES)
        ]
        return [step for step in found if self.possible(step)]


def steered(
    begin: Callable[[Random], S], reach: Reach, seed: int, length: int
) -> Iterator[tuple[S, list[Step]]]:
    """Yields programs of at most ``length`` steps that together cover the missing pairs and states, each with the state
    after its last step. ``begin`` returns the state before the first step of a program."""
    random, missing = Random(seed), set(reach.missing)
    for _ in range(_MOST):
        if not missing:
            return
        state = begin(random)
        program: list[Step] = []
        last = 0  # index after the last step that covered something new; the rest is dropped
        while missing and len(program) < length:
            choices = state.proposals(random)
            random.shuffle(choices)  # break ties at random
            best = max(choices, key=lambda each: len(missing & state.reaches(each)))
            found = missing & state.reaches(best)
            missing -= found
            state.take(best)
            program.append(best)
            last = len(program) if found else last
        if last:
            yield state, program[:last]
