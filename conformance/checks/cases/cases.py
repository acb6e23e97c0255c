"""Cases and suites as data: which checks exist and what each check needs. Importing this module does not import torch."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

from devices.cell import CellKey
from devices.failure import Kind

_Check = TypeVar("_Check", bound=Callable[..., None])

#: The part of a device's memory that a case may need. Other processes need some, too, and estimates are rough.
_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Drawn:
    """The functions that handle the random programs of a case. Each program is a tuple of literals.

    ``replay(context, *program)`` runs a program without hypothesis, as pinned programs are run. ``describe(*program)``
    returns the program as text for people. ``validate(*program)`` raises an exception if the literals are not a valid
    program of the case, for example because somebody edited a pinned program. ``source(descriptor, *program)`` returns
    straight-line Python that defines a function ``program(context)`` and uses names of the module of ``replay``; a
    repro script shows and runs this code.
    """

    replay: Callable[..., None]
    describe: Callable[..., str]
    validate: Callable[..., None]
    source: Callable[..., str]


@dataclass(frozen=True, slots=True)
class BehaviourCase:
    """One named check of a clause. The result of each case is one cell.

    ``check(context, *arguments)`` uses ``context.check`` and similar methods. It is a function at module level, not a
    closure, so that a repro script can contain it. ``arguments`` are literals.
    """

    clause: str
    name: str
    check: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    variant: str = ""  # such as "4 ranks"; each variant of a case is a cell
    kind: Kind = Kind.STATE  # the kind of failures for which the check names none
    requires: frozenset[str] = frozenset()  # capabilities needed in addition to those of the clause
    indices: int = 1  # number of device indices that the case needs
    ranks: int = (
        0  # number of processes of a process group; each needs an index unless they may share one
    )
    alone: bool = False  # True: no other worker may use the device meanwhile
    memory: int = 0  # bytes: an estimate of the most memory of the device that it takes; 0: little
    own_process: bool = False  # True: it ends, forks or breaks its process, or needs a fresh one
    environment: tuple[tuple[str, str], ...] = ()  # environment variables of that process
    seconds: float = 60.0  # time limit in a subprocess
    more: bool = False  # not in plan quick: repeats another case with more input
    whole: bool = False  # only in plans that are whole: takes many seconds, or much memory
    slow: bool = False  # True: takes more than 0.5 s; the project's own tests may skip it
    drawn: Drawn | None = (
        None  # set if the case draws programs: a seed and their number end its arguments
    )

    def __post_init__(self) -> None:
        if self.environment and not self.own_process:
            raise ValueError(f"{self.id}: environment= requires own_process=True")
        if self.memory and not (self.own_process and self.alone):
            raise ValueError(f"{self.id}: memory= requires own_process=True and alone=True")
        if self.drawn and [type(each) for each in self.arguments[-2:]] != [int, int]:
            raise ValueError(
                f"{self.id}: expected the arguments of a drawn case to end with two "
                "ints, seed and programs"
            )

    def anew(self, seed: int, programs: int) -> BehaviourCase:
        """Returns a copy of a case with random programs, with another seed and another number of programs."""
        return replace(self, arguments=(*self.arguments[:-2], seed, programs))

    @property
    def cell(self) -> CellKey:
        """The cell that holds the result of the case."""
        return CellKey(self.clause, self.name, "", self.variant)

    @property
    def id(self) -> str:
        """The full name of the case, ``clause::name`` or ``clause::name@variant``. It also seeds the random numbers of the
        case."""
        return str(self.cell)

    @property
    def statement(self) -> str:
        """The description of the case for users: the first paragraph of its check's docstring."""
        return " ".join((self.check.__doc__ or "").strip().partition("\n\n")[0].split())


def one_op_in(count: int, place: int = 1) -> Callable[[str], bool]:
    """Returns a function of an op's name that is True for about one op in ``count``. A hash of the name decides.
    ``place``, from 0 to ``count`` - 1, says which ones: different places stand for different ops."""
    return lambda op: zlib.crc32(op.encode()) % count == place


