"""Of many values of a parameter those that the fast tests take; the others are marked slow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import pytest


class _Breaks(Protocol):
    """A planted fault."""

    @property
    def clauses(self) -> tuple[str, ...]: ...


F = TypeVar("F", bound=_Breaks)


def one_of_each_clause(faults: Iterable[F]) -> list[F]:
    """Faults that together break every clause that any of them breaks: each breaks one that those before it do not."""
    taken: list[F] = []
    broken: set[str] = set()
    for fault in faults:
        if set(fault.clauses) - broken:
            taken.append(fault)
            broken |= set(fault.clauses)
    return taken


def one_of_each_family(faults: Iterable[F]) -> list[F]:
    """Faults that together break a clause of every family of which any of them breaks one."""
    first: dict[str, F] = {}
    for fault in faults:
        for clause in fault.clauses:
            first.setdefault(clause.partition(".")[0], fault)
    return [*{id(fault): fault for fault in first.values()}.values()]


def trials_of(faults: Mapping[str, _Breaks]) -> list[Any]:
    """All faults as parameters of a test. Those that are not needed to break every clause once are slow."""
    fast = one_of_each_clause(faults.values())
    return [
        pytest.param(fault, id=name, marks=[] if fault in fast else [pytest.mark.slow])
        for name, fault in faults.items()
    ]


def first_of_each(
    values: Iterable[Any],
    kind: Callable[[Any], Hashable],
    name: Callable[[Any], str] | None = None,
) -> list[Any]:
    """The values as parameters of a test. The first one of each kind is fast, unless its kind is None; a tuple gives
    several arguments."""
    seen: set[Hashable] = {None}
    made = []
    for value in values:
        marks = [pytest.mark.slow] if kind(value) in seen else []
        seen.add(kind(value))
        given = value if isinstance(value, tuple) else (value,)
        made.append(pytest.param(*given, marks=marks, id=name(value) if name else None))
    return made
