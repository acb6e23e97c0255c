"""Whose turn it is in a random search: items of ops, and the cases that draw programs between them. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

Item = tuple[str, str, list[str]]  # op, dtype, clauses; or the name of a case, no dtype, its clause

#: Turns of ops before a case that draws programs has one, which takes about as long as two to ten of them.
OPS_BEFORE_A_CASE = 4


@dataclass(frozen=True)
class Turns:
    """The order of turns, which depends on the items and the seed alone.

    Ops and cases each go through all of theirs in passes, in an order of its own every time.
    """

    items: Sequence[Item]
    seed: int
    ops: list[Item] = field(init=False)
    cases: list[Item] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", [item for item in self.items if item[1]])
        object.__setattr__(self, "cases", [item for item in self.items if not item[1]])

    def at(self, position: int) -> tuple[Item, int, int]:
        """The item of a turn, the pass over its like, and its place in that pass."""
        items, turn = self._of(position)
        visit, place = divmod(turn, len(items))
        order = list(items)
        Random(f"{self.seed}:{visit}").shuffle(order)
        return order[place], visit, place

    def passes(self, position: int) -> float:
        """How often all ops had had their turn, or all cases where there are no ops."""
        whole, rest = divmod(position, OPS_BEFORE_A_CASE + 1)
        if self.ops and self.cases:
            return (whole * OPS_BEFORE_A_CASE + rest) / len(self.ops)
        return position / len(self.items)

    def _of(self, position: int) -> tuple[list[Item], int]:
        """Those whose turn it is, and how many turns they had before."""
        if not (self.ops and self.cases):
            return self.ops or self.cases, position
        whole, rest = divmod(position, OPS_BEFORE_A_CASE + 1)
        if rest == OPS_BEFORE_A_CASE:
            return self.cases, whole
        return self.ops, whole * OPS_BEFORE_A_CASE + rest
