"""Whether a red cell is red because of a mutant: it must be green without the mutant in the same conditions, and red again with
it. A cell that fails anyway, or sometimes, says nothing about a mutant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.checks.cases.cases import BehaviourCase

#: Runs cases one after another, with the mutant or (False) without it, and returns whether the last one is red.
Rerun = Callable[[bool, Sequence[BehaviourCase]], bool]


def is_cause(red: Rerun, case: BehaviourCase, history: Sequence[BehaviourCase] = ()) -> bool:
    """Whether the mutant is the cause of a case that was red with it.

    The case runs without the mutant right afterwards, and once more with it. A mutant that remembers earlier calls may need
    the cases that ran before: if the case alone is green with the mutant, both runs are repeated behind ``history``.
    """
    for before in ((), history) if history else ((),):
        cases = (*before, case)
        if red(False, cases):
            return False
        if red(True, cases):
            return True
    return False
