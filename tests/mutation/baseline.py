"""Whether a red cell is red because of a mutant: it must be green without the mutant in the same conditions, and red again with
it. A cell that fails anyway, or sometimes, says nothing about a mutant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

#: What stands for a cell: a case, or an op with a clause.
Cell = TypeVar("Cell")
#: Runs cells one after another, with the mutant or (False) without it, and returns whether the last one is red.
Rerun = Callable[[bool, Sequence[Cell]], bool]


def is_cause(red: Rerun[Cell], cell: Cell, history: Sequence[Cell] = ()) -> bool:
    """Whether the mutant is the cause of a cell that was red with it.

    The cell runs without the mutant right afterwards, and once more with it. A mutant that remembers earlier calls may need
    the cells that ran before: if the cell alone is green with the mutant, both runs are repeated behind ``history``.
    """
    for before in ((), history) if history else ((),):
        cells = (*before, cell)
        if red(False, cells):
            return False
        if red(True, cells):
            return True
    return False
