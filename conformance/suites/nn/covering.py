"""Draws covering arrays: few combinations of options in which each value, or each two values of different options,
occur together.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

#: The value of each option, by the option's name.
Combination: TypeAlias = dict[str, Any]
#: One or two options with their values.
Facts: TypeAlias = frozenset[tuple[str, Any]]


def covering_array(
    levels: Mapping[str, Sequence[Any]],
    refused: Callable[[Combination], bool],
    together: int,
) -> list[Combination]:
    """Returns combinations of options such that each value occurs (``together=1``), or each two values of different
    options occur together (``together=2``), unless every combination with them is refused. ``levels`` holds the values
    of each option, which must be hashable. ``refused`` gets combinations in which options may still be missing, and
    returns True only if no value of the missing options makes the combination acceptable. The result is the same for
    the same arguments."""
    wanted = dict.fromkeys(
        frozenset(zip(names, values, strict=True))
        for names in combinations(levels, together)
        for values in _products([levels[name] for name in names])
    )
    found = []
    while wanted:
        first = next(iter(wanted))
        made = _completed(dict(first), levels, refused, wanted, together)
        if made is None:
            del wanted[first]  # no combination can have it
            continue
        row = {name: made[name] for name in levels}
        for facts in _facts(row, together):
            wanted.pop(facts, None)
        found.append(row)
    return found


def _products(values: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    if not values:
        yield ()
        return
    for first in values[0]:
        for rest in _products(values[1:]):
            yield first, *rest


def _facts(row: Combination, together: int) -> Iterator[Facts]:
    return map(frozenset, combinations(row.items(), together))


def _completed(
    row: Combination,
    levels: Mapping[str, Sequence[Any]],
    refused: Callable[[Combination], bool],
    wanted: Collection[Facts],
    together: int,
) -> Combination | None:
    """Returns a combination that has all options and contains ``row``; None if all are refused. Each missing option gets
    the value with which the combination has the most of the ``wanted`` facts."""
    if refused(row):
        return None
    name = next((each for each in levels if each not in row), None)
    if name is None:
        return row

    def covered(value: Any) -> int:
        others = combinations(row.items(), together - 1)
        return sum(frozenset(((name, value), *each)) in wanted for each in others)

    for value in sorted(levels[name], key=covered, reverse=True):
        made = _completed({**row, name: value}, levels, refused, wanted, together)
        if made is not None:
            return made
    return None
