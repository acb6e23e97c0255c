"""Cases and suites as data: which checks there are, and what each one needs. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

_Check = TypeVar("_Check", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Drawn:
    """The programs that a case draws, as data: each is a tuple of literals.

    ``replay(context, *program)`` runs one, without hypothesis: what a repro script does, and a pinned
    program. ``told(*program)`` is its text for people. ``validate(*program)`` raises an exception where
    the literals are no program of the case's, as where a pinned one was edited, or is of another version.
    """

    replay: Callable[..., None]
    told: Callable[..., str]
    validate: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Case:
    """One named check of a clause: a cell of its own.

    ``check(context, *arguments)`` judges by ``context.check`` and its likes. It is a function of its
    module, not a closure, so that a repro script can hold it; ``arguments`` are literals.
    """

    clause: str
    name: str
    check: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    requires: frozenset[str] = frozenset()  # capabilities beyond those of the clause
    indices: int = 1  # device indices that it takes
    alone: bool = False  # no other worker may use the device meanwhile
    own_process: bool = False  # it ends, forks or poisons the process, or needs a fresh one
    environment: tuple[tuple[str, str], ...] = ()  # of that process
    seconds: float = 60.0  # that it may take in a process of its own
    more: bool = False  # beyond plan quick: more of what another case does
    slow: bool = False  # takes more than half a second: tests leave it out where they can
    drawn: Drawn | None = None  # it draws programs: a seed and their number end its arguments

    def __post_init__(self) -> None:
        if self.environment and not self.own_process:
            raise ValueError(f"{self.clause}::{self.name}: an environment takes own_process=True")
        if self.drawn and [type(each) for each in self.arguments[-2:]] != [int, int]:
            raise ValueError(f"{self.clause}::{self.name}: a seed and a number end its arguments")

    def anew(self, seed: int, programs: int) -> Case:
        """The case with so many programs of another seed, where it draws any."""
        return replace(self, arguments=(*self.arguments[:-2], seed, programs))

    @property
    def statement(self) -> str:
        """What the case says, from the first line of the check's docstring."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


def _always(descriptor: Any, op: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class OpCheck:
    """A clause that is judged for every op and dtype that it applies to.

    ``applies`` takes :class:`opinfo.traits.Traits` and needs no run of the device; ``check`` takes
    the :class:`conformance.layout.context.ItemContext` of the op and dtype. ``untried`` takes the
    descriptor and the name of an op: why, by declaration, the device is not tried with it; empty
    where it is. No check is given such an op.
    """

    clause: str
    applies: Callable[[Any], bool]
    check: Callable[[Any], None]
    untried: Callable[[Any, str], str] = _always


@dataclass(frozen=True, slots=True)
class Suite:
    """What one package checks."""

    name: str
    cases: tuple[Case, ...] = ()
    op_checks: tuple[OpCheck, ...] = ()


class Cases:
    """Collects the cases of a module::

        cases = Cases()

        @cases("streams.query")
        def true_when_done(context: Context) -> None:
            ...

    The case is called as its function is. ``over`` makes several cases of one function: by the
    name of each, the arguments that its check takes behind the context.
    """

    def __init__(self) -> None:
        self._found: list[Case] = []

    def __call__(
        self, clause: str, *, over: dict[str, tuple[Any, ...]] | None = None, **needs: Any
    ) -> Callable[[_Check], _Check]:
        if "requires" in needs:
            needs["requires"] = frozenset(needs["requires"])
        if "environment" in needs:
            needs["environment"] = tuple(sorted(needs["environment"].items()))

        def take(check: _Check) -> _Check:
            if over is None:
                self._found.append(Case(clause, check.__name__, check, **needs))
            for name, arguments in (over or {}).items():
                self._found.append(Case(clause, name, check, arguments, **needs))
            return check

        return take

    def __iter__(self) -> Iterator[Case]:
        return iter(self._found)


def gathered(*modules: Iterable[Case]) -> tuple[Case, ...]:
    """The cases of several modules, in order. Raises ValueError where two have one name."""
    found: dict[tuple[str, str], Case] = {}
    for case in (case for cases in modules for case in cases):
        if (case.clause, case.name) in found:
            raise ValueError(f"{case.clause} has two cases {case.name!r}")
        found[case.clause, case.name] = case
    return tuple(found.values())


def not_here(case: Case, capabilities: frozenset[str], indices: int) -> str:
    """Why a device that declares these capabilities, on a machine with so many indices of it, is not
    tried in a case; empty where it is."""
    missing = sorted(case.requires - capabilities)
    if missing:
        return f"by declaration: the descriptor does not declare {', '.join(missing)}"
    if indices < case.indices:
        there = "one device" if indices == 1 else f"{indices} devices"
        return f"not on this machine: it has {there}, and the case takes {case.indices}"
    return ""