@dataclass(frozen=True, slots=True)
class OpCheck:
    """The checks of a clause that is judged for every op and dtype to which it applies.

    ``applies`` takes :class:`opinfo.samples.Traits` and does not use the device. ``checks`` take the
    :class:`conformance.checks.ops.context.OpContext` of an op and dtype; one check may serve several clauses.
    ``untried`` takes the descriptor, the id of an op and the :class:`opinfo.sample_source.SampleSource` that has the
    op. It returns the declared reason for not trying the op on the device; an empty string means that the op is tried.
    ``always`` maps an op's name, or its kind in torch's database, to dtypes that every plan includes.

    Each of the ``variants`` of a check has its own cell; the check functions read the variant from ``ctx.variant``. The
    empty string stands for the cell without a variant. Plans with more cases also have the ``more_variants``, for those
    ops and dtypes for which the function of the variant returns True: it takes an op's name and the clauses that apply
    to the op in the dtype. A whole plan has the ``more_variants`` for all, and the ``whole_variants`` too.

    ``quick`` says, by the name of an op, whether the plan ``quick`` has its cell.

    A check whose calls are slow has a budget: it gets at most ``samples`` samples of an op in the plan ``quick``, and
    at most ``more`` in plans with more cases. A whole plan gives it all samples. ``seconds`` is a lower bound of the
    time limit of its clauses.
    """

    clause: str
    applies: Callable[[Any], bool]
    checks: tuple[Callable[[Any], None], ...]
    untried: Callable[[Any, str, Any], str] | None = None  # None: every op is tried
    sampled: bool = True  # False: the checks make tensors of their own
    grad: bool = False  # True: runs with autograd enabled
    always: Mapping[str, frozenset[str]] = field(default_factory=dict)
    axes: bool = True  # False: the item omits the additional samples of opinfo/axes
    reduced: bool = False  # True: a plan without layouts runs only the contiguous layout
    variants: tuple[str, ...] = ("",)
    more_variants: Mapping[str, Callable[[str, Collection[str]], bool]] = field(
        default_factory=dict
    )
    whole_variants: tuple[str, ...] = ()
    quick: Callable[[str], bool] | None = None  # None: every op
    samples: int | None = None  # None: all
    more: int | None = None  # None: all
    seconds: float = 0.0
    loads: Callable[[], None] | None = None  # loads code that all forks of a worker then share

    def variants_of(
        self, op: str, clauses: Collection[str], *, more: bool, whole: bool
    ) -> tuple[str, ...]:
        """Returns the variants of this check that have cells in a plan for an op in a dtype to which ``clauses`` apply.
        With ``more``, the plan has more cases; with ``whole``, it is a whole plan."""
        if whole:
            return (*self.variants, *self.more_variants, *self.whole_variants)
        if not more:
            return self.variants
        chosen = (each for each, has in self.more_variants.items() if has(op, clauses))
        return (*self.variants, *chosen)

    def most_samples(self, *, more: bool, whole: bool) -> int | None:
        """Returns the largest number of samples of an op that a plan gives to this check; None if it gives all. With
        ``more``, the plan has more cases; with ``whole``, it is a whole plan."""
        if whole:
            return None
        return self.more if more else self.samples


@dataclass(frozen=True, slots=True)
class Suite:
    """The cases and op checks of one package of conformance/suites."""

    name: str
    cases: tuple[BehaviourCase, ...] = ()
    op_checks: tuple[OpCheck, ...] = ()

    def applying(self, traits: Any) -> Iterator[str]:
        """Yields the clauses that apply to an op and dtype with these :class:`opinfo.samples.Traits`, in the order of
        the suite's op checks."""
        return (check.clause for check in self.op_checks if check.applies(traits))


class Cases(list[BehaviourCase]):
    """A list that collects the cases of a module. ``kind`` is the kind of every failure for which the check
    names no kind::

        cases = Cases(Kind.ORDER)

        @cases("streams.query")
        def true_when_done(context: CaseContext) -> None:
            ...

    The name of the case is the name of its function. ``over`` makes several cases of one function: it maps the name of
    each case to the arguments that the function takes after the context. ``variants`` makes several cells of each case: it
    maps the name of each variant to further arguments. ``memory`` is a number of bytes, or a function that computes it from
    the arguments of a case.
    """

    def __init__(self, kind: Kind = Kind.STATE) -> None:
        super().__init__()
        self._kind = kind

    def __call__(
        self,
        clause: str,
        *,
        over: Mapping[str, tuple[Any, ...]] | None = None,
        variants: Mapping[str, tuple[Any, ...]] = MappingProxyType({"": ()}),
        memory: int | Callable[..., int] = 0,
        **needs: Any,
    ) -> Callable[[_Check], _Check]:
        needs.setdefault("kind", self._kind)
        if "requires" in needs:
            needs["requires"] = frozenset(needs["requires"])
        if "environment" in needs:
            needs["environment"] = tuple(sorted(needs["environment"].items()))

        def take(check: _Check) -> _Check:
            named = {check.__name__: ()} if over is None else over
            for name, given in named.items():
                for variant, more in variants.items():
                    arguments = (*given, *more)
                    most = memory(*arguments) if callable(memory) else memory
                    about = (clause, name, check, arguments, variant)
                    self.append(BehaviourCase(*about, memory=most, **needs))
            return check

        return take


def collect_cases(*modules: Iterable[BehaviourCase]) -> tuple[BehaviourCase, ...]:
    """Returns the cases of several modules, in order. Raises ValueError if two cases of a clause have the same name."""
    cases = tuple(chain.from_iterable(modules))
    for cell, count in Counter(case.cell for case in cases).items():
        if count > 1:
            raise ValueError(f"{cell.clause} has two cases named {cell.name!r}")
    return cases


def not_here(
    case: BehaviourCase,
    capabilities: frozenset[str],
    indices: int,
    *,
    shared: bool = True,
    memory: int | None = None,
) -> str:
    """Returns the reason why a case is not tried on a device with these ``capabilities``, with ``indices`` device
    indices and ``memory`` bytes of memory (None: not known); an empty string if it is tried. ``shared`` says whether
    several processes of a process group may use the same device index."""
    missing = sorted(case.requires - capabilities)
    if missing:
        return f"by declaration: the descriptor does not declare {', '.join(missing)}"
    needed = case.indices if shared else max(case.indices, case.ranks)
    if indices < needed:
        there = "one device" if indices == 1 else f"{indices} devices"
        return f"not on this machine: it has {there}, but the case needs {needed}"
    if memory is not None and case.memory > memory * _SHARE:
        has, needs = f"{memory / 2**30:.2f} GiB", f"{case.memory / 2**30:.2f} GiB"
        return (
            f"not on this machine: the device has {has} of memory; the case needs about {needs}, and"
            f" may take at most {_SHARE:.0%} of it"
        )
    return ""
