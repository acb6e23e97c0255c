"""Cases and suites as data: which checks there are, and what each one needs. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from devices.failure import Kind

_Check = TypeVar("_Check", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Drawn:
    """The programs that a case draws, as data: each is a tuple of literals.

    ``replay(context, *program)`` runs one, without hypothesis, as a pinned program is run. ``told(*program)`` is
    its text for people. ``validate(*program)`` raises an exception where the literals are not a program of the
    case, for example because a pinned one was edited or is from another version. ``source(descriptor, *program)`` is
    straight-line Python that ends in a function ``program(context)``: what a repro script shows and runs. It
    uses names of the module of ``replay``.
    """

    replay: Callable[..., None]
    told: Callable[..., str]
    validate: Callable[..., None]
    source: Callable[..., str]


@dataclass(frozen=True, slots=True)
class Case:
    """One named check of a clause. It is a cell.

    ``check(context, *arguments)`` uses ``context.check`` and similar methods. It is a module-level
    function, not a closure, so that a repro script can contain it; ``arguments`` are literals.
    """

    clause: str
    name: str
    check: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    kind: Kind = Kind.STATE  # of failures without a kind
    requires: frozenset[str] = frozenset()  # capabilities beyond those of the clause
    indices: int = 1  # device indices that it takes
    alone: bool = False  # no other worker may use the device at the same time
    own_process: bool = False  # it ends, forks or poisons the process, or needs a fresh one
    environment: tuple[tuple[str, str], ...] = ()  # of that process
    seconds: float = 60.0  # time limit in a subprocess
    more: bool = False  # beyond plan quick: more of what another case does
    slow: bool = False  # takes more than half a second: tests leave it out where they can
    drawn: Drawn | None = None  # it draws programs: a seed and their number end its arguments

    def __post_init__(self) -> None:
        if self.environment and not self.own_process:
            raise ValueError(f"{self.clause}::{self.name}: environment= requires own_process=True")
        if self.drawn and [type(each) for each in self.arguments[-2:]] != [int, int]:
            raise ValueError(f"{self.clause}::{self.name}: a seed and a number end its arguments")

    def anew(self, seed: int, programs: int) -> Case:
        """The case with this many programs from another seed, if it draws any."""
        return replace(self, arguments=(*self.arguments[:-2], seed, programs))

    @property
    def id(self) -> str:
        """Its name in full, which seeds what it draws."""
        return f"{self.clause}::{self.name}"

    @property
    def statement(self) -> str:
        """What the case says: the first paragraph of the check's docstring."""
        return " ".join((self.check.__doc__ or "").strip().partition("\n\n")[0].split())


@dataclass(frozen=True, slots=True)
class OpCheck:
    """A clause that is judged for every op and dtype that it applies to.

    ``applies`` takes :class:`opinfo.samples.Traits` and needs no run of the device; ``checks`` take
    the :class:`conformance.checks.ops.context.ItemContext` of the op and dtype; one may serve several clauses. ``untried`` takes the
    descriptor and the name of an op, and returns the reason why the op is not tried on the device, by
    declaration; empty if it is tried. ``always`` has the dtypes that every plan takes, by the name of an op or
    by its kind in torch's database.
    """

    clause: str
    applies: Callable[[Any], bool]
    checks: tuple[Callable[[Any], None], ...]
    untried: Callable[[Any, str], str] | None = None  # None: it is tried with every op
    sampled: bool = True  # uses the samples; other checks make their own tensors
    grad: bool = False  # runs with gradients recorded
    always: Mapping[str, frozenset[str]] = field(default_factory=dict)
    axes: bool = True  # takes the samples of the axes too; without them an item draws fewer
    reduced: bool = False  # without layouts it judges the contiguous one only; a plan says so


@dataclass(frozen=True, slots=True)
class Suite:
    """What one package checks."""

    name: str
    cases: tuple[Case, ...] = ()
    op_checks: tuple[OpCheck, ...] = ()

    def applying(self, traits: Any) -> Iterator[str]:
        """The clauses that apply to an op and dtype with these :class:`opinfo.samples.Traits`, in order."""
        return (check.clause for check in self.op_checks if check.applies(traits))


class Cases(list[Case]):
    """Collects the cases of a module; ``kind`` is the kind of failures that do not name one::

        cases = Cases(Kind.ORDER)

        @cases("streams.query")
        def true_when_done(context: Context) -> None:
            ...

    The case has the name of its function. ``over`` makes several cases from one function: it maps the
    name of each case to the arguments that its check takes after the context.
    """

    def __init__(self, kind: Kind = Kind.STATE) -> None:
        super().__init__()
        self._kind = kind

    def __call__(
        self, clause: str, *, over: dict[str, tuple[Any, ...]] | None = None, **needs: Any
    ) -> Callable[[_Check], _Check]:
        needs.setdefault("kind", self._kind)
        if "requires" in needs:
            needs["requires"] = frozenset(needs["requires"])
        if "environment" in needs:
            needs["environment"] = tuple(sorted(needs["environment"].items()))

        def take(check: _Check) -> _Check:
            named = {check.__name__: ()} if over is None else over
            self.extend(Case(clause, name, check, given, **needs) for name, given in named.items())
            return check

        return take


def gathered(*modules: Iterable[Case]) -> tuple[Case, ...]:
    """The cases of several modules, in order. Raises ValueError if two have the same name."""
    cases = tuple(chain.from_iterable(modules))
    for (clause, name), count in Counter((case.clause, case.name) for case in cases).items():
        if count > 1:
            raise ValueError(f"{clause} has two cases named {name!r}")
    return cases


def not_here(case: Case, capabilities: frozenset[str], indices: int) -> str:
    """Why a case is not tried on a device that declares these capabilities, on a machine with this many
    indices; empty if it is tried."""
    missing = sorted(case.requires - capabilities)
    if missing:
        return f"by declaration: the descriptor does not declare {', '.join(missing)}"
    if indices < case.indices:
        there = "one device" if indices == 1 else f"{indices} devices"
        return f"not on this machine: it has {there}, but the case needs {case.indices}"
    return ""
