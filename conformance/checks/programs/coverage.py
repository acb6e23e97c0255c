"""Coverage of random programs: the pairs of consecutive instructions and the states that occur in them.

A few programs drawn at random miss rare pairs. So a case counts what its programs cover, and then adds steered
programs. To choose the next step of a steered program, several steps are drawn at random, and the one that covers the
most missing entries is taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: One entry of coverage: ``("pair", "copy", "wait", …)``, or the kind of a state followed by its properties.
Key = tuple[str, ...]


@dataclass
class Reach:
    """The coverage of the random programs of a case. ``table`` contains all pairs of instructions and all states that
    the programs can cover."""

    table: frozenset[Key]
    missing: set[Key] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = set(self.table)

    def __str__(self) -> str:
        """Returns the coverage as a report shows it: ``98 pairs of instructions, 9 states of wait; missing: …``. Here
        ``wait`` is the name of a group of states."""
        sorts = Counter(sort for sort, *_ in self.table - self.missing)
        told = [f"{sorts.pop('pair', 0)} pairs of instructions"]
        told += [f"{count} states of {sort}" for sort, count in sorted(sorts.items())]
        missing = "; ".join(" ".join(key) for key in sorted(self.missing))
        return ", ".join(told) + (f"; missing: {missing}" if missing else "")
